"""Chaos that can be repeated: a seed, a time to stop, exceptions as of signal handlers, and processes that look on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from random import Random, SystemRandom
from threading import Thread
from time import monotonic
from types import FrameType
from typing import Final, TypeVar

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.store import Store
from limits_app.engine.errors import StoreUnavailable
from limits_app.stores.resilient import ResilientStore
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import counting
from tests.interrupting import Interrupted, interrupted_at_event
from tests.stores.contract.places import Place
from tests.stores.support import PATIENCE, running, until

__all__ = ["Onlooker", "attempted", "interrupted_at_random", "onlooker", "resilient", "rounds", "settled"]

SEED: Final = "LIMITS_CHAOS_SEED"
"""The variable of the environment that repeats a failure: its value is printed with it."""

_INTERRUPTED: Final = (
    "limits_app/acquiring/",
    "limits_app/engine/",
    "limits_app/engine/",
    "limits_app/acquiring/",
    "limits_app/stores/",
    "contextlib.py",
)
"""The code in which signal handlers raise; what drivers and the standard library do then is theirs."""
_POINTS: Final = (30, 100, 300, 300, 1000)
"""As many points have verbs of different stores."""

T = TypeVar("T")


def rounds(seconds: float) -> Iterator[Random]:
    """Rounds of chaos for so many seconds, each with a seed of its own, or only the one with the seed in `SEED`."""
    chosen, ends = os.environ.get(SEED), monotonic() + seconds
    while True:
        seed = chosen or str(SystemRandom().randrange(10**12))
        print(f"the last round: {SEED}={seed}")  # noqa: T201 - pytest shows it with a failure
        yield Random(seed)
        if chosen or monotonic() > ends:
            return


def resilient(place: Place, clock: Callable[[], int], **options: float) -> ResilientStore:
    """The store of a place as a site uses it, over ways that lose replies; it delivers later what it could not."""
    store = place.open_over(clock, **options)
    return ResilientStore("chaos", lambda _: store).open()


def settled(store: ResilientStore) -> None:
    """Wait until everything that could not be delivered has been."""
    until(lambda: not store.unsettled)


@contextmanager
def interrupted_at_random(random: Random) -> Iterator[None]:
    """In the block, raise at a random point, or not at all where the block has fewer points."""

    def counts(frame: FrameType, event: str) -> bool:
        return event in {"call", "c_return"} and any(part in frame.f_code.co_filename for part in _INTERRUPTED)

    with interrupted_at_event(random.randint(1, random.choice(_POINTS)), counts):
        yield


def attempted(verb: Callable[[], T]) -> T | None:
    """The result of a verb; None when its caller is left without one."""
    with suppress(Interrupted, StoreUnavailable):
        return verb()
    return None


class Onlooker:
    """Looks whether another thread, and another process, are decided at once in a scope."""

    def __init__(self, ask: Callable[[str, int], object]) -> None:
        self._ask = ask

    def check(self, limits: LimitSet, entity: str, now: int) -> None:
        """Fail where a lock is held."""
        admitted: list[bool] = []
        thread = Thread(target=lambda: admitted.append(bool(limits.try_acquire({"units": 0, "db": 0}))), daemon=True)
        thread.start()
        thread.join(PATIENCE / 3)
        assert admitted == [True], "another thread is not admitted at once"
        assert self._ask(entity, now) is True, "another process is not admitted at once"


@contextmanager
def onlooker(place: Place, make: Callable[[Store, str], LimitSet]) -> Iterator[Onlooker]:
    """An onlooker of a place, until the block ends; a store in memory has no other processes."""
    if place.name == "memory":
        yield Onlooker(lambda entity, now: True)
        return
    with running(_look, place, make) as process:

        def ask(entity: str, now: int) -> object:
            process.pipe.send((entity, now))
            return process.hear(PATIENCE / 3)

        yield Onlooker(ask)


def _look(pipe: Connection, place: Place, make: Callable[[Store, str], LimitSet]) -> None:
    clock = FakeClock()
    store = place.open(clock)
    with suppress(EOFError):
        while True:
            entity, now = pipe.recv()
            clock.move(now - clock())
            pipe.send(bool(make(store, entity).try_acquire({"units": 0, "db": 0})))


def counted(store: Store, *limits: object, entity: str) -> LimitSet:
    """A set whose usage is counted."""
    return counting(store, *limits, entity=entity)  # type: ignore[arg-type]  # limits

"""Races: processes of several threads take from the same limits at the same time.

A store takes part with one entry in `STORES`: what gives it a place of its own for a while, and yields how any process
opens it there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Barrier
from typing import Final

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.store import Store
from limits_app.engine.keys import scope_of
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.process import open_process_store
from limits_app.stores.redis import open_redis_store
from tests.servers import shared
from tests.stores.database.databases import VENDORS, patient_stores
from tests.stores.redis.support import PATIENT, prefix
from tests.stores.support import PATIENCE, running

YEAR: Final = 366 * 86_400
PROCESSES: Final = 4
THREADS: Final = 4
TRIES: Final = 50
"""By each thread: more than there is, all of them together."""
FINISH_SECONDS: Final = 300
"""Within which they come in, also on a machine that has much else to do."""
TOGETHER: Final = {"calls": 350, "tokens": 750, "units": 450}
"""The capacities of the race for three limits at once."""

Opener = Callable[[], Store]
"""Opens a store that is shared, in whatever process it is called."""
Taken = list[int]
"""What somebody took of each limit of a race."""


@contextmanager
def process() -> Iterator[Opener]:
    """A process store."""
    with tempfile.TemporaryDirectory() as directory:
        yield partial(open_process_store, Path(directory), map_megabytes=2)


@contextmanager
def redis() -> Iterator[Opener]:
    """A Redis store, on a server that other tests share."""
    yield partial(open_redis_store, url=shared.redis().url, prefix=prefix(), **PATIENT)


STORES: Final[dict[str, Callable[[], AbstractContextManager[Opener]]]] = {
    "process": process,
    "redis": redis,
    **{vendor: partial(patient_stores, vendor) for vendor in VENDORS},
}


def three_limits(open_store: Opener, algorithm: RateLimitAlgorithm) -> bool:
    """Whether each of three limits of two entities is charged what was admitted, no more than it has, and all of it."""
    taken = [sum(each) for each in zip(*everywhere(open_store, algorithm), strict=True)]
    limits = of_two_entities(open_store(), algorithm)
    used = [round(stats["used"]) for stats in limits.get_stats().values()]
    fits = all(amount <= capacity for amount, capacity in zip(taken, TOGETHER.values(), strict=True))
    return fits and used == taken and not limits.try_acquire({"tokens": 1, "units": 1})


def of_two_entities(store: Store, algorithm: RateLimitAlgorithm) -> LimitSet:
    """Three limits, in the scopes of somebody and of their parent."""
    calls, tokens, units = TOGETHER.values()
    child = (CallLimit(calls, YEAR, algorithm), RateLimit("tokens", tokens, YEAR, algorithm))
    parent = (RateLimit("units", units, YEAR, algorithm),)
    parts = [("child", child), ("parent", parent)]
    scoped = [ScopedLimits(scope_of("races", who), schema_of(limits, store.lease_us)) for who, limits in parts]
    return LimitSet.composed(scoped, store)


def take_three(store: Store, algorithm: RateLimitAlgorithm, number: int) -> Taken:
    """Take different amounts from three limits at once, until not even the smallest are left."""
    limits, taken = of_two_entities(store, algorithm), [0, 0, 0]
    for tokens, units in [(1 + (turn + number) % 4, 1 + turn % 2) for turn in range(TRIES)] + [(1, 1)] * TRIES:
        if limits.try_acquire({"tokens": tokens, "units": units}):
            taken = [sum(each) for each in zip(taken, (1, tokens, units), strict=True)]
    return taken


def everywhere(open_store: Opener, algorithm: RateLimitAlgorithm) -> list[Taken]:
    """Have four threads of each of four processes take at the same time; what each of them took."""
    with ExitStack() as stack:
        racers = [stack.enter_context(running(_race, open_store, algorithm, number)) for number in range(PROCESSES)]
        for racer in racers:
            racer.hear()
        for racer in racers:
            racer.pipe.send("go")
        return [taken for racer in racers for taken in racer.hear(FINISH_SECONDS)]  # type: ignore[attr-defined]


def _race(pipe: Connection, open_store: Opener, algorithm: RateLimitAlgorithm, number: int) -> None:
    store, start = open_store(), Barrier(THREADS)

    def race(thread: int) -> Taken:
        start.wait(PATIENCE)
        return take_three(store, algorithm, number * THREADS + thread)

    pipe.send("ready")
    pipe.recv()
    with ThreadPoolExecutor(THREADS) as executor:
        pipe.send(list(executor.map(race, range(THREADS))))

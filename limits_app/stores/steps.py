"""What stores have in common: where they are open, their steps, choices between claims, and idle scopes."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import get_ident
from time import sleep
from typing import Final, Protocol, TypeVar, cast

from limits_app import engine
from limits_app.acquiring import Store, lock_over_forks
from limits_app.engine import Amounts, Claim, Record, mypyc_attr
from limits_app.engine.errors import StoreBlocked, StoreUnavailable
from limits_app.engine.locks import RLock

logger = logging.getLogger("limits_app")

K = TypeVar("K")
R = TypeVar("R")
W = TypeVar("W", bound=Callable[..., object])
S = TypeVar("S", bound=Store)

CHECKS_PER_NEW_SCOPE: Final = 2
"""How many scopes a store checks for being idle whenever one is added, so that idle ones do not accumulate."""
GRACE_US: Final = 60_000_000
"""How long a scope has been idle when a store deletes it."""

_NEARLY: Final = (64, 16)
"""Which part of its time a scope that gives way may still need until it is idle; see `is_nearly_restored`."""

_CALM: Final = 5 / 8
"""Below this share, warnings are repeated when it is exceeded again."""

_TRIES: Final = 200

_OPENED: Final[dict[tuple[object, ...], Store]] = {}
_OPENING: Final = lock_over_forks()


def open_once(identity: tuple[object, ...], make: Callable[[], S]) -> S:
    """Return the store that this process has opened under an identity; it is created if it is missing."""
    with _OPENING:
        if identity not in _OPENED:
            _OPENED[identity] = make()
        return cast("S", _OPENED[identity])


class InStep(StoreBlocked):
    """The calling thread is in the middle of a step of the store: the caller is a finalizer or a signal handler."""

    def __init__(self) -> None:
        super().__init__("a store cannot be called from a finalizer or signal handler within a step of the same thread")


class LateReleases:
    """What finalizers and signal handlers release within a step of their thread: `settle` is called for it later."""

    def __init__(self, settle: Callable[[Claim, Amounts], object]) -> None:
        self._settle = settle
        self.waiting: deque[tuple[Claim, Amounts]] = deque()
        self._is_settling = False

    def settle_all(self) -> None:
        """Settle the releases, unless a thread does that already.

        Where the store is unavailable, the rest waits for the next call.
        """
        while self.waiting and not self._is_settling:  # looked at again: some may come while a thread ends
            try:
                self._is_settling = True
                while self.waiting:
                    self._settle_next()
            except StoreUnavailable:
                logger.warning(
                    "a release during a step could not be stored; it is repeated after the next step", exc_info=True
                )
                return
            finally:
                self._is_settling = False

    def _settle_next(self) -> None:
        try:
            claim, changes = self.waiting.popleft()
        except IndexError:  # another thread settles the last one
            return
        try:
            self._settle(claim, changes)
        except StoreUnavailable:
            self.waiting.appendleft((claim, changes))
            raise
        except Exception:  # neither the caller of the step nor the next release must suffer from it
            logger.exception("a release during a step failed")


class Stepped(Protocol):
    """A store that takes steps."""

    steps: Steps


def in_step(work: W) -> W:
    """Return the verb of a store that does its work in a step; both have one argument.

    The verb raises InStep within a step of the calling thread.
    """

    def verb(store: Stepped, argument: object) -> object:
        steps = store.steps
        if steps.running:
            steps.wait()
        try:
            with steps.lock:
                try:
                    steps.running = get_ident()
                    return work(store, argument)
                finally:
                    steps.running = 0
        finally:
            if steps.late.waiting:
                steps.late.settle_all()

    return cast("W", verb)


@mypyc_attr(allow_interpreted_subclasses=True)
class Steps:
    """The steps of a store in one process: one thread at a time takes one, and the others wait.

    A finalizer or a signal handler may call the store within a step of its thread. Then `settle` is done after the
    step, and other verbs raise InStep. A signal handler that raises leaves no lock held.
    """

    def __init__(self, settle: Callable[[Claim, Amounts], object]) -> None:
        self._settle = settle
        self.after_fork()

    def after_fork(self) -> None:
        """Start in a child without the step and the releases of its parent."""
        # Reentrant, so that a thread that is in a step gets an error.
        self.lock = RLock()
        self.late = LateReleases(self._settle)
        self.running = 0
        """The thread that is in a step; 0 for none."""

    @property
    def steps(self) -> Steps:
        """As of a store."""
        return self

    def run(self, work: Callable[..., R], *args: object) -> R:
        """Call `work` in a step and return its result; raise InStep within a step of the calling thread."""
        return self._call(partial(work, *args))

    @in_step
    def _call(self, work: Callable[[], R]) -> R:
        return work()

    def settle_later(self, claim: Claim, changes: Amounts) -> None:
        """Settle a claim after the step of the calling thread."""
        self.late.waiting.append((claim, changes))

    def run_within(self, work: Callable[[], R]) -> R:
        """Call `work` in the step of the calling thread, or in a new one."""
        return work() if self.running == get_ident() else self.run(work)

    def wait(self) -> None:
        """Wait a little for the step of another thread, because each thread that blocks has to be woken.

        Raises InStep within a step of the calling thread.
        """
        if self.running == get_ident():
            raise InStep
        for _ in range(_TRIES):
            sleep(0)
            if not self.running:
                return


def first_admitted(
    claims: Sequence[Claim],
    acquire: Callable[[Claim], bool],
    peek: Callable[[Sequence[Claim]], None],
    *,
    emptiest_first: bool,
    failover: bool,
) -> Claim | None:
    """Charge the first of the claims that fits, as `Store.acquire_first` does. To be called within one step."""
    if emptiest_first:
        peek(claims)
        claims = sorted(claims, key=Claim.load)
    for claim in claims if failover else claims[:1]:
        if acquire(claim):
            return claim
    return None


def is_idle(record: Record, now: int, *, grace_us: int = GRACE_US) -> bool:
    """Return whether a record has equaled an unused one for `grace_us`, after leases that have run out are reclaimed.

    A store deletes such scopes, so that its size depends on the active ones.
    """
    engine.reclaim(record, now)
    return engine.is_restored(record, now - grace_us, now)


class FullnessWarnings:
    """Warns before a store is full, and when it is.

    `texts` are the warnings by the share of the space from which on they are logged, with the percentage as the last
    argument.
    """

    def __init__(self, texts: Mapping[float, str]) -> None:
        self._texts = texts
        self._warned_about = 0.0

    def note(self, fullness: float, *names: object) -> None:
        """Note the share that is in use, for a warning with these names."""
        if fullness <= _CALM:  # less than each share that is warned about
            self._warned_about = 0.0
            return
        for share, text in self._texts.items():
            if self._warned_about < share < fullness:
                self._warned_about = share
                logger.warning(text, *names, 100 * share)


def that_give_way(records: Mapping[K, Record], now: int) -> list[K]:
    """Return which of some scopes a full store deletes: the idle ones, or else those that are nearly idle."""
    keys = [key for key, record in records.items() if is_idle(record, now, grace_us=0)]
    for part in _NEARLY:
        keys = keys or [key for key, record in records.items() if engine.is_nearly_restored(record, now, part)]
    return keys

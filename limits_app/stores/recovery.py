"""Recovery of a store that was unavailable: probes and pending work in the background, until it is available again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import RLock
from typing import Final, Protocol

from limits_app.core.breaker import BreakerState, CircuitBreaker
from limits_app.core.clock import Clock
from limits_app.core.errors import StoreUnavailable
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit
from limits_app.core.plan import Amounts, Claim
from limits_app.core.runtime import on_fork
from limits_app.core.store import Store
from limits_app.stores.background import BackgroundTask
from limits_app.stores.memory import MemoryStore

MAX_PENDING: Final = 10_000
"""How many releases are kept for a store that is unavailable."""

_PROBE_LIMIT: Final = CallLimit.per_second(1_000_000)
_HALF_OPEN_FACTOR: Final = 8
"""How much more often a store is probed while the circuit breaker is half open."""


class Probe:
    """Finds out whether a store works, by a request for a limit that nothing else uses.

    It writes, because a store that can be read is not always one that can be written.
    """

    def __init__(self) -> None:
        self._limits: LimitSet | None = None

    def run(self, store: Store) -> None:
        """Charge the limit once. Raises StoreUnavailable when the store does not work."""
        if self._limits is None or self._limits.store is not store:
            self._limits = LimitSet([_PROBE_LIMIT], store=store)
        self._limits.try_acquire()


class PendingWork:
    """What a store has to be given when it is available again: releases, and a change of the configuration.

    At most MAX_PENDING releases are kept. When more come the oldest is dropped, whose permits go back at the end of
    their lease. Nothing is kept over the end of the process. Thread safe: a release is taken out before it is settled.
    """

    def __init__(self) -> None:
        self.owes_version = False
        """Whether the version of the configuration has to be advanced."""
        self._releases: deque[tuple[Claim, Amounts]] = deque()
        self._running = 0

    def __len__(self) -> int:
        """The number of releases, with the one that is being settled."""
        return len(self._releases) + self._running

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return self.owes_version or bool(len(self))

    def add(self, claim: Claim, changes: Amounts) -> None:
        """Keep a release. The claim counts as settled from now on, so that no one else settles it."""
        claim.settled = True
        self._releases.append((claim, changes))
        while len(self._releases) > MAX_PENDING:
            self._releases.popleft()

    def run(self, store: Store) -> None:
        """Do all of it. Raises StoreUnavailable when the store cannot; the next run does the rest."""
        if self.owes_version:
            store.advance_version()
            self.owes_version = False
        while self._releases:
            self._running = 1  # before it is taken out
            claim, changes = self._releases.popleft()
            try:
                claim.settled = False
                store.settle(claim, changes)
            except BaseException:
                self._releases.appendleft((claim, changes))
                raise
            finally:
                claim.settled = True
                self._running = 0


class Recoverable(Protocol):
    """A store with a circuit breaker, as far as its recovery needs it."""

    breaker: CircuitBreaker

    def opened(self) -> Store:
        """The store itself; raises StoreUnavailable when it cannot be opened."""

    def record_failure(self, error: StoreUnavailable) -> None:
        """Count a failure, and start the recovery."""

    def is_recovered(self) -> bool:
        """Whether the circuit breaker is closed and no call has failed lately."""


class Recovery:
    """Probes a store until its circuit breaker is closed, and does the pending work, in the background.

    A probe is made about every `pause_us`, and eight times as often while the circuit breaker is half open.
    """

    def __init__(self, target: Recoverable, pause_us: int, *, clock: Clock, jitter: Callable[[], float]) -> None:
        self._target = target
        self._pause_us = pause_us
        self._stopped = False
        self._probe = Probe()
        self._task = BackgroundTask(self._step, pause_us, clock=clock, jitter=jitter)
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Forget in a child what its parent still has to do, and what decided in place of the store."""
        self.pending = PendingWork()
        self._fallback: MemoryStore | None = None
        # Reentrant, because a finalizer may release an acquisition while this thread holds the lock.
        self._lock = RLock()

    def start(self) -> None:
        """Begin, unless it runs already."""
        if not self._stopped:
            self._task.start()

    def stop(self) -> None:
        """End it for good."""
        self._stopped = True

    def fallback(self) -> MemoryStore:
        """The store of this process that decides meanwhile; dropped when there is nothing left to do."""
        with self._lock:
            if self._fallback is None:
                self._fallback = MemoryStore()
            return self._fallback

    def _step(self) -> int | None:
        """Probe the store or do the pending work; returns after how many microseconds to go on, or None at the end."""
        if self._stopped:
            return None
        breaker = self._target.breaker
        try:
            store = self._target.opened()
            if breaker.state is BreakerState.CLOSED:
                self.pending.run(store)
            else:
                self._probe.run(store)
                _count_success(breaker)
        except StoreUnavailable as error:
            self._target.record_failure(error)
        if breaker.state is BreakerState.HALF_OPEN:
            return self._pause_us // _HALF_OPEN_FACTOR
        if self._fallback is not None:
            self._fallback.advance_version()  # requests that wait there go back to the store if it is available
        if not self._target.is_recovered() or self.pending:
            return self._pause_us
        self._fallback = None
        return None


def _count_success(breaker: CircuitBreaker) -> None:
    if breaker.state is BreakerState.OPEN:
        breaker.half_open()
    else:
        breaker.record(failed=False)

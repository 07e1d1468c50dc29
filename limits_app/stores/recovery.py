"""Recovery of a store that was unavailable: probes and pending work in the background, until it is available again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from limits_app.acquiring import BreakerState, LimitSet, Store, on_fork
from limits_app.engine import Amounts, Change, Changes, Claim, Clock, announced
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import CallLimit
from limits_app.engine.locks import RLock
from limits_app.stores.background import BackgroundTask
from limits_app.stores.memory import MemoryStore

if TYPE_CHECKING:
    from limits_app.stores.resilient import ResilientStore

logger = logging.getLogger("limits_app")

MAX_PENDING: Final = 10_000
"""How many releases are kept for a store that is unavailable."""

_PROBE_LIMIT: Final = CallLimit.per_second(1_000_000)
"""Nothing else uses it. A probe charges it, because a store that can be read is not always one that can be written."""
_HALF_OPEN_FACTOR: Final = 8
"""How much more often a store is probed while the circuit breaker is half open."""


class PendingWork:
    """Work that waits until a store is available again: releases, and changes of the configuration.

    At most `most` releases are kept. When more come the oldest is dropped; its permits are reclaimed when their
    lease ends. The changes of a namespace are announced together; `announced` says what many of them become.
    Pending work ends with the process. One thread at a time runs it.
    """

    def __init__(self, most: int = MAX_PENDING) -> None:
        self._most = most
        self._changes: dict[str, Changes] = {}
        """By namespace."""
        self._releases: dict[Claim, Amounts] = {}
        # Reentrant, because a finalizer may release an acquisition while this thread holds the lock.
        self._lock = RLock()

    def __len__(self) -> int:
        """The number of releases."""
        return len(self._releases)

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._changes or self._releases)

    def add(self, claim: Claim, changes: Amounts) -> None:
        """Keep the release of a claim unless it is settled or kept already; its holder is done with it from now on."""
        with self._lock:
            if not claim.settled:
                self._releases.setdefault(claim, changes)
                claim.put_off = True
            while len(self._releases) > self._most:
                del self._releases[next(iter(self._releases))]

    def announce(self, changes: Collection[Change], namespace: str = "") -> None:
        """Keep changes with those that wait already."""
        with self._lock:
            self._changes[namespace] = announced((*self._changes.get(namespace, ()), *changes))

    def run(self, store: Store) -> None:
        """Do all of it. Raises StoreUnavailable when the store cannot; the next run does the rest."""
        while self._changes:
            with self._lock:
                namespace, announcement = next(iter(self._changes.items()))
            store.advance_version(announcement, namespace)
            with self._lock:
                if self._changes[namespace] is announcement:  # else others have come meanwhile: all are announced again
                    del self._changes[namespace]
        while self._releases:
            with self._lock:
                claim, changes = next(iter(self._releases.items()))
            try:
                store.settle(claim, changes)
            except StoreUnavailable:
                raise
            except Exception:  # the next releases must not wait for it
                logger.exception("a release that was pending could not be settled")
            # Kept until it is done, so that it is not added again; more than `most` may have come meanwhile.
            with self._lock:
                self._releases.pop(claim, None)


class Recovery:
    """Probes a store until its circuit breaker is closed, and does the pending work, in the background.

    A probe is made about every `pause_us`, and eight times as often while the circuit breaker is half open.
    """

    def __init__(self, target: ResilientStore, pause_us: int, *, clock: Clock, jitter: Callable[[], float]) -> None:
        self._target = target
        self._pause_us = pause_us
        self._probe: LimitSet | None = None
        self._task = BackgroundTask(self._step, pause_us, clock=clock, jitter=jitter)
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Start in a child without the pending work and the fallback store of the parent."""
        self.pending = PendingWork()
        self._fallback: MemoryStore | None = None
        # Reentrant, because a finalizer may release an acquisition while this thread holds the lock.
        self._lock = RLock()

    def start(self) -> None:
        """Begin, unless it runs already."""
        self._task.start()

    def fallback(self) -> MemoryStore:
        """The store of this process that decides meanwhile; dropped when recovery ends."""
        with self._lock:
            if self._fallback is None:
                self._fallback = MemoryStore()
            return self._fallback

    def _step(self) -> int | None:
        """Probe the store or do the pending work; returns after how many microseconds to go on, or None at the end."""
        if self._target.is_retired:
            return None
        breaker = self._target.breaker
        try:
            store = self._target.open_inner()
            if breaker.state is BreakerState.CLOSED:
                self.pending.run(store)
            else:
                self._try(store)
        except StoreUnavailable as error:
            self._target.record_failure(error)
        if breaker.state is BreakerState.HALF_OPEN:
            return self._pause_us // _HALF_OPEN_FACTOR
        if self._fallback is not None:
            self._fallback.make_stale()  # requests that wait there go back to the store if it is available
        if breaker.state is BreakerState.CLOSED and not breaker.has_recent_failures():
            self._target.failing = False  # calls bypass the circuit breaker from now on
        if self._target.failing or self._target.is_full or self.pending:
            return self._pause_us
        self._fallback = None
        return None

    def _try(self, store: Store) -> None:
        """Charge the limit for probes. Raises StoreUnavailable when the store does not work."""
        if self._probe is None or self._probe.store is not store:
            self._probe = LimitSet([_PROBE_LIMIT], store=store)
        self._probe.try_acquire()
        breaker = self._target.breaker
        if breaker.state is BreakerState.OPEN:
            breaker.half_open()
        else:
            breaker.record(failed=False)

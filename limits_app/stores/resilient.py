"""Resilient stores: each store of the settings, behind a circuit breaker.

`registry.resilient_store(alias)` returns the one of an alias, which the resolver and all services use.
It behaves as the store of the alias does, and in addition:

- Its circuit breaker counts failures. While the breaker is open the store is not called: every verb raises
  StoreUnavailable immediately, so that an unavailable store does not slow requests down.
- `settle` never fails. What the store cannot settle is settled when it is available again.
- Plans with slices are decided by the slices of this process as far as these last; see `slices`.
- A background task probes the store, closes the breaker step by step, and does the pending work. Meanwhile
  `fallback()` is the in-process store that decides under the policy `local`.
- Registered TIMERS receive the duration of each call.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any, Final, Protocol, cast

from limits_app import conf, signals
from limits_app.acquiring import (
    BreakerPolicy,
    BreakerState,
    CircuitBreaker,
    Entry,
    RemoteStore,
    Store,
    at_end,
    is_counting,
    is_remote,
    on_fork,
)
from limits_app.engine import (
    ALL,
    SECOND_US,
    Amounts,
    Batch,
    Change,
    Changes,
    Claim,
    Clock,
    RejectionCounts,
    as_clock,
    lasts,
    monotonic_us,
)
from limits_app.engine.errors import LimitExceeded, StaleConfiguration, StoreBlocked, StoreFull, StoreUnavailable
from limits_app.engine.locks import RLock
from limits_app.stores.background import JITTER, BackgroundTask
from limits_app.stores.memory import MemoryStore
from limits_app.stores.recovery import Recovery
from limits_app.stores.slices import SliceRequest, Slices

logger = logging.getLogger("limits_app")

_RETURN_US: Final = 100_000
"""When the background task first looks for slices to return, after one was taken."""
_FULL_US: Final = 60_000_000
"""How long a store counts as full after it had no room for a request."""
_UNOPENED: Final = MemoryStore()
"""Gives a resilient store its attributes until the real store is opened; it never decides."""


class Timer(Protocol):
    """Receives the duration of each call to a store; must not block or raise."""

    def __call__(self, alias: str, verb: str, seconds: float, *, failed: bool) -> None: ...


TIMERS: Final[list[Timer]] = []
"""The registered timers; calls are not timed while the list is empty."""


class ResilientStore:
    """The store of one alias of the settings, opened on first use.

    Every verb raises StoreUnavailable, with the alias and `retry_after`, when the store fails, when it cannot be
    opened, and immediately while the circuit breaker is open; StoreBlocked where the caller blocks the store itself.
    Only `settle` and `asettle` never do.
    """

    def __init__(
        self,
        alias: str,
        open_store: Callable[[str], Store],
        *,
        clock: Clock | None = None,
        jitter: Callable[[], float] = JITTER,
    ) -> None:
        time = as_clock(monotonic_us) if clock is None else clock
        self.alias = alias
        self._open_store = open_store
        self.probe_seconds = conf.get(conf.BREAKER_PROBE_SECONDS)
        self.failing = False
        """Whether calls have failed lately. The circuit breaker counts calls only while this is set."""
        self.error: StoreUnavailable | None = None
        """The last failure."""
        self.degraded: Counter[conf.OnUnavailable] = Counter()
        """How many decisions each policy made in place of the store."""
        policy = BreakerPolicy(
            failure_ratio=conf.get(conf.BREAKER_FAILURE_RATIO),
            min_calls=conf.get(conf.BREAKER_MIN_CALLS),
            interval_us=round(conf.get(conf.BREAKER_INTERVAL_SECONDS) * SECOND_US),
            probes_per_success=1,
            successes=5,
        )
        self.breaker = CircuitBreaker(policy, clock=time, on_change=self._state_changed)
        self._clock = time
        self._full_at: int | None = None
        """When the store last had no room for a request."""
        self._recovery = Recovery(self, round(self.probe_seconds * SECOND_US), clock=time, jitter=jitter)
        self.is_retired = False
        """Whether another object has replaced this one, because the settings have changed."""
        self.slices = Slices(monotonic_us if clock is None else clock, lambda: conf.get(conf.EXPECTED_PROCESSES) or 1)
        """The slices of this process."""
        self._slice_returns = BackgroundTask(self.return_slices, _RETURN_US, clock=time, jitter=jitter)
        self._wrap(_UNOPENED)
        self.after_fork()
        on_fork(self)

    def __reduce__(self) -> tuple[object, ...]:
        return cast("tuple[object, ...]", self.open().inner.__reduce__())  # another process has its own breakers

    def after_fork(self) -> None:
        """Start with a free lock in a child."""
        # Reentrant, because a finalizer may settle while this thread holds the lock.
        self._lock = RLock()
        self.slices.after_fork()

    def open(self) -> ResilientStore:
        """Open the store if it is not open yet; returns this object. Raises StoreUnavailable when that fails."""
        if self.breaker.state is BreakerState.OPEN:
            self._recovery.start()
            raise self.unavailable()
        try:
            self.open_inner()
        except StoreUnavailable as error:
            self.record_failure(error)
            raise self.unavailable(error) from error
        return self

    def acquire(self, claim: Claim) -> bool:
        if claim.shape.slice_us:
            request = self.slices.take(claim)
            return request is None or self._decided(request, self.acquire_first(request.claims))
        if self.failing or TIMERS or self.inner is _UNOPENED:
            admitted: bool = self._call("acquire", claim)
            return admitted
        try:
            return self.inner.acquire(claim)
        except StoreUnavailable as error:
            self.record_failure(error)
            raise self.unavailable(error) from error

    async def aacquire(self, claim: Claim) -> bool:
        if claim.shape.slice_us:
            request = self.slices.take(claim)
            return request is None or self._decided(request, await self.aacquire_first(request.claims))
        with self._through_breaker("acquire"):
            return await self._remote().aacquire(claim)

    def acquire_first(
        self, claims: Sequence[Claim], *, emptiest_first: bool = False, failover: bool = True
    ) -> Claim | None:
        chosen: Claim | None = self._call("acquire_first", claims, emptiest_first=emptiest_first, failover=failover)
        return chosen

    async def aacquire_first(
        self, claims: Sequence[Claim], *, emptiest_first: bool = False, failover: bool = True
    ) -> Claim | None:
        with self._through_breaker("acquire_first"):
            return await self._remote().aacquire_first(claims, emptiest_first=emptiest_first, failover=failover)

    def settle(self, claim: Claim, changes: Amounts) -> None:
        """Settle a claim now, or when the store is available again."""
        if claim.taken_from is not None and self.slices.refund(claim, changes):
            return
        try:
            self._call("settle", claim, changes)
        except StoreUnavailable:
            self.settle_later(claim, changes)

    async def asettle(self, claim: Claim, changes: Amounts) -> None:
        """`settle` for asyncio."""
        if claim.taken_from is not None and self.slices.refund(claim, changes):
            return
        try:
            with self._through_breaker("settle"):
                await self._remote().asettle(claim, changes)
        except StoreUnavailable:
            self.settle_later(claim, changes)

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        ended: list[Claim] = self._call("renew", claims)
        return ended

    def peek(self, claim: Claim) -> None:
        self._call("peek", claim)

    async def apeek(self, claim: Claim) -> None:
        with self._through_breaker("peek"):
            await self._remote().apeek(claim)

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        self.slices.end(scopes)
        self.return_slices()
        self._call("reset", scopes, keys)

    def return_slices(self, *, everything: bool = False) -> int | None:
        """Return the slices that have ended, or all, to the store; see `Slices.return_ended`."""
        return self.slices.return_ended(partial(self._call, "settle"), everything=everything)

    def return_all_slices(self) -> None:
        """Return all slices to the store, at the end of the process."""
        self.return_slices(everything=True)

    def version(self, namespace: str = "") -> int:
        version: int = self._call("version", namespace)
        return version

    def advance_version(self, changes: Collection[Change] = (ALL,), namespace: str = "") -> int:
        version: int = self._call("advance_version", changes, namespace)
        return version

    def changes_since(self, version: int, namespace: str = "") -> tuple[int, Changes] | None:
        changes: tuple[int, Changes] | None = self._call("changes_since", version, namespace)
        return changes

    def add_rejections(self, rejections: RejectionCounts, namespace: str = "") -> None:
        self._call("add_rejections", rejections, namespace)

    def collect_counts(self, namespace: str = "", collector: int = 0) -> Batch | None:
        batch: Batch | None = self._call("collect_counts", namespace, collector)
        return batch

    def forget_counts(self, name: str, namespace: str = "") -> None:
        self._call("forget_counts", name, namespace)

    @property
    def unsettled(self) -> int:
        """The number of releases that wait for the store."""
        return len(self._recovery.pending)

    @property
    def is_full(self) -> bool:
        """Whether the store had no room for a request in the last minute; the circuit breaker counts none of them."""
        return self._full_at is not None and lasts(self._full_at, _FULL_US, self._clock())

    def settle_later(self, claim: Claim, changes: Amounts) -> None:
        """Settle a claim when the store is available again; see `PendingWork`."""
        if not self.unsettled:
            logger.warning("the store %r cannot settle a release now; it is settled later", self.alias)
        self._recovery.pending.add(claim, changes)
        self._recovery.start()

    def advance_version_later(self, changes: Collection[Change] = (ALL,), namespace: str = "") -> None:
        """Advance the version when the store is available again."""
        self._recovery.pending.announce(changes, namespace)
        self._recovery.start()

    def fallback(self) -> MemoryStore:
        """The store of this process that decides while this one is unavailable; dropped when it is available again."""
        return self._recovery.fallback()

    def count_degraded(self, policy: conf.OnUnavailable) -> None:
        """Count a decision that a policy made in place of the store."""
        with self._lock:
            self.degraded[policy] += 1

    def unavailable(self, cause: StoreUnavailable | None = None) -> StoreUnavailable:
        """The error for callers whose request the store did not answer, because of `cause` or of the last failure."""
        cause = cause or self.error
        error = StoreUnavailable(f"the store {self.alias!r} is unavailable: {cause}", retry_after=self.probe_seconds)
        if isinstance(cause, StoreFull):
            error = StoreFull(f"the store {self.alias!r} is full: {cause}", retry_after=self.probe_seconds)
        elif isinstance(cause, StoreBlocked):
            error = StoreBlocked(str(cause))
        error.__cause__ = cause
        return error

    def record_failure(self, error: StoreUnavailable) -> None:
        """Count a failure of the store outside of `_through_breaker`."""
        if self._note_failure(error):
            self.breaker.record(failed=True)
            self._recovery.start()

    def retire(self) -> None:
        """End probes, counting and pending work, because a test has changed the settings."""
        with self._lock:
            self.is_retired = True
            self.failing = False

    def _decided(self, request: SliceRequest, charged: Claim | None) -> bool:
        """See `Slices.decided`; slices are returned in the background, and when the process ends."""
        admitted = self.slices.decided(request, charged)
        self._slice_returns.start()
        at_end(self.return_all_slices)
        return admitted

    def _call(self, verb: str, *args: object, **options: object) -> Any:
        """Call a method of the store; the circuit breaker is used only where calls have failed lately."""
        if self.failing or TIMERS or self.inner is _UNOPENED:
            with self._through_breaker(verb):
                return getattr(self.inner, verb)(*args, **options)
        try:
            return getattr(self.inner, verb)(*args, **options)
        except StoreUnavailable as error:
            self.record_failure(error)
            raise self.unavailable(error) from error

    @contextmanager
    def _through_breaker(self, verb: str) -> Iterator[None]:
        """Make one call in the block if the circuit breaker lets it through; count and time it."""
        entry = self._enter() if self.failing else None
        started = perf_counter()
        failed: bool | None = None  # None: the circuit breaker does not count the call
        has_raised = False
        try:
            if self.inner is _UNOPENED:
                self.open_inner()
            yield
            failed = False
        except StoreUnavailable as error:
            has_raised, failed = True, self._note_failure(error) or None
            raise self.unavailable(error) from error
        except (LimitExceeded, StaleConfiguration):  # the store has answered
            failed = False
            raise
        finally:
            if entry is not None:
                self.breaker.leave(entry, failed=failed)
            elif failed:
                self.breaker.record(failed=True)
                self._recovery.start()
            for timer in TIMERS:
                timer(self.alias, verb, perf_counter() - started, failed=has_raised)

    def _enter(self) -> Entry:
        self._recovery.start()
        entry = self.breaker.enter()
        if entry is None:
            raise self.unavailable()
        return entry

    def _note_failure(self, error: StoreUnavailable) -> bool:
        """Keep and log a failure; returns whether the circuit breaker counts it: not StoreBlocked, nor once retired."""
        is_full, was_full = isinstance(error, StoreFull), self.is_full
        if not self.failing and not (is_full and was_full):
            logger.warning("the store %r %s: %s", self.alias, "is full" if is_full else "could not answer", error)
        self.error = error
        if is_full:
            self._full_at = self._clock()
            self._recovery.start()
        if isinstance(error, StoreBlocked):
            return False
        with self._lock:
            self.failing = not self.is_retired
        return self.failing

    def open_inner(self) -> Store:
        """Return the store of the settings, opened if it is not."""
        opened = self._open_store(self.alias)
        if opened is not self.inner:
            self._wrap(opened)
        return opened

    def _wrap(self, store: Store) -> None:
        self.clock = store.clock
        self.line = store.line
        self.renewer = store.renewer
        self.lease_us = store.lease_us
        self.poll_us = store.poll_us
        self.remote = store.remote
        self.counting = store.counting
        self.collectors = store.collectors if is_counting(store) else 0
        if is_remote(store):
            store.settle_later = self.settle_later
        self.inner: Store = store  # last: after an interruption, the next call repeats all of it

    def _remote(self) -> RemoteStore:
        return cast("RemoteStore", self.inner)

    def _state_changed(self, before: BreakerState, after: BreakerState) -> None:
        if self.is_retired:
            return
        if after is BreakerState.CLOSED:
            self.failing = False
            logger.warning("the store %r is available again", self.alias)
            signals.store_restored.send_robust(sender=None, alias=self.alias)
        elif before is BreakerState.CLOSED:
            logger.warning("the store %r is unavailable: policies decide without it: %s", self.alias, self.error)
            signals.store_degraded.send_robust(sender=None, alias=self.alias, error=self.error)

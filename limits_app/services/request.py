"""Requests: the one path from names and amounts to a decision, for every verb."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final, Protocol, TypeVar, cast, overload

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from limits_app import signals
from limits_app.acquiring import Acquisition, BoundLimits, LimitSet, checked_timeout, rejected_acquisition
from limits_app.engine import Requested
from limits_app.engine.errors import (
    InvalidRequest,
    LimitExceeded,
    LimitTimeout,
    NeverAdmissible,
    StaleConfiguration,
    StoreUnavailable,
    Unresolved,
)
from limits_app.engine.limits import Blocked
from limits_app.engine.outcome import Outcome
from limits_app.models.namespaces import (
    WHOLE_SITE,
    SiteNamespace,
    current_namespace,
    entered,
    in_task,
    is_of_thread,
    sources,
)
from limits_app.policies import MemberSet, PooledSet, ResolutionKey, ResolvedSet, resolver
from limits_app.services import notify
from limits_app.services.amounts import RequestedAmounts, amounts_for
from limits_app.services.shadow import afollow, count, follow, with_shadow
from limits_app.services.unavailable import check_exceeds_limits, fallback_of, without_limits

T = TypeVar("T")

_RECOVERABLE: Final = (StaleConfiguration, StoreUnavailable, LimitExceeded, InvalidRequest)

_IN_A_COROUTINE: Final = (
    "acquire, try_acquire and check may read the database: in a coroutine write `await limits.aacquire(...)`, "
    "`await limits.atry_acquire(...)` or `await limits.acheck(...)`"
)


class SetResolver(Protocol):
    """Resolves the effective limits of a key, and applies the changes that have made limits stale."""

    def cached(self, key: ResolutionKey, /) -> ResolvedSet | None: ...

    def read(self, key: ResolutionKey, /) -> ResolvedSet: ...

    def catch_up(self, key: ResolutionKey, stale: ResolvedSet | None, /) -> None: ...

    def follow(self, key: ResolutionKey, rejecting: ResolvedSet | None, /) -> bool:
        """`catch_up` after a rejection that asked no store; returns whether the limits were outdated."""


POLICIES: Final[SetResolver] = resolver
"""The source of the effective limits."""


class AmountsRequest:
    """A request for amounts of the effective limits of a key, which `source` resolves.

    When these limits have changed meanwhile, they are resolved again and the request is repeated.
    While their store is unavailable, other limits decide in place of those in the store; see `unavailable`.
    """

    requires_usage = True
    """Whether a block of what it acquires must report the usage of rates."""
    is_of_view = False
    """Whether it is what integrations charge a web request.

    Usage need not be reported then, and a rejection raises LimitExceeded. Whichever thread or task the view runs in
    holds the permits.
    """
    _time_left: Callable[[], float | None]
    """Returns how many seconds the request may still wait."""
    _resolved: ResolvedSet | None = None
    _shadowed: ResolvedSet | None = None
    """The resolved set, if it has limits in shadow mode that are still to be tried."""
    _fallback: LimitSet | None = None
    _try: Callable[[LimitSet, Requested], Acquisition] | None = None
    """Acquires without waiting, where that is more than `try_acquire`."""
    _extend: Callable[[LimitSet, Requested], LimitSet] | None = None
    """Returns other limits in place of those that decide, of which the amounts are requested."""
    _namespace: SiteNamespace
    """That in which the request was admitted, for its extensions."""

    def __init__(
        self,
        key: ResolutionKey,
        requested: RequestedAmounts,
        source: SetResolver = POLICIES,
        *,
        is_of_view: bool = False,
    ) -> None:
        self._key = key
        self._requested = requested
        self._source = source
        if is_of_view:
            self.requires_usage, self.is_of_view = False, True

    def acquire(self, timeout: float | None = 0) -> Acquisition:
        """Acquire, waiting up to `timeout` seconds (None: as long as it takes); LimitTimeout after that.

        With 0 a rejection is a falsy acquisition.
        """
        if timeout != 0:
            self._time_left = _countdown(timeout)
        acquisition = self._finish(self._use(self._try if timeout == 0 else self._wait))
        if self._shadowed is not None:
            acquisition = follow(acquisition, self._shadowed, self._requested)
        if self.is_of_view:
            if not acquisition.admitted:
                raise LimitExceeded.of(acquisition)
            if acquisition.shape.permits:
                acquisition.enter_block(elsewhere=True)
        return acquisition

    async def aacquire(self, timeout: float | None = 0) -> Acquisition:
        """`acquire` for asyncio."""
        if is_of_thread():
            async with in_task():
                return await self.aacquire(timeout)
        if timeout != 0:
            self._time_left = _countdown(timeout)
        acquired = await self._ause(self._atry if timeout == 0 else self._await)
        acquisition = self._finish(acquired, in_task=True)
        if self._shadowed is not None:
            acquisition = await afollow(acquisition, self._shadowed, self._requested)
        if self.is_of_view:
            if not acquisition.admitted:
                raise LimitExceeded.of(acquisition)
            if acquisition.shape.permits:
                acquisition.enter_block(elsewhere=True)
        return acquisition

    def peek(self) -> Outcome:
        """Return what `try_acquire` would decide now; consumes nothing, and is not counted as a rejection."""
        outcome = self._use(self._peek)
        if isinstance(outcome, NeverAdmissible):
            raise outcome
        return outcome

    def foresee(self, use: Callable[[Acquisition], T]) -> T:
        """Call `use` with the acquisition that `acquire` would ask a store for, undecided; again for newer limits.

        Of a pool it has the limits of all members. StaleConfiguration of `use` means that there are newer limits.
        """
        return self._use(lambda limits, amounts: use(limits.prepare(amounts, checks=False)))

    def is_over(self, limits: BoundLimits) -> bool:
        """See `LimitsSource.is_over`."""
        return limits.changes_at is not None and limits.changes_at <= resolver.clock()

    def latest(self, stale: BoundLimits) -> LimitSet:
        """See `LimitsSource.latest`; an extension is charged by the present limits of the same namespace."""
        with entered(self._namespace):
            self._recover(StaleConfiguration())  # the limits that were resolved before are outdated
            return _of_same_member(self._use(lambda limits, _: limits), stale)

    async def alatest(self, stale: BoundLimits) -> LimitSet:
        """See `LimitsSource.alatest`."""
        if is_of_thread() or current_namespace() != self._namespace:
            return await sync_to_async(self.latest)(stale)

        async def found(limits: LimitSet, _: Requested) -> LimitSet:
            return limits

        await self._arecover(StaleConfiguration())
        return _of_same_member(await self._ause(found), stale)

    def report(self, extension: Acquisition, *, in_task: bool) -> None:
        """See `LimitsSource.report`."""
        with entered(self._namespace):
            if extension.successful:
                notify.admitted(self._key[0], extension, in_task=in_task)
            else:
                notify.rejected(extension.outcome)

    @overload
    def _use(self, use: Callable[[LimitSet, Requested], Acquisition] | None) -> Acquisition: ...

    @overload
    def _use(self, use: Callable[[LimitSet, Requested], T]) -> T: ...

    def _use(self, use: Any) -> Any:
        """Call `use` with the effective limits and the amounts, again after an error that `_recover` handles.

        None is for `try_acquire` of the limits.
        """
        try:
            while True:
                try:
                    limits, requested = self._fallback, self._requested
                    if limits is None:
                        resolved = self._source.cached(self._key) or self._source.read(self._key)
                        self._resolved, self._shadowed = resolved, None if resolved.shadow is None else resolved
                        limits = resolved.limit_set if resolved.available else resolved.in_store()
                except _RECOVERABLE as error:
                    self._recover(error)
                    continue
                try:
                    amounts = requested(limits) if callable(requested) else requested
                except Exception as error:  # noqa: BLE001 - of the site; it is raised unless it may be of outdated limits
                    self._follow(error)
                    continue
                try:
                    if self._extend is not None:
                        limits = self._extend(limits, amounts)
                    return limits.try_acquire(amounts) if use is None else use(limits, amounts)
                except _RECOVERABLE as error:
                    self._recover(error)
        except SynchronousOnlyOperation as error:
            raise SynchronousOnlyOperation(_IN_A_COROUTINE) from error

    async def _ause(self, use: Callable[[LimitSet, Requested], Awaitable[T]]) -> T:
        """`_use` for asyncio: a thread reads the database."""
        while True:
            try:
                limits, requested = self._fallback, self._requested
                if limits is None:
                    resolved = self._source.cached(self._key) or await sync_to_async(self._source.read)(self._key)
                    self._resolved, self._shadowed = resolved, None if resolved.shadow is None else resolved
                    limits = resolved.limit_set if resolved.available else resolved.in_store()
            except _RECOVERABLE as error:
                await self._arecover(error)
                continue
            try:
                amounts = amounts_for(limits, requested)
            except Exception as error:  # noqa: BLE001 - as in `_use`
                await sync_to_async(self._follow)(error)
                continue
            try:
                if self._extend is not None:
                    limits = self._extend(limits, amounts)
                return await use(limits, amounts)
            except _RECOVERABLE as error:
                await self._arecover(error)

    def _recover(self, error: Exception) -> None:
        """Prepare the next try after an error; raise where another try cannot help."""
        if isinstance(error, InvalidRequest):
            self._follow(error)
            return
        fallback, self._fallback, self._shadowed = self._fallback, None, None
        if isinstance(error, StaleConfiguration):
            self._source.catch_up(self._key, self._resolved)
        elif isinstance(error, LimitExceeded):
            if fallback is not None and self._resolved is not None:
                check_exceeds_limits(error, self._resolved)
            elif self._resolved is not None and (rejected := rejected_acquisition(error)) is not None:
                count(self._resolved, rejected, self._key[1])
            notify.rejected(error.outcome, waited=isinstance(error, LimitTimeout))
            raise error
        elif fallback is not None:
            raise error
        elif isinstance(error, Unresolved):
            self._resolved, self._fallback = None, without_limits(error)
        else:
            self._fallback = fallback_of(cast("ResolvedSet", self._resolved))

    def _follow(self, error: Exception) -> None:
        """Apply changes of the limits behind an error, for which no store was asked; raise it where there are none."""
        if self._fallback is not None or not self._source.follow(self._key, self._resolved):
            raise error

    async def _arecover(self, error: Exception) -> None:
        """`_recover` for asyncio: a thread reads what has changed."""
        if isinstance(error, StaleConfiguration | InvalidRequest):
            await sync_to_async(self._recover)(error)
        else:
            self._recover(error)

    async def _atry(self, limits: LimitSet, amounts: Requested) -> Acquisition:
        return await limits.atry_acquire(amounts)

    def _wait(self, limits: LimitSet, amounts: Requested) -> Acquisition:
        with waiting_time(limits, self._time_left()) as seconds:
            return limits.acquire(amounts, seconds)

    async def _await(self, limits: LimitSet, amounts: Requested) -> Acquisition:
        with waiting_time(limits, self._time_left()) as seconds:
            return await limits.aacquire(amounts, seconds)

    def _peek(self, limits: LimitSet, amounts: Requested) -> Outcome | NeverAdmissible:
        """The outcome, or the error as a value: an error that is raised is counted as a rejection."""
        try:
            shadow = None if self._shadowed is None else self._shadowed.shadow
            return with_shadow(limits.peek(amounts), shadow, self._requested)
        except NeverAdmissible as error:
            return error

    def _finish(self, acquisition: Acquisition, *, in_task: bool = False) -> Acquisition:
        """Count and notify of a decision; return the acquisition that the caller receives."""
        if self._fallback is None and self._resolved is not None and self._resolved.evaluated:
            count(self._resolved, acquisition, self._key[1])
        if not acquisition.admitted:
            notify.rejected(acquisition.outcome)
            return acquisition
        if notify.OBSERVERS or signals.limit_near.receivers:
            notify.admitted(self._key[0], acquisition, in_task=in_task)
        if acquisition.limit_set.version is not None:  # limits without a version never change
            acquisition.source, self._namespace = self, current_namespace() if sources.is_used else WHOLE_SITE
            acquisition.requires_usage = self.requires_usage
        return acquisition


@contextmanager
def waiting_time(limits: LimitSet, seconds: float | None, *, longest: float | None = None) -> Iterator[float | None]:
    """Yield how many seconds a block may wait: `seconds` (None: indefinitely), or until a date changes the limits.

    Raises StaleConfiguration when such a date ends the wait, so that the rest of it is for the new limits. An entity
    that is blocked throughout does not wait: that raises LimitExceeded immediately. `longest` limits a single wait.
    """
    until_change = None if limits.changes_at is None else max(limits.changes_at - resolver.clock(), 0)
    ends_by_change = until_change is not None and (seconds is None or until_change < seconds)
    wait_seconds = min([most for most in (seconds, longest, until_change) if most is not None], default=None)
    blocked = not ends_by_change and any(isinstance(limit, Blocked) for limit in limits)
    try:
        with notify.waiting():
            yield 0 if blocked else wait_seconds
    except LimitTimeout as error:
        if blocked and seconds != 0:
            immediately = LimitExceeded(error.outcome)
            immediately.refused = error.refused
            raise immediately from error
        if ends_by_change and wait_seconds == until_change:
            raise StaleConfiguration("the limits have changed at a scheduled date") from error
        raise


def _of_same_member(limits: LimitSet, stale: BoundLimits) -> LimitSet:
    """The limits for the member of a pool that served a request before; StaleConfiguration where it does not any more.

    Limits without a pool are returned as they are.
    """
    if not isinstance(limits, PooledSet):
        return limits
    for member_set in limits.pool:
        if isinstance(stale, MemberSet) and isinstance(member_set, MemberSet) and member_set.member == stale.member:
            return member_set
    raise StaleConfiguration("the members of the pool have changed: release the acquisition, and acquire again")


def _countdown(timeout: float | None) -> Callable[[], float | None]:
    """Start a timeout; the function returns the seconds that are left."""
    seconds = checked_timeout(timeout)
    deadline = None if seconds is None else monotonic() + seconds
    return lambda: None if deadline is None else max(deadline - monotonic(), 0)

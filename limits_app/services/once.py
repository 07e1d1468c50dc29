"""Once: a request that comes again with its key is admitted without being charged again.

Beside the limits of the request stands one that admits its key once, charged in the same step: so whoever comes second
is refused by that limit, on every store, which says that the first one was admitted.
Whoever fails, or cancels, and gives something back gives the key back with it, in the same step: what comes again then
is charged. So the limit is a bucket of one: it gives back, and is as full again as one takes when its time is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from limits_app import conf
from limits_app.core.acquisition import Acquisition, FreeAcquisition
from limits_app.core.amounts import Amount
from limits_app.core.errors import LimitTimeout
from limits_app.core.keys import IDEMPOTENCY_LEVEL, Scope, check_idempotency_key, idempotency_scope
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, RateLimitAlgorithm
from limits_app.core.plan import Plan, ScopedLimits
from limits_app.core.record import schema_of
from limits_app.resolver import Key, Limits, PooledSet, ResolvedSet
from limits_app.services.asking import Asked, amounts_for
from limits_app.services.freshness import Resolving, afresh, fresh, tell
from limits_app.services.patience import countdown, while_it_holds
from limits_app.services.shadowing import afollow, follow

__all__ = ["Once"]

_NOTHING: Final = Plan((), (), (), version=None)
_TURN_SECONDS: Final = 10.0
"""How long to wait at a stretch, since meanwhile the same request may be admitted elsewhere."""


class Once:
    """A request with an idempotency key: `of` is what the resolver knows its limits by.

    `others` are the resources that it is for beside that one.

    Raises InvalidRequest for a key that is no text of 1 to 255 characters.
    """

    def __init__(self, key: object, of: Key, asked: Asked, *others: str, by: Resolving) -> None:
        self._of = of
        self._asked = asked
        self._by = _WithKey(by, idempotency_scope(*of[:2], check_idempotency_key(key), *others))

    def try_acquire(self) -> Acquisition:
        """Acquire now or not at all."""
        return self._answer(fresh(*self._of, self._try, by=self._by))

    async def atry_acquire(self) -> Acquisition:
        """`try_acquire` for asyncio."""
        return await self._aanswer(await afresh(*self._of, self._atry, by=self._by))

    def acquire(self, timeout: float | None) -> Acquisition:
        """Acquire, waiting up to `timeout` seconds."""
        left = countdown(timeout)

        def wait(found: LimitSet) -> Acquisition:
            while not self._is_answered(acquisition := self._try(found)):
                if left() == 0:
                    raise LimitTimeout.of(acquisition)
                with suppress(LimitTimeout), while_it_holds(found, left(), turn=_TURN_SECONDS) as seconds:
                    return found.acquire(amounts_for(found, self._asked), seconds)
            return acquisition

        return self._answer(fresh(*self._of, wait, by=self._by))

    async def aacquire(self, timeout: float | None) -> Acquisition:
        """`acquire` for asyncio."""
        left = countdown(timeout)

        async def wait(found: LimitSet) -> Acquisition:
            while not self._is_answered(acquisition := await self._atry(found)):
                if left() == 0:
                    raise LimitTimeout.of(acquisition)
                with suppress(LimitTimeout), while_it_holds(found, left(), turn=_TURN_SECONDS) as seconds:
                    return await found.aacquire(amounts_for(found, self._asked), seconds)
            return acquisition

        return await self._aanswer(await afresh(*self._of, wait, by=self._by))

    def _try(self, found: LimitSet) -> Acquisition:
        return found.try_acquire(amounts_for(found, self._asked))

    async def _atry(self, found: LimitSet) -> Acquisition:
        return await found.atry_acquire(amounts_for(found, self._asked))

    def _is_answered(self, acquisition: Acquisition) -> bool:
        return acquisition.successful or self._by.was_admitted(acquisition)

    def _answer(self, acquisition: Acquisition) -> Acquisition:
        return follow(acquisition, self._asked) if acquisition.successful else self._refused(acquisition)

    async def _aanswer(self, acquisition: Acquisition) -> Acquisition:
        return await afollow(acquisition, self._asked) if acquisition.successful else self._refused(acquisition)

    def _refused(self, acquisition: Acquisition) -> Acquisition:
        if self._by.was_admitted(acquisition):
            return Repeated(acquisition.limit_set, _NOTHING)
        tell(acquisition.outcome)
        return acquisition


class Repeated(FreeAcquisition):
    """What a request gets whose key was admitted before: nothing is charged, so nothing is reported."""

    __slots__ = ()

    def update(self, usage: Mapping[str, Amount]) -> None:
        """Nothing to report: the first one does."""


class _WithKey:
    """Resolves the limits of a request, and puts beside them the one that admits its key once."""

    def __init__(self, by: Resolving, scope: Scope) -> None:
        self._by = by
        self._scope = scope
        self._found: ResolvedSet | None = None

    def was_admitted(self, acquisition: Acquisition) -> bool:
        """Whether an acquisition is refused since its key was admitted before."""
        buckets, _ = acquisition.claim.refusal()
        return any(scope == self._scope.key for scope, _ in buckets)

    def kept(self, *key: Any) -> ResolvedSet | None:
        """See `Resolving.kept`."""
        self._found = self._by.kept(*key)
        return None if self._found is None else self._with_key(self._found)

    def limit_set(self, *key: Any) -> ResolvedSet:
        """See `Resolving.limit_set`."""
        self._found = self._by.limit_set(*key)
        return self._with_key(self._found)

    def without_store(self, *key: Any) -> ResolvedSet:
        """See `Resolving.without_store`: nobody knows which keys were admitted."""
        self._found = self._by.without_store(*key)
        return self._found

    def forget(self, resource: str, entity: str | None, default_limits: Limits, _stale: ResolvedSet | None) -> None:
        """See `Resolving.forget`."""
        self._by.forget(resource, entity, default_limits, self._found)

    def _with_key(self, found: ResolvedSet) -> ResolvedSet:
        if not found.scoped:
            return found
        once = CallLimit(1, conf.get(conf.IDEMPOTENCY_SECONDS), RateLimitAlgorithm.TOKEN_BUCKET)
        layout = schema_of((once,), found.store.lease_us)
        own = (*found.own, ScopedLimits(self._scope, layout, IDEMPOTENCY_LEVEL, prefix=f"{IDEMPOTENCY_LEVEL}:"))
        if found.supply is None:
            joined = ResolvedSet.composed(own, found.store, version=found.version)
        else:
            joined = PooledSet.serving(own, found.supply, found.store, version=found.version)
        joined.resolved_for(found.of, found.alias)
        joined.changing_at(found.changes_at)
        joined.on_unavailable = found.on_unavailable
        if found.shadow is not None:
            joined.try_out(found.shadow)
        return joined

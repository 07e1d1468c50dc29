"""Idempotency keys: a request that is repeated with its key is admitted without being charged again.

A limit of 1 for the key is charged in the same step as the limits of the request. A repeated request is rejected by
that limit, on every store, which shows that the first one was admitted.
A request that fails, or is cancelled, refunds the key in the same step as its amounts, so that the next one is charged.
The limit is a token bucket, since that refunds, and is full again after IDEMPOTENCY_SECONDS.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from limits_app import conf
from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount, Requested
from limits_app.core.errors import LimitTimeout
from limits_app.core.keys import IDEMPOTENCY_LEVEL, check_idempotency_key, idempotency_scope
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, RateLimitAlgorithm
from limits_app.core.plan import Plan, ScopedLimits
from limits_app.core.record import schema_of
from limits_app.core.special_acquisitions import FreeAcquisition
from limits_app.resolver.cache import Key
from limits_app.resolver.resolved_set import ResolvedSet
from limits_app.services.amounts import RequestedAmounts
from limits_app.services.request import Request, Source, waiting_time

_NOTHING: Final = Plan((), (), (), version=None)
_LOOK_SECONDS: Final = 10.0
"""The longest wait between two looks at the key, since another process may admit the same request meanwhile."""


class IdempotentRequest(Request):
    """A request with an idempotency key; `others` are its resources beside the one of its key.

    Raises InvalidRequest for an idempotency key that is not a text of 1 to 255 characters.
    """

    def __init__(
        self, idempotency_key: object, key: Key, requested: RequestedAmounts, source: Source, *others: str
    ) -> None:
        super().__init__(key, requested, source)
        self._scope = idempotency_scope(*key[:2], check_idempotency_key(idempotency_key), *others)

    def _limits(self, resolved: ResolvedSet) -> LimitSet:
        limits = super()._limits(resolved)
        if not limits.scoped and resolved.shadow is None:
            return limits
        one = CallLimit(1, conf.get(conf.IDEMPOTENCY_SECONDS), RateLimitAlgorithm.TOKEN_BUCKET)
        schema = schema_of((one,), limits.store.lease_us)
        return resolved.with_scope(ScopedLimits(self._scope, schema, IDEMPOTENCY_LEVEL, prefix=f"{IDEMPOTENCY_LEVEL}:"))

    def _wait(self, limits: LimitSet, amounts: Requested) -> Acquisition:
        while not self._is_final(acquisition := limits.try_acquire(amounts)):
            with suppress(LimitTimeout), waiting_time(limits, self._time_left(), longest=_LOOK_SECONDS) as seconds:
                return limits.acquire(amounts, seconds)
        return acquisition

    async def _await(self, limits: LimitSet, amounts: Requested) -> Acquisition:
        while not self._is_final(acquisition := await limits.atry_acquire(amounts)):
            with suppress(LimitTimeout), waiting_time(limits, self._time_left(), longest=_LOOK_SECONDS) as seconds:
                return await limits.aacquire(amounts, seconds)
        return acquisition

    def _is_final(self, acquisition: Acquisition) -> bool:
        """Whether a request need not wait; LimitTimeout where it may not wait any longer."""
        if acquisition.successful or self._was_admitted(acquisition):
            return True
        if self._time_left() == 0:
            raise LimitTimeout.of(acquisition)
        return False

    def _was_admitted(self, acquisition: Acquisition) -> bool:
        """Whether an acquisition was rejected since its key was admitted before."""
        buckets, _ = acquisition.claim.refusal()
        return any(scope == self._scope.key for scope, _ in buckets)

    def _finish(self, acquisition: Acquisition, *, in_task: bool = False) -> Acquisition:
        if not acquisition.successful and self._was_admitted(acquisition):
            self._shadowed = None  # the first request has tried the limits in shadow mode
            return ReplayedAcquisition(acquisition.limit_set, _NOTHING)
        return super()._finish(acquisition, in_task=in_task)


class ReplayedAcquisition(FreeAcquisition):
    """The acquisition of a request whose key was admitted before: nothing is charged, and no usage is recorded."""

    __slots__ = ()

    def update(self, usage: Mapping[str, Amount]) -> None:
        """Record nothing: the first request reports the usage."""

"""Idempotency keys: a request that is repeated with its key is admitted without being charged again.

Two limits of 1 are charged in the same step as the limits of the request: one for the key, and one for the key with the
amounts of the request. When both reject, on every store, the same request was admitted before; when only the first one
does, another request was admitted with the key.
A repeated request takes its permits again, in a second step that shows whether the key is still charged.
A request that fails, or is cancelled, refunds the key in the same step as its amounts, so that the next one is charged.
The limits are token buckets, since these refund, and are full again after IDEMPOTENCY_SECONDS.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from limits_app import conf
from limits_app.acquiring import Acquisition, LimitSet
from limits_app.engine import (
    IDEMPOTENCY_LEVEL,
    PermitsOnly,
    Requested,
    ScopedLimits,
    amounts_scope,
    check_idempotency_key,
    class_named,
    idempotency_scope,
    schema_of,
    shown,
)
from limits_app.engine.errors import InvalidRequest, LimitTimeout
from limits_app.engine.limits import CallLimit, RateLimitAlgorithm
from limits_app.policies import ResolutionKey
from limits_app.services.amounts import RequestedAmounts, amounts_for
from limits_app.services.request import AmountsRequest, SetResolver, waiting_time

_PREFIX: Final = f"{IDEMPOTENCY_LEVEL}:"
_LOOK_SECONDS: Final = 10.0
"""The longest wait between two looks at the key, since another process may admit the same request meanwhile."""


class IdempotentRequest(AmountsRequest):
    """A request with an idempotency key; `others` are its resources beside the one of its key.

    Raises InvalidRequest for an idempotency key that is not a text of 1 to 255 characters.
    """

    def __init__(
        self,
        idempotency_key: object,
        key: ResolutionKey,
        requested: RequestedAmounts,
        source: SetResolver,
        *others: str,
    ) -> None:
        super().__init__(key, requested, source)
        self._idempotency_key = check_idempotency_key(idempotency_key)
        self._resources = (key[0], *others)
        self._key_scope = idempotency_scope(*key[:2], self._idempotency_key, *others)
        self._same_scope = self._key_scope
        self._requested_amounts: Requested = None
        self._is_repeated = False

    def _extend(self, limits: LimitSet, amounts: Requested) -> LimitSet:
        """Return the limits with those of the key; limits in place of an unavailable store have none."""
        resolved = self._resolved
        if self._fallback is not None or resolved is None or not (limits.scoped or resolved.shadow is not None):
            return limits
        return resolved.with_scopes(self._more_scopes(limits, amounts))

    def _more_scopes(self, limits: LimitSet, amounts: Requested) -> list[ScopedLimits]:
        """Return the limits that are charged in the same step as those of the request."""
        self._requested_amounts = amounts
        self._same_scope = amounts_scope(self._key_scope, amounts if isinstance(amounts, Mapping) else {})
        once = CallLimit(1, conf.get(conf.IDEMPOTENCY_SECONDS), RateLimitAlgorithm.TOKEN_BUCKET)
        schema = schema_of((once,), limits.store.lease_us)
        scopes = (self._key_scope, self._same_scope)
        return [ScopedLimits(scope, schema, IDEMPOTENCY_LEVEL, prefix=_PREFIX) for scope in scopes]

    def _try(self, limits: LimitSet, amounts: Requested) -> Acquisition:
        while True:
            acquisition = limits.try_acquire(amounts)
            if self._repeats(acquisition):
                acquisition = limits.try_acquire(_permits_of(amounts))
            if self._is_valid(acquisition):
                return acquisition
            acquisition.cancel()

    async def _atry(self, limits: LimitSet, amounts: Requested) -> Acquisition:
        while True:
            acquisition = await limits.atry_acquire(amounts)
            if self._repeats(acquisition):
                acquisition = await limits.atry_acquire(_permits_of(amounts))
            if self._is_valid(acquisition):
                return acquisition
            await acquisition.acancel()

    def _wait(self, limits: LimitSet, amounts: Requested) -> Acquisition:
        while not (acquisition := self._try(limits, amounts)):
            self._check_time_left(acquisition)
            with suppress(LimitTimeout), waiting_time(limits, self._time_left(), longest=_LOOK_SECONDS) as seconds:
                acquisition = limits.acquire(_permits_of(amounts) if self._is_repeated else amounts, seconds)
                if self._is_valid(acquisition):
                    break
                acquisition.cancel()
        return acquisition

    async def _await(self, limits: LimitSet, amounts: Requested) -> Acquisition:
        while not (acquisition := await self._atry(limits, amounts)):
            self._check_time_left(acquisition)
            with suppress(LimitTimeout), waiting_time(limits, self._time_left(), longest=_LOOK_SECONDS) as seconds:
                acquisition = await limits.aacquire(_permits_of(amounts) if self._is_repeated else amounts, seconds)
                if self._is_valid(acquisition):
                    break
                await acquisition.acancel()
        return acquisition

    def _check_time_left(self, rejected: Acquisition) -> None:
        """Raise LimitTimeout where a request may not wait any longer."""
        if self._time_left() == 0:
            raise LimitTimeout.of(rejected)

    def _repeats(self, acquisition: Acquisition) -> bool:
        """Whether an acquisition was rejected since the same request was admitted before.

        Raises InvalidRequest where another request was admitted with the key. A block applies to repetitions too.
        """
        self._is_repeated = False
        if acquisition.successful or acquisition.is_blocked:
            return False
        charged = self._charged_scopes(acquisition)
        if self._key_scope.key in charged and self._same_scope.key not in charged:
            resources = ", ".join(self._resources)
            raise InvalidRequest(
                f"idempotency key {shown(self._idempotency_key)} was used for a request of {resources} with other "
                f"amounts than {shown(dict(self._requested_amounts or {}))}: repeat a request with the same "
                "amounts, and use a new key for each other request"
            )
        self._is_repeated = self._same_scope.key in charged
        return self._is_repeated

    def _is_valid(self, acquisition: Acquisition) -> bool:
        """Whether a decision may stand; not where a repeated request took permits after its key was refunded."""
        is_taken = self._is_repeated and acquisition.successful
        return not is_taken or self._same_scope.key in self._charged_scopes(acquisition)

    def _charged_scopes(self, acquisition: Acquisition) -> set[str]:
        """The scopes of the key in which a request was charged before, at the time of the decision."""
        return {
            scope.key
            for limit, scope, state in acquisition.limits()
            if limit.level == IDEMPOTENCY_LEVEL
            and limit.rule.charged(state, acquisition.decided_at, limit.rule.parts_per_unit) is None
        }

    def _finish(self, acquisition: Acquisition, *, in_task: bool = False) -> Acquisition:
        if self._is_repeated:
            requested = self._requested
            acquisition.mark_repeated()
            self._requested = lambda limits: _permits_of(
                amounts_for(limits, requested)
            )  # also of limits in shadow mode
        return super()._finish(acquisition, in_task=in_task)


def _permits_of(amounts: Requested) -> PermitsOnly:
    """The request for the permits of a repeated request, which charges its idempotency key with 0."""
    permits = PermitsOnly({**(amounts or {}), f"{_PREFIX}{CallLimit.key}": 0})
    permits.priority = class_named(amounts)
    return permits

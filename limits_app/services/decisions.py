"""Decisions for other programs: they acquire by a request, and receive a token that holds the charged amounts.

The acquisition has a lease in the store, also where it takes no permits. Each verb changes something only while the
lease is there, in the same step, so that a token is of no use twice. Amounts that are never settled count as used, and
permits end with the lease.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from limits_app.acquiring import Acquisition, BoundLimits, LimitSet
from limits_app.engine import (
    IDEMPOTENCY_LEVEL,
    LEASE_KEY,
    LEASE_LEVEL,
    LONGEST_LEASE_SECONDS,
    SECOND_US,
    GivenAmount,
    Requested,
    ScopedLimits,
    check_amounts,
    check_resource,
    is_token_holder,
    lease_limits,
    leased_us,
    of_class,
)
from limits_app.engine.errors import InvalidRequest, LeaseEnded, LimitExceeded, StoreUnavailable
from limits_app.engine.limits import Blocked
from limits_app.engine.outcome import LimitStatus, Outcome
from limits_app.models.namespaces import current_namespace
from limits_app.policies import ResolutionKey, resolver
from limits_app.services.amounts import key_of, not_limited, one_client
from limits_app.services.idempotency import IdempotentRequest
from limits_app.services.request import AmountsRequest
from limits_app.services.tokens import Token, read_token
from limits_app.stores.registry import resilient_store

__all__ = [
    "DEFAULT_LEASE_SECONDS",
    "LONGEST_LEASE_SECONDS",
    "Decision",
    "acquire_for",
    "cancel",
    "extend",
    "renew",
    "settle",
]

DEFAULT_LEASE_SECONDS: Final = 60
_OWN_PREFIXES: Final = (f"{LEASE_LEVEL}:", f"{IDEMPOTENCY_LEVEL}:")
"""How the keys begin that a decision charges itself, which a program cannot name."""


@dataclass(frozen=True, slots=True)
class Decision:
    """An acquisition that was admitted for another program.

    `token` is None where a policy has decided in place of the store: then nothing is held, and nothing is to be
    settled. `lease_seconds` is how long it is held without renewal.
    """

    acquisition: Acquisition
    token: str | None
    lease_seconds: float

    @property
    def outcome(self) -> Outcome:
        """The decision, of an extension the latest one."""
        return self.acquisition.parts()[-1].outcome

    @property
    def limits(self) -> list[LimitStatus]:
        """The limits that have admitted it, without that of an idempotency key."""
        return [status for status in self.outcome.passed if status.level != IDEMPOTENCY_LEVEL]


def acquire_for(
    principal: str,
    resource: str,
    *,
    entity: str | None = None,
    amounts: Mapping[str, GivenAmount] | None = None,
    lease_seconds: float = DEFAULT_LEASE_SECONDS,
    idempotency_key: str | None = None,
    priority: str | None = None,
) -> Decision:
    """Acquire now or not at all for a user of the API, who receives a token.

    Amounts, idempotency keys and the priority are those of `try_acquire`; an unknown key is an InvalidRequest. A
    request that is repeated with its idempotency key receives another token, which holds its permits.
    Raises LimitExceeded for a rejection, NeverAdmissible for more than can ever be admitted, InvalidRequest for invalid
    amounts or a lease of less than a second or more than an hour, and StoreUnavailable.
    """
    client = one_client(entity)
    lease = lease_limits(check_resource(resource), client, round(lease_seconds * 1000) * 1000)
    request: _HeldRequest | _IdempotentHeldRequest
    key, requested = _key(resource, client, None), of_class(amounts or None, priority)
    if idempotency_key is None:
        request = _HeldRequest(key, requested, lease)
    else:
        request = _IdempotentHeldRequest(idempotency_key, key, requested, lease)
    acquisition = request.acquire()
    if not acquisition.successful:
        raise LimitExceeded.of(acquisition)
    if not is_token_holder(acquisition.holder):
        return Decision(acquisition, None, lease_seconds)
    token = Token(principal, (resource, client, None), request.alias, acquisition)
    return Decision(acquisition, _text_of(token), lease_seconds)


def extend(text: str, principal: str, amounts: Mapping[str, GivenAmount]) -> Decision:
    """Take more of the named limits for what a token holds; see `Acquisition.extend`. The token is replaced.

    Raises LeaseEnded where the lease of the token is not there any more, and the errors of `acquire_for`.
    """
    token = read_token(text, principal)
    acquisition = token.acquisition
    if not amounts:
        raise InvalidRequest("an extension must have amounts of at least one limit")
    _check_known(amounts, acquisition.limit_set)
    resource, entity, plan = token.key
    request = _HeldRequest(_key(resource, entity, plan), amounts, _lease_of(acquisition), alias=token.alias)
    request.enter_namespace()
    acquisition.source = request
    acquisition.extend({**amounts, LEASE_KEY: 1})
    try:
        replaced = str(token)
    except InvalidRequest:
        acquisition.extensions[-1].give_up()
        raise
    return Decision(acquisition, replaced, _lease_us(acquisition) / SECOND_US)


def settle(text: str, principal: str, usage: Mapping[str, GivenAmount] | None = None) -> None:
    """Report the used amounts of what a token holds, and release it; unreported amounts count as used.

    Raises LeaseEnded where the lease of the token is not there any more, InvalidRequest for invalid usage, and
    StoreUnavailable where the store does not answer: it is settled later.
    """
    acquisition = read_token(text, principal).acquisition
    if usage:
        # The first request reports the amounts of one that was repeated with its idempotency key.
        reportable = (
            acquisition.acquisitions.keys() | acquisition.requested.keys()
            if acquisition.is_repeated
            else acquisition.acquisitions.keys()
        )
        if unknown := sorted(usage.keys() - reportable):
            raise not_limited(unknown, acquisition.acquisitions)
        acquisition.update(usage)
    acquisition.release()
    _check_settled(acquisition)


def cancel(text: str, principal: str) -> None:
    """Return the permits of what a token holds, and refund its amounts where the algorithm can.

    Raises LeaseEnded where the lease of the token is not there any more, and StoreUnavailable as `settle` does.
    """
    acquisition = read_token(text, principal).acquisition
    acquisition.cancel()
    _check_settled(acquisition)


def renew(text: str, principal: str) -> float:
    """Begin the lease of a token again, and those of its permits; return how many seconds it lasts.

    Raises LeaseEnded where one of them is not there any more, and StoreUnavailable.
    """
    acquisition = read_token(text, principal).acquisition
    if acquisition.limit_set.store.renew(acquisition.parts()):
        raise _ended()
    return _lease_us(acquisition) / SECOND_US


class _HeldRequest(AmountsRequest):
    """A request whose acquisition a token holds by a lease; `alias` is that of the store that it is extended in."""

    def __init__(self, key: ResolutionKey, requested: Requested, lease: ScopedLimits, *, alias: str = "") -> None:
        super().__init__(key, requested)
        self._lease = lease
        self._alias = alias

    @property
    def alias(self) -> str:
        """The alias of the store that has admitted it."""
        return self._alias if self._resolved is None else self._resolved.alias

    def enter_namespace(self) -> None:
        """Extend it in the present namespace."""
        self._namespace = current_namespace()

    def latest(self, stale: BoundLimits) -> LimitSet:
        """See `LimitsSource.latest`; StoreUnavailable where the store cannot extend it."""
        limits = super().latest(stale)
        if LEASE_KEY not in limits.keys:
            raise resilient_store(self._alias).unavailable()
        return limits

    def _extend(self, limits: LimitSet, amounts: Requested) -> LimitSet:
        """Return the limits with the lease; limits in place of an unavailable store have none."""
        if amounts and limits.scoped:
            _check_known(amounts, limits)
        if self._fallback is not None or self._resolved is None:
            return limits
        return self._resolved.with_scopes([self._lease])


class _IdempotentHeldRequest(IdempotentRequest):
    """A request with an idempotency key whose acquisition a token holds."""

    def __init__(self, idempotency_key: str, key: ResolutionKey, requested: Requested, lease: ScopedLimits) -> None:
        super().__init__(idempotency_key, key, requested, resolver)
        self._lease = lease

    @property
    def alias(self) -> str:
        """The alias of the store that has admitted it."""
        return "" if self._resolved is None else self._resolved.alias

    def _extend(self, limits: LimitSet, amounts: Requested) -> LimitSet:
        """Return the limits with those of the key and the lease."""
        extended = super()._extend(limits, amounts)
        if extended is limits and self._fallback is None and self._resolved is not None:  # nothing is limited
            return self._resolved.with_scopes([self._lease])
        return extended

    def _more_scopes(self, limits: LimitSet, amounts: Requested) -> list[ScopedLimits]:
        if amounts and limits.scoped:
            _check_known(amounts, limits)
        return [*super()._more_scopes(limits, amounts), self._lease]


def _key(resource: str, entity: str | None, plan: str | None) -> ResolutionKey:
    return key_of(resource, entity, resolver.code_limits(resource), plan)


def _text_of(token: Token) -> str:
    try:
        return str(token)
    except InvalidRequest:
        token.acquisition.give_up()
        raise


def _check_known(amounts: Mapping[str, GivenAmount], limits: BoundLimits) -> None:
    """Raise InvalidRequest for a key that no limit has: in a program without these limits it is a mistake."""
    check_amounts("amounts", amounts)
    keys = {key for key in limits.keys if not key.startswith(_OWN_PREFIXES)}
    unknown = sorted(amounts.keys() - keys)
    if unknown and keys and Blocked.key not in keys:
        raise not_limited(unknown, keys, is_requested=True)


def _lease_of(acquisition: Acquisition) -> ScopedLimits:
    """The lease of what a token holds."""
    lease = acquisition.shape.token_lease
    if lease is None:
        raise _ended()
    scope = acquisition.plan.scopes[lease.scope_index]
    return next(scoped for scoped in acquisition.limit_set.scoped if scoped.scope == scope)


def _lease_us(acquisition: Acquisition) -> int:
    lease = acquisition.shape.token_lease
    return 0 if lease is None else leased_us(lease.rule, acquisition.holder)


def _check_settled(acquisition: Acquisition) -> None:
    if acquisition.is_over:
        raise _ended()
    if acquisition.put_off:
        raise StoreUnavailable("the store does not answer: the token is settled when it does", retry_after=1)


def _ended() -> LeaseEnded:
    return LeaseEnded("the lease of the token has ended, or the token was settled before: nothing was changed")

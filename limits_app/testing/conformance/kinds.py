"""Kinds: limits of a scope in use that become limits of another kind, block everything, or are removed, and return."""

from __future__ import annotations

from typing import Final

import pytest

from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import (
    AnyLimit,
    Blocked,
    CallLimit,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.core.plan import Claim
from limits_app.core.store import Store
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import ALGORITHMS, Contract, limits_of, settle, taken

__all__ = ["Kinds"]

_KEY: Final = CallLimit.key
"""The only key that all kinds of limits can have."""
_DAY: Final = 86_400
_SEVERAL: Final[tuple[AnyLimit, ...]] = (
    RateLimit(_KEY, 1000, _DAY),
    ResourceLimit("db", 100),
    QuotaLimit.per_month("month", 1000),
    RateLimit("log", 1000, _DAY, RateLimitAlgorithm.SLIDING_WINDOW),
)
DEFINITIONS: Final[dict[str, tuple[AnyLimit, ...]]] = {
    "unlimited": (),
    "blocked": (Blocked(),),
    **{str(algorithm): (RateLimit(_KEY, 1000, _DAY, algorithm),) for algorithm in ALGORITHMS},
    "other_rate": (RateLimit(_KEY, 777, 3 * _DAY, burst=2000),),
    "soft": (RateLimit(_KEY, 1000, _DAY, soft=True),),
    "calls": (CallLimit(1000, _DAY),),
    "month": (QuotaLimit.per_month(_KEY, 1000),),
    "session": (QuotaLimit.per_session(_KEY, 1000, _DAY),),
    "resource": (ResourceLimit(_KEY, 100),),
    "other_resource": (ResourceLimit(_KEY, 50, max_hold_seconds=_DAY),),
    "several": _SEVERAL,
    "other_order": tuple(reversed(_SEVERAL)),
    "less": _SEVERAL[1:3],
}


class Kinds(Contract):
    """Every ordered pair of definitions for one scope, which is used before, between and after the changes."""

    @pytest.mark.parametrize("first", DEFINITIONS)
    def test_a_scope_in_use_keeps_its_use_over_every_change_of_its_limits(
        self, store: Store, clock: FakeClock, first: str
    ) -> None:
        scope = _Scope(store)
        for second in DEFINITIONS:
            old, new = DEFINITIONS[first], DEFINITIONS[second]
            scope.change(old)
            early, late = scope.use(), scope.use()
            scope.change(new)
            scope.settle_more(early)
            between = scope.use()
            scope.renew([late, between])
            scope.change(old)
            after = scope.use()
            for claim in (late, between, after):
                scope.settle_more(claim)
            assert scope.held == {}
            scope.reset()
            clock.advance(1)


class _Scope:
    """One scope in a store, and the use that it must have: of metered limits that exist, and permits that are held."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.limits: LimitSet = limits_of(store)
        self.metered: dict[str, int] = {}
        self.held: dict[str, int] = {}

    def change(self, limits: tuple[AnyLimit, ...]) -> None:
        """Give the scope other limits, and look at them without a request."""
        kept = {limit.key: self.metered.get(limit.key, 0) for limit in limits if _is_metered(limit)}
        self.limits = limits_of(self.store, *limits)
        if self._is_limited():
            self.metered = kept
        self.check()

    def check(self) -> None:
        """Compare the statistics and what a request would be answered with the use that is expected."""
        stats = self.limits.get_stats()
        for limit in self.limits:
            expected = self.metered if _is_metered(limit) else self.held
            assert stats[limit.key]["used"] == expected.get(limit.key, 0), (limit, stats)
        outcome = self.limits.peek(self._ones())
        assert outcome.allowed is not self._is_blocked()
        assert len(outcome.passed) + len(outcome.violations) == len(self.limits)

    def use(self) -> Claim:
        """Request 1 of every limit; a blocked scope rejects that."""
        claim = taken(self.limits, self._ones())
        assert claim.admitted is not self._is_blocked()
        if claim.admitted:
            self._add(claim, 1)
        self.check()
        return claim

    def settle_more(self, claim: Claim) -> None:
        """Report 1 more than was requested, and return the permits, whatever the limits are by now."""
        if not claim.admitted:
            return
        for limit in claim.plan.limits:
            if limit.rule.is_permit:
                self.held[limit.key] -= 1
                if not self.held[limit.key]:
                    del self.held[limit.key]
            elif limit.key in self.metered:
                self.metered[limit.key] += 1
        settle(self.limits, claim, {limit.key: -1 if limit.rule.is_permit else 1 for limit in claim.plan.limits})
        self.check()

    def renew(self, claims: list[Claim]) -> None:
        """Renew the permits of the claims: no lease is lost by a change."""
        assert self.store.renew([claim for claim in claims if claim.admitted and claim.plan.permits]) == []
        self.check()

    def reset(self) -> None:
        """Forget all use; permits stay with their holders."""
        self.store.reset([scope.scope.key for scope in self.limits.scoped])
        self.metered = dict.fromkeys(self.metered, 0)
        self.check()

    def _add(self, claim: Claim, amount: int) -> None:
        for limit in claim.plan.limits:
            counted = self.held if limit.rule.is_permit else self.metered
            counted[limit.key] = counted.get(limit.key, 0) + amount

    def _ones(self) -> dict[str, int]:
        return {limit.key: 1 for limit in self.limits if not isinstance(limit, Blocked)}

    def _is_blocked(self) -> bool:
        return any(isinstance(limit, Blocked) for limit in self.limits)

    def _is_limited(self) -> bool:
        """Whether a request would see the limits: nothing is stored for a set without limits."""
        return len(self.limits) > 0


def _is_metered(limit: AnyLimit) -> bool:
    return not isinstance(limit, ResourceLimit | Blocked)

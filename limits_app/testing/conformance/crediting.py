"""Credit: recorded use is reduced, whatever the algorithm, and never below 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limits_app.core.limits import CallLimit, MeteredLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.store import Store
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    ALGORITHMS,
    KEY,
    Contract,
    available,
    credit,
    credit_of,
    limits_in,
    limits_of,
    scoped,
    snapshot,
    taken,
    wait_us,
)

__all__ = ["Crediting"]

HOUR = 3600
RATES: list[MeteredLimit] = [RateLimit(KEY, 10, HOUR, algorithm) for algorithm in ALGORITHMS]
LIMITS = [*RATES, QuotaLimit.per_day(KEY, 10), QuotaLimit.per_session(KEY, 10, HOUR)]
every_limit = pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: str(getattr(limit, "algorithm", limit)))

Moves = Sequence[tuple[int, int, int]]
"""Steps: milliseconds that pass, the amount that is asked for, and the credit that is given."""


class Crediting(Contract):
    """What becomes of credit, which no claim gives back."""

    @every_limit
    def test_credit_is_as_much_as_fits(self, store: Store, limit: MeteredLimit) -> None:
        limits = limits_of(store, limit, CallLimit(9, HOUR), ResourceLimit("db", 2))
        taken(limits, {KEY: 8})
        others = [state for _, key, state in snapshot(limits) if key != KEY]
        credit(limits, KEY, 3)
        assert available(limits) == 5
        credit(limits, KEY, 1000)
        assert available(limits) == 10
        assert [state for _, key, state in snapshot(limits) if key != KEY] == others
        assert limits.try_acquire({KEY: 10})
        assert not limits.try_acquire({KEY: 1})

    @every_limit
    def test_credit_works_off_debt(self, store: Store, limit: MeteredLimit) -> None:
        limits = limits_of(store, limit)
        acquired = limits.try_acquire({KEY: 4})
        acquired.update({KEY: 30})
        acquired.release()
        credit(limits, KEY, 15)
        assert not limits.try_acquire({KEY: 0})
        credit(limits, KEY, 10)
        assert available(limits) == 5

    @every_limit
    def test_credit_to_those_who_used_nothing_changes_nothing(self, store: Store, limit: MeteredLimit) -> None:
        limits = limits_of(store, limit)
        credit(limits, KEY, 5)
        assert available(limits) == 10
        assert limits.try_acquire({KEY: 10})
        assert not limits.try_acquire({KEY: 1})

    @every_limit
    def test_a_soft_limit_takes_credit_too(self, store: Store, limit: MeteredLimit) -> None:
        limits = limits_of(store, replace(limit, soft=True))
        taken(limits, {KEY: 18})
        credit(limits, KEY, 10)
        assert limits.get_stats()[KEY]["used"] == 8

    @every_limit
    def test_the_same_credit_is_given_once(self, store: Store, limit: MeteredLimit) -> None:
        limits = limits_of(store, limit)
        taken(limits, {KEY: 8})
        claim = credit_of(limits, KEY)
        for _ in range(3):
            store.settle(claim, [-3 * claim.plan.limits[0].rule.parts_per_unit])
        assert available(limits) == 5

    @pytest.mark.parametrize("before", ALGORITHMS)
    @pytest.mark.parametrize("after", ALGORITHMS)
    def test_credit_under_changed_limits_counts_as_under_those_that_are_there(
        self, store: Store, before: RateLimitAlgorithm, after: RateLimitAlgorithm
    ) -> None:
        old = limits_of(store, RateLimit(KEY, 10, HOUR, before))
        new = limits_of(store, RateLimit(KEY, 20, HOUR, after))
        taken(old, {KEY: 8})
        credit(new, KEY, 3)
        assert available(new) == 15

    def test_credit_of_one_scope_is_none_of_others(self, store: Store) -> None:
        parts = [scoped(store, RateLimit(KEY, 10, HOUR), entity=who) for who in ("child", "parent")]
        taken(limits_in(store, *parts), {KEY: 8})
        credit(limits_in(store, parts[0]), KEY, 5)
        assert [available(limits_in(store, part)) for part in parts] == [7, 2]

    def test_credit_of_a_sliding_window_takes_away_what_is_oldest(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 10, RateLimitAlgorithm.SLIDING_WINDOW))
        for _ in range(5):
            assert limits.try_acquire({KEY: 2})
            clock.advance(1)
        credit(limits, KEY, 3)
        assert limits.try_acquire({KEY: 3})
        assert wait_us(limits.try_acquire({KEY: 1})) == 6_000_000
        clock.advance(6)
        assert available(limits) == 1
        credit(limits, KEY, 6)
        assert available(limits) == 7
        clock.advance(3)
        assert available(limits) == 7
        clock.advance(1)
        assert available(limits) == 10

    @settings(deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        limit=st.sampled_from([limit for limit in LIMITS if limit != QuotaLimit.per_day(KEY, 10)]),
        moves=st.lists(
            st.tuples(
                st.sampled_from([0, 1, 1000, 300_000, HOUR * 500, HOUR * 1000 - 1, HOUR * 1000]),
                st.integers(0, 10),
                st.integers(1, 14),
            ),
            max_size=12,
        ),
    )
    def test_credit_makes_used_less_by_what_it_is_and_never_less_than_nothing(
        self, store: Store, clock: FakeClock, limit: MeteredLimit, moves: Moves
    ) -> None:
        part = scoped(store, limit)
        limits = limits_in(store, part)
        store.reset([part.scope.key])
        for passed_ms, asked, amount in moves:
            clock.move(passed_ms * 1000)
            limits.try_acquire({KEY: asked})
            used = Fraction(str(limits.get_stats()[KEY]["used"]))
            credit(limits, KEY, amount)
            after = Fraction(str(limits.get_stats()[KEY]["used"]))
            assert abs(after - max(used - amount, Fraction(0))) <= Fraction(1, 1000), "both are rounded to thousandths"
            assert available(limits) <= 10

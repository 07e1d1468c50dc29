"""Counting: admitted amounts are counted in the step that admits them, by scope, limit and hour."""

from __future__ import annotations

import pytest

from limits_app.core.counting import hour_of
from limits_app.core.keys import scope_of, shared_scope
from limits_app.core.limits import CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.store import CountingStore
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.collecting import Collecting
from limits_app.testing.conformance.contract import ALGORITHMS, available, credit, limits_in, settle, taken
from limits_app.testing.conformance.counts import HOUR, collected, counting, in_scope, total

__all__ = ["Counting"]


class Counting(Collecting):
    """The counts are the admitted amounts, whatever happens in between."""

    def test_what_was_admitted_is_counted_by_scope_and_limit(self, store: CountingStore, clock: FakeClock) -> None:
        limits = counting(store, CallLimit(10, HOUR), RateLimit("tokens", 1000, 60))
        taken(limits, {"tokens": 7})
        taken(limits, {"tokens": 5})
        taken(counting(store, CallLimit(10, HOUR), entity="another"))
        hour = hour_of(clock())
        assert collected(store) == {
            ("conformance", "someone", False, hour, "call_count"): 2_000,
            ("conformance", "someone", False, hour, "tokens"): 12_000,
            ("conformance", "another", False, hour, "call_count"): 1_000,
        }

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_every_algorithm_is_counted_in_units(self, store: CountingStore, algorithm: RateLimitAlgorithm) -> None:
        limits = counting(store, RateLimit("tokens", 70, 7, algorithm))
        taken(limits, {"tokens": 3})
        assert total(store) == 3_000

    @pytest.mark.parametrize("algorithm", [RateLimitAlgorithm.TOKEN_BUCKET, RateLimitAlgorithm.GCRA])
    def test_thousandths_are_counted(self, store: CountingStore, algorithm: RateLimitAlgorithm) -> None:
        limits = counting(store, RateLimit("tokens", 7.5, 7, algorithm))
        taken(limits, {"tokens": 0.125})
        assert total(store) == 125

    def test_a_refusal_is_not_counted(self, store: CountingStore) -> None:
        limits = counting(store, CallLimit(2, HOUR))
        for _ in range(5):
            taken(limits)
        assert total(store) == 2_000

    def test_a_refusal_by_another_scope_is_not_counted(self, store: CountingStore) -> None:
        both = limits_in(
            store,
            in_scope(store, scope_of("conformance", "wide"), CallLimit(9, HOUR)),
            in_scope(store, scope_of("conformance", "tight"), CallLimit(1, HOUR)),
        )
        taken(both)
        taken(both)
        assert total(store) == 2_000

    def test_what_is_settled_is_counted_as_it_was_used(self, store: CountingStore) -> None:
        limits = counting(store, RateLimit("in", 100, 60), RateLimit("out", 100, 60, RateLimitAlgorithm.FIXED_WINDOW))
        claim = taken(limits, {"in": 30, "out": 30})
        settle(limits, claim, {"in": -10, "out": 5})
        settle(limits, claim, {"in": -10, "out": 5})
        counts = collected(store)
        assert sorted(counts.values()) == [20_000, 35_000]

    def test_use_that_debt_does_not_remember_is_counted(self, store: CountingStore) -> None:
        limits = counting(store, RateLimit("tokens", 1, 366 * 24 * HOUR))
        claim = taken(limits, {"tokens": 1})
        settle(limits, claim, {"tokens": 200_000})
        assert available(limits, "tokens") == 0
        assert total(store) == 200_001_000

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_what_was_credited_is_counted_all_the_same(
        self, store: CountingStore, clock: FakeClock, algorithm: RateLimitAlgorithm
    ) -> None:
        limits = counting(store, RateLimit("tokens", 10, HOUR, algorithm))
        taken(limits, {"tokens": 8})
        credit(limits, "tokens", 5)
        assert available(limits, "tokens") == 7
        taken(limits, {"tokens": 1})
        clock.advance(HOUR)
        credit(limits, "tokens", 1)
        assert total(store) == 9_000

    def test_permits_are_counted_when_they_are_lent(self, store: CountingStore) -> None:
        limits = counting(store, ResourceLimit("db", 3))
        claim = taken(limits)
        settle(limits, claim, {"db": -1})
        taken(limits)
        assert total(store) == 2_000

    def test_a_quota_is_counted(self, store: CountingStore) -> None:
        limits = counting(store, QuotaLimit("budget", 100, "month"))
        taken(limits, {"budget": 40})
        assert total(store) == 40_000

    def test_each_hour_is_counted_by_itself(self, store: CountingStore, clock: FakeClock) -> None:
        limits = counting(store, CallLimit(100, HOUR))
        hours = []
        for calls in (1, 2, 3):
            clock.advance(HOUR)
            hours.append(hour_of(clock()))
            for _ in range(calls):
                taken(limits)
        counts = collected(store)
        assert [counts["conformance", "someone", False, hour, "call_count"] for hour in hours] == [1_000, 2_000, 3_000]

    def test_what_is_settled_late_is_counted_when_it_was_taken(self, store: CountingStore, clock: FakeClock) -> None:
        limits = counting(store, RateLimit("tokens", 100, 60))
        claim = taken(limits, {"tokens": 30})
        hour = hour_of(clock())
        clock.advance(HOUR)
        taken(limits, {"tokens": 4})
        settle(limits, claim, {"tokens": -10})
        counts = collected(store)
        assert counts["conformance", "someone", False, hour, "tokens"] == 20_000
        assert counts["conformance", "someone", False, hour + 1, "tokens"] == 4_000

    def test_a_changed_limit_loses_nothing(self, store: CountingStore) -> None:
        rates = RateLimit("tokens", 100, 60), RateLimit("other", 100, 60)
        old = counting(store, *rates)
        claim = taken(old, {"tokens": 30, "other": 10})
        new = counting(store, RateLimit("tokens", 70, 7, RateLimitAlgorithm.GCRA))
        taken(new, {"tokens": 5})
        settle(old, claim, {"tokens": -10, "other": 1})
        assert sorted(collected(store).values()) == [11_000, 25_000]

    def test_a_limit_that_changes_while_it_refuses_loses_nothing(self, store: CountingStore) -> None:
        taken(counting(store, CallLimit(3, HOUR)))
        tighter = counting(store, CallLimit(1, HOUR))
        taken(tighter)
        taken(tighter)
        assert total(store) == 1_000

    def test_who_stops_counting_loses_nothing(self, store: CountingStore) -> None:
        taken(counting(store, CallLimit(3, HOUR)))
        silent = limits_in(store, in_scope(store, scope_of("conformance", "someone"), CallLimit(3, HOUR), counts=False))
        taken(silent)
        taken(counting(store, CallLimit(3, HOUR)))
        assert total(store) == 2_000

    def test_a_reset_forgets_no_count(self, store: CountingStore) -> None:
        limits = counting(store, CallLimit(3, HOUR))
        taken(limits)
        store.reset([one.scope.key for one in limits.scoped])
        taken(limits)
        assert total(store) == 2_000

    def test_scopes_are_named_as_they_are(self, store: CountingStore) -> None:
        odd = "käse:*~\0\n\U0001f9c0"
        scopes = [scope_of("a/b.c", odd), scope_of("a/b.c", None), shared_scope("a/b.c", "call_count")]
        for scope in scopes:
            taken(limits_in(store, in_scope(store, scope, CallLimit(3, HOUR))))
        names = {key[:3] for key in collected(store)}
        assert names == {("a/b.c", odd, False), ("a/b.c", None, False), ("a/b.c", None, True)}

    def test_what_should_not_be_counted_is_not(self, store: CountingStore) -> None:
        scope = scope_of("conformance", "silent")
        limits = limits_in(store, in_scope(store, scope, RateLimit("tokens", 10, HOUR), counts=False))
        claim = taken(limits, {"tokens": 2})
        settle(limits, claim, {"tokens": -1})
        assert store.collect_counts() is None

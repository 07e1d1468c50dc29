"""Changes: limits of a scope in use that get other numbers, another kind, another order, or are removed."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from limits_app.acquiring import LimitSet, Store
from limits_app.engine import DAY, Claim
from limits_app.engine.limits import (
    AnyLimit,
    Blocked,
    CallLimit,
    MeteredLimit,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    ALGORITHMS,
    DRAINING,
    KEY,
    REFUNDING,
    Contract,
    admissions,
    available,
    give_back,
    limits_in,
    limits_of,
    reset,
    scoped,
    settle,
    taken,
    used,
    wait_us,
)

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)

CALLS: Final = CallLimit.key
"""The only key that all kinds of limits can have."""
SEVERAL: Final[tuple[AnyLimit, ...]] = (
    RateLimit(CALLS, 1000, DAY),
    ResourceLimit("db", 100),
    QuotaLimit.per_month("month", 1000),
    RateLimit("log", 1000, DAY, RateLimitAlgorithm.SLIDING_WINDOW),
)
DEFINITIONS: Final[dict[str, tuple[AnyLimit, ...]]] = {
    "unlimited": (),
    "blocked": (Blocked(),),
    **{str(algorithm): (RateLimit(CALLS, 1000, DAY, algorithm),) for algorithm in ALGORITHMS},
    "other_rate": (RateLimit(CALLS, 777, 3 * DAY, burst=2000),),
    "soft": (RateLimit(CALLS, 1000, DAY, soft=True),),
    "calls": (CallLimit(1000, DAY),),
    "month": (QuotaLimit.per_month(CALLS, 1000),),
    "session": (QuotaLimit.per_session(CALLS, 1000, DAY),),
    "resource": (ResourceLimit(CALLS, 100),),
    "other_resource": (ResourceLimit(CALLS, 50, max_hold_seconds=DAY),),
    "several": SEVERAL,
    "other_order": tuple(reversed(SEVERAL)),
    "less": SEVERAL[1:3],
}


class ChangesTests(Contract):
    """Two definitions for the same scope, one after the other or side by side."""

    @pytest.mark.parametrize("first", DEFINITIONS)
    def test_a_scope_keeps_its_use_over_every_change_of_its_limits(
        self, store: Store, clock: FakeClock, first: str
    ) -> None:
        scope = TrackedScope(store)
        for second in DEFINITIONS:
            old, new = DEFINITIONS[first], DEFINITIONS[second]
            scope.change(old)
            early, late = scope.use(), scope.use()
            scope.change(new)
            scope.settle_more(early)
            between = scope.use()
            renewed = [claim for claim in (late, between) if claim.admitted and claim.shape.permits]
            assert store.renew(renewed) == [], "no lease is lost by a change"
            scope.change(old)
            for claim in (late, between, scope.use()):
                scope.settle_more(claim)
            assert scope.held.total() == 0
            scope.reset()
            clock.advance(1)

    @every_algorithm
    def test_another_capacity_applies_immediately_and_refills_nothing(
        self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm
    ) -> None:
        assert limits_of(store, RateLimit(KEY, 10, 60, algorithm)).try_acquire({KEY: 8})
        raised = limits_of(store, RateLimit(KEY, 15, 60, algorithm), CallLimit(5, 60), RateLimit("new", 3, 60))
        assert [available(raised, key) for key in (KEY, "call_count", "new")] == [7, 5, 3]
        lowered = limits_of(store, RateLimit(KEY, 6, 60, algorithm))
        assert used(lowered) == 8
        for seconds, admitted in ((0, False), (6, False), (14, algorithm in DRAINING)):
            clock.advance(seconds)
            assert bool(lowered.try_acquire({KEY: 0})) is admitted
        clock.advance(40)
        assert lowered.try_acquire({KEY: 2})
        wide, narrow = (
            limits_of(store, RateLimit(KEY, capacity, seconds, algorithm), entity="alternating")
            for capacity, seconds in ((10, 60), (7, 33.333))
        )
        assert sum(bool(wide.try_acquire({KEY: 1})) + bool(narrow.try_acquire({KEY: 1})) for _ in range(20)) == 10

    @every_algorithm
    def test_use_of_a_removed_limit_counts_when_it_is_added_again(
        self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm
    ) -> None:
        quota = QuotaLimit.per_session("session", 12, DAY)
        day = limits_of(store, RateLimit(KEY, 10, DAY, algorithm), quota)
        night = limits_of(store, RateLimit("night", 5, DAY, algorithm), ResourceLimit("db", 2))
        admitted = [0, 0]
        for _ in range(20):
            admitted[0] += bool(day.try_acquire({KEY: 1, "session": 1}))
            with night.try_acquire({"night": 1}) as acquisition:
                admitted[1] += bool(acquisition)
                acquisition.update({"night": 1})
        assert admitted == [10, 5]
        assert [available(day, key) for key in (KEY, "session")] == [0, 2]
        reset(night, [KEY])
        assert [available(day, key) for key in (KEY, "session")] == [10, 2]
        clock.move(1)  # what was charged in the microsecond of a reset counts as charged before it
        claim = day.try_acquire({KEY: 6, "session": 1})
        assert available(night, "night") == 0
        assert not night.try_acquire({"night": 1})
        claim.update({KEY: 1, "session": 2})
        claim.release()
        refunds = algorithm.refunds
        assert [available(day, key) for key in (KEY, "session")] == [9 if refunds else 4, 0]
        clock.advance(2 * DAY)
        assert [available(limits, key) for limits, key in ((night, "night"), (day, KEY), (day, "session"))] == [
            5,
            10,
            12,
        ]

    @every_algorithm
    def test_another_window_keeps_the_use(self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm) -> None:
        assert limits_of(store, RateLimit(KEY, 10, 60, algorithm)).try_acquire({KEY: 6})
        longer = limits_of(store, RateLimit(KEY, 10, 600, algorithm))
        assert available(longer) == 4
        assert longer.try_acquire({KEY: 4})
        clock.advance(59.9)
        assert available(longer) < 1
        clock.advance(540.1)
        assert longer.try_acquire({KEY: 10})
        shorter = limits_of(store, RateLimit(KEY, 10, 1, algorithm))
        assert not shorter.try_acquire({KEY: 10})
        clock.advance(1)
        assert shorter.try_acquire({KEY: 10})

    @pytest.mark.parametrize("old", ALGORITHMS)
    def test_another_algorithm_keeps_use_debt_and_announced_waits(
        self, store: Store, clock: FakeClock, old: RateLimitAlgorithm
    ) -> None:
        for new in ALGORITHMS:
            before, after = (
                limits_of(store, RateLimit(KEY, 10, 60, algorithm), entity=f"to {new}") for algorithm in (old, new)
            )
            claim = taken(before, {KEY: 7})
            assert available(after) == 3
            assert not after.try_acquire({KEY: 4})
            assert after.try_acquire({KEY: 3})
            settle(before, claim, {KEY: 7})
            assert used(after) == 17, "over-use is debt"
            assert not after.try_acquire({KEY: 0})
            for capacity, window in ((10, 60), (5, DAY)):
                entity = f"{new} {capacity}"
                assert limits_of(store, RateLimit(KEY, 10, DAY, old), entity=entity).try_acquire({KEY: 10})
                changed = limits_of(store, RateLimit(KEY, capacity, window, new), entity=entity)
                clock.advance(1)
                clock.move(wait_us(changed.try_acquire({KEY: 2})) - 1)
                assert not changed.try_acquire({KEY: 2})
                clock.move(1)
                assert changed.try_acquire({KEY: 2})

    def test_use_goes_on_exactly_when_a_bucket_gets_another_name(self, store: Store, clock: FakeClock) -> None:
        # Ticks of 7 microseconds, and thousandths of which many return in each microsecond.
        for capacity, seconds, names in ((10**12, 7, REFUNDING), (10**6, 1, DRAINING)):
            unchanged = limits_of(store, RateLimit(KEY, capacity, seconds), entity=f"unchanged {capacity}")
            for name in (*names, *reversed(names)):
                limit = RateLimit(KEY, capacity, seconds, name)
                changed = limits_of(store, limit, entity=f"changed {capacity}")
                amount = capacity // 100 + (0.001 if limit.algorithm.takes_decimals else 0)
                assert unchanged.try_acquire({KEY: amount})
                assert changed.try_acquire({KEY: amount})
                assert wait_us(changed.try_acquire({KEY: capacity})) == wait_us(unchanged.try_acquire({KEY: capacity}))
                clock.move(3)

    def test_a_changed_burst_applies_immediately_and_refills_nothing(self, store: Store) -> None:
        assert limits_of(store, RateLimit(KEY, 10, 60)).try_acquire({KEY: 10})
        assert available(limits_of(store, RateLimit(KEY, 10, 60, burst=14))) == 4
        assert available(limits_of(store, RateLimit(KEY, 10, 60, burst=4))) == 0

    def test_a_changed_limit_applies_from_its_first_request_even_when_another_limit_refuses(
        self, store: Store, clock: FakeClock
    ) -> None:
        assert limits_of(store, RateLimit(KEY, 10, 60), entity="changed").try_acquire({KEY: 10})
        calls = scoped(store, CallLimit(1, DAY, RateLimitAlgorithm.FIXED_WINDOW), entity="used up")
        assert limits_in(store, calls).try_acquire()
        slower = scoped(store, RateLimit(KEY, 10, DAY), entity="changed")
        assert not limits_in(store, calls, slower).try_acquire({KEY: 0})
        clock.advance(60)
        assert available(limits_in(store, slower)) < 1

    def test_statistics_of_another_definition_change_nothing(self, store: Store, clock: FakeClock) -> None:
        minute, day = (limits_of(store, RateLimit(KEY, 10, window)) for window in (60, DAY))
        assert minute.try_acquire({KEY: 10})
        assert used(day) == 10
        clock.advance(60)
        assert available(minute) == 10

    def test_another_number_of_permits_counts_those_that_are_held(self, store: Store) -> None:
        two, three, single = (limits_of(store, ResourceLimit("db", capacity)) for capacity in (2, 3, 1))
        claims = [taken(two), taken(two)]
        assert not taken(two).admitted
        claims.append(taken(three))
        assert claims[-1].admitted
        assert not taken(single).admitted
        for claim in claims[:2]:
            give_back(two, claim)
            assert not taken(single).admitted
        give_back(two, claims[2])
        assert taken(single).admitted

    def test_a_lease_of_a_removed_limit_ends_in_time(self, store: Store, clock: FakeClock) -> None:
        narrow = limits_of(store, ResourceLimit("db", 1))
        assert admissions(narrow, 2) == [True, False]
        assert limits_of(store, CallLimit(100, 60)).try_acquire()
        clock.move(store.lease_us - 1)
        assert not taken(narrow).admitted
        clock.move(1)
        assert taken(narrow).admitted


class TrackedScope:
    """One scope in a store, and the use that it must have: of metered limits, also absent ones, and permits."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.limits: LimitSet = limits_of(store)
        self.is_blocked = False
        self.metered: Counter[str] = Counter()
        self.held: Counter[str] = Counter()

    def change(self, limits: tuple[AnyLimit, ...]) -> None:
        """Give the scope other limits, and look at them without a request."""
        self.limits, self.is_blocked = limits_of(self.store, *limits), Blocked() in limits
        # A scope that is blocked, or has no limits, keeps the use of the limits before that.
        if limits and not self.is_blocked:
            for limit in limits:
                if isinstance(limit, MeteredLimit | CallLimit):
                    self.metered.setdefault(limit.key, 0)
                else:
                    self.metered.pop(limit.key, None)
        self.check()

    def check(self) -> None:
        """Compare the statistics and what a request would be answered with the use that is expected."""
        stats = self.limits.get_stats()
        for limit in self.limits:
            expected = self.metered if isinstance(limit, MeteredLimit | CallLimit) else self.held
            assert stats[limit.key]["used"] == expected[limit.key], (limit, stats)
        outcome = self.limits.peek(self.limits.ones)
        assert outcome.allowed is not self.is_blocked
        assert len(outcome.passed) + len(outcome.violations) == len(self.limits)

    def use(self) -> Claim:
        """Request 1 of every limit; a blocked scope rejects that."""
        claim = taken(self.limits, self.limits.ones)
        assert claim.admitted is not self.is_blocked
        for limit in claim.shape.limits if claim.admitted else ():
            (self.held if limit.rule.is_permit else self.metered)[limit.key] += 1
        self.check()
        return claim

    def settle_more(self, claim: Claim) -> None:
        """Report 1 more than was requested, and return the permits, whatever the limits are by now."""
        if not claim.admitted:
            return
        for limit in claim.shape.limits:
            if limit.rule.is_permit:
                self.held[limit.key] -= 1
            elif limit.key in self.metered:
                self.metered[limit.key] += 1
        settle(self.limits, claim, {limit.key: -1 if limit.rule.is_permit else 1 for limit in claim.shape.limits})
        self.check()

    def reset(self) -> None:
        """Forget all use; permits stay with their holders."""
        reset(self.limits)
        self.metered = Counter(dict.fromkeys(self.metered, 0))
        self.check()

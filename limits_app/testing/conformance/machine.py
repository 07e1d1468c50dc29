"""A machine of random verbs: every verb of a store, in any order, beside the reference model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, Limit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.plan import Claim
from limits_app.core.store import Store
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import ALGORITHMS, limits_in, limits_of, scoped, settle, taken
from limits_app.testing.conformance.model import Model, PermitModel, model_of

__all__ = ["StoreMachine"]

PEOPLE = ("one", "two")
RATES = ("first", "second")
PERMITS = ("db", "gpu")


@dataclass(eq=False)
class Held:
    """A claim that was admitted, and for whom."""

    claim: Claim
    limit_set: LimitSet
    people: Sequence[str]
    rate: int
    permit: str
    permits: int


class StoreMachine(RuleBasedStateMachine):
    """Two people, two rates, two resources, and a crowd of newcomers."""

    held = Bundle[Held]("held")
    done = Bundle[Held]("done")

    def __init__(self, make_store: Callable[[FakeClock], Store], close_store: Callable[[Store], None]) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.store = make_store(self.clock)
        self.close_store = close_store
        self.newcomers = count()

    def teardown(self) -> None:
        """Put the store away."""
        self.close_store(self.store)

    @initialize(
        algorithms=st.tuples(st.sampled_from(ALGORITHMS), st.sampled_from(ALGORITHMS)),
        capacities=st.tuples(st.integers(1, 20), st.integers(1, 20)),
        permits=st.integers(1, 3),
    )
    def define(
        self,
        algorithms: tuple[RateLimitAlgorithm, RateLimitAlgorithm],
        capacities: tuple[int, int],
        permits: int,
    ) -> None:
        """Choose the limits."""
        limits: list[Limit] = [
            RateLimit(key, capacity, window, algorithm)
            for key, algorithm, capacity, window in zip(RATES, algorithms, capacities, (2.5, 40), strict=True)
        ]
        limits += [ResourceLimit("db", permits), ResourceLimit("gpu", 2, max_hold_seconds=12)]
        parts = [scoped(self.store, *limits, entity=who) for who in PEOPLE]
        self.single = [limits_in(self.store, part) for part in parts]
        self.family = limits_in(self.store, *parts)
        lease_us = self.store.lease_us
        self.rates: dict[tuple[str, str], Model] = {
            (who, limit.key): model_of(limit) for who in PEOPLE for limit in limits if isinstance(limit, RateLimit)
        }
        self.permits = {
            (who, key): model
            for who in PEOPLE
            for key, model in (
                ("db", PermitModel(permits, lease_us, None)),
                ("gpu", PermitModel(2, min(lease_us, 12_000_000), 12_000_000)),
            )
        }

    @rule(moved_us=st.sampled_from([0, 1, 1000, 300_000, 2_500_000, 3_999_999, 10_000_000, 45_000_000, 200_000_000]))
    def time_passes(self, moved_us: int) -> None:
        """Move the clock."""
        self.clock.move(moved_us)

    @rule(
        target=held,
        who=st.integers(0, 2),
        rate=st.integers(0, 20),
        permit=st.sampled_from(PERMITS),
        permits=st.integers(1, 2),
    )
    def acquire(self, who: int, rate: int, permit: str, permits: int) -> MultipleResults[Held]:
        """Ask for the same of both rates, and for permits of one resource."""
        limit_set, people = [(self.single[0], PEOPLE[:1]), (self.single[1], PEOPLE[1:]), (self.family, PEOPLE)][who]
        rate = min(rate, *(self._capacity(key) for key in RATES))
        permits = min(permits, self._capacity(permit))
        now, requested = self.clock.now_us, {"first": rate, "second": rate, permit: permits}
        verdicts = [self.rates[one, key].admits(now, Fraction(rate)) for one in people for key in RATES]
        verdicts += [self.permits[one, permit].admits(now, Fraction(permits)) for one in people]
        claim = taken(limit_set, requested, left_out=set(PERMITS) - {permit})
        if False in verdicts:
            assert not claim.admitted
        elif None not in verdicts:
            assert claim.admitted
        if not claim.admitted:
            return multiple()
        for one in people:
            for key in RATES:
                self.rates[one, key].charge(now, Fraction(rate))
            self.permits[one, permit].lend(claim.number, now, Fraction(permits))
        return multiple(Held(claim, limit_set, people, rate, permit, permits))

    @rule(target=done, held=consumes(held), change=st.sampled_from([-20, -3, -1, 0, 2, 30]))
    def settle(self, held: Held, change: int) -> Held:
        """Report usage, and return the permits."""
        change = max(change, -held.rate)
        settle(held.limit_set, held.claim, {"first": change, "second": change, held.permit: -held.permits})
        for who in held.people:
            for key in RATES:
                if change:
                    self.rates[who, key].settle(self.clock.now_us, Fraction(change))
            self.permits[who, held.permit].give_back(held.claim.number)
        return held

    @rule(held=done)
    def settle_again(self, held: Held) -> None:
        """Settle a claim again: nothing changes, as the next comparison shows."""
        settle(held.limit_set, held.claim, {"first": -1, "second": -1, held.permit: -held.permits})

    @rule(held=st.lists(held, unique_by=id, max_size=4))
    def renew(self, held: list[Held]) -> None:
        """Renew some leases in one call."""
        lost = self.store.renew([one.claim for one in held])
        expected = []
        for one in held:
            alive = [self.permits[who, one.permit].renew(one.claim.number, self.clock.now_us) for who in one.people]
            if not all(alive):
                expected.append(one.claim)
        assert lost == expected

    @rule(who=st.sampled_from([0, 1]), keys=st.sampled_from([None, ("first",), ("db", "second")]))
    def reset(self, who: int, keys: tuple[str, ...] | None) -> None:
        """Forget all use."""
        self.store.reset([self.single[who].scoped[0].scope.key], keys)
        for key in RATES:
            if keys is None or key in keys:
                self.rates[PEOPLE[who], key].reset()

    @rule(number=st.sampled_from([1, 5, 30]))
    def newcomers_come(self, number: int) -> None:
        """Use other scopes, so that the store looks for idle ones."""
        for _ in range(number):
            assert limits_of(self.store, CallLimit(1, 1), entity=f"newcomer {next(self.newcomers)}").try_acquire()

    @invariant()
    def statistics_are_those_of_the_model(self) -> None:
        """Compare everything."""
        for who, limit_set in zip(PEOPLE, self.single, strict=True):
            stats = limit_set.get_stats()
            for key in RATES:
                used = self.rates[who, key].used(self.clock.now_us)
                if used is not None:
                    assert Fraction(str(stats[key]["used"])) == Fraction(int(used * 1000), 1000)
            for key in PERMITS:
                assert stats[key]["used"] == self.permits[who, key].used(self.clock.now_us)

    def _capacity(self, key: str) -> int:
        return int(self.single[0][key].capacity)

"""Helpers for the tests of counting: sets that count usage, and the counts of a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from hypothesis import strategies as st

from limits_app.core.counting import hour_of
from limits_app.core.keys import Scope, scope_of
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import Limit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.plan import Claim, ScopedLimits
from limits_app.core.record import schema_of
from limits_app.core.store import CountingStore, Store
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import limits_in, settle, taken

__all__ = ["HOUR", "Timeline", "collected", "counting", "in_scope", "total"]

HOUR = 3600
Counts = Mapping[tuple[str | None, str | None, bool, int, str], int]
"""Thousandths by resource, entity, shared, hour and key."""


def in_scope(store: Store, scope: Scope, *limits: Limit, counts: bool = True) -> ScopedLimits:
    """Limits in a scope."""
    return ScopedLimits(scope, schema_of(limits, store.lease_us, counts))


def counting(store: Store, *limits: Limit, entity: str = "someone") -> LimitSet:
    """A set over one scope that counts."""
    return limits_in(store, in_scope(store, scope_of("conformance", entity), *limits))


def collected(store: CountingStore) -> Counts:
    """Everything that was counted."""
    counts: Counter[tuple[str | None, str | None, bool, int, str]] = Counter()
    while (batch := store.collect_counts()) is not None:
        for count in batch.counts:
            for key, amount in count.amounts.items():
                counts[count.resource, count.entity, count.shared, count.hour, key] += amount
        store.forget_counts(batch.name)
    return counts


def total(store: CountingStore) -> int:
    """The sum of everything that was counted, in thousandths."""
    return sum(collected(store).values())


class Timeline:
    """Sets whose limits differ in one scope, with their admitted and their counted amounts."""

    sizes = (20, RateLimitAlgorithm.TOKEN_BUCKET), (7, RateLimitAlgorithm.SLIDING_WINDOW), (30, RateLimitAlgorithm.GCRA)

    def __init__(self, store: CountingStore, clock: FakeClock, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self.store, self.clock, self.draw = store, clock, draw
        limits = [RateLimit("tokens", size, 60, algorithm) for size, algorithm in self.sizes]
        self.sets = [counting(store, limit, ResourceLimit("db", 2)) for limit in limits]
        self.open: list[tuple[LimitSet, Claim]] = []
        self.expected: Counter[tuple[int, str]] = Counter()
        self.found: Counter[tuple[int, str]] = Counter()

    def take(self) -> None:
        """Ask for some."""
        limits, amount = self.sets[self.draw(st.integers(0, 2))], self.draw(st.integers(0, 12))
        claim = taken(limits, {"tokens": amount})
        if claim.admitted:
            hour = hour_of(claim.decided_at)
            self.expected.update({(hour, "tokens"): amount * 1000, (hour, "db"): 1000})
            self.open.append((limits, claim))

    def settle(self) -> None:
        """Settle the last claim."""
        if self.open:
            limits, claim = self.open.pop()
            schema = limits.scoped[0].schema
            scale = schema.rules[schema.index["tokens"]].parts_per_unit
            change = self.draw(st.integers(-claim.amounts[0] // scale, 3))
            settle(limits, claim, {"tokens": change, "db": -1})
            self.expected[hour_of(claim.decided_at), "tokens"] += change * 1000

    def wait(self) -> None:
        """Let time pass."""
        self.clock.advance(self.draw(st.sampled_from([1, 600, HOUR])))

    def collect(self) -> None:
        """Collect, and forget the use of the limits."""
        for key, amount in collected(self.store).items():
            self.found[key[3:]] += amount
        self.store.reset([one.scope.key for one in self.sets[0].scoped])

    def difference(self) -> Mapping[tuple[int, str], int]:
        """The counts that were found and not expected, or expected and not found."""
        keys = self.found.keys() | self.expected.keys()
        return {key: n for key in keys if (n := self.found[key] - self.expected[key])}

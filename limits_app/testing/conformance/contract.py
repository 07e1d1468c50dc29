"""The base class of all topics, and short functions for their tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import cast

import pytest

from limits_app.acquiring import Acquisition, CountingStore, LimitSet, Store
from limits_app.engine import (
    DAY,
    SECOND_US,
    Amount,
    Claim,
    GivenAmount,
    Log,
    Rejected,
    Scope,
    ScopedLimits,
    State,
    Times,
    plan_for,
    schema_of,
    scope_of,
)
from limits_app.engine.limits import AnyLimit, CallLimit, RateLimitAlgorithm
from limits_app.testing.clock import FakeClock

KEY = "units"
YEAR = 366 * DAY
ALGORITHMS = tuple(RateLimitAlgorithm)
DRAINING = (RateLimitAlgorithm.TOKEN_BUCKET, RateLimitAlgorithm.LEAKY_BUCKET, RateLimitAlgorithm.GCRA)
REFUNDING = (RateLimitAlgorithm.TOKEN_BUCKET, RateLimitAlgorithm.GCRA)

CountsByScope = Mapping[tuple[str | None, str | None, bool, int, str], int]
"""Thousandths by resource, entity, shared, hour and key."""


class Contract:
    """The methods that a user defines, and the fixtures made of them."""

    def make_store(self, clock: FakeClock) -> Store:
        """Make a new, empty store whose time is `clock`."""
        raise NotImplementedError("make_store(clock) must return a new, empty store on that clock")

    def close_store(self, store: Store) -> None:
        """Close a store that `make_store` has made."""

    def count_entries(self, store: Store) -> int | None:
        """Return how many entries of any kind the store keeps; None when that is unknown."""

    def open_store(self) -> Callable[[], Store] | None:
        """Return a callable that can be pickled and opens the same store in any process; None without one."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        """The clock of the store under test."""
        return FakeClock()

    @pytest.fixture
    def store(self, clock: FakeClock) -> Iterator[Store]:
        """The store under test."""
        store = self.make_store(clock)
        yield store
        self.close_store(store)


def in_scope(store: Store, scope: Scope, *limits: AnyLimit, counts: bool = False, plan: str = "") -> ScopedLimits:
    """Limits in a scope, whose usage the store counts for a plan or not."""
    return ScopedLimits(scope, schema_of(limits, store.lease_us, counts, plan))


def scoped(store: Store, *limits: AnyLimit, entity: str = "someone") -> ScopedLimits:
    """Limits of one entity, as a part of a set over several scopes."""
    return in_scope(store, scope_of("conformance", entity), *limits)


def limits_in(store: Store, *parts: ScopedLimits, version: int | None = None) -> LimitSet:
    """A set over several scopes."""
    return LimitSet.composed(parts, store, version=version)


def limits_of(store: Store, *limits: AnyLimit, entity: str = "someone", version: int | None = None) -> LimitSet:
    """A set over one scope; two sets of the same entity share its state."""
    return limits_in(store, scoped(store, *limits, entity=entity), version=version)


def counting(store: Store, *limits: AnyLimit, entity: str = "someone", plan: str = "") -> LimitSet:
    """A set over one scope whose usage is counted."""
    return limits_in(store, in_scope(store, scope_of("conformance", entity), *limits, counts=True, plan=plan))


def claim_of(
    limit_set: LimitSet,
    requested: Mapping[str, GivenAmount] | None = None,
    left_out: Iterable[str] = (),
    *,
    priority: str | None = None,
) -> Claim:
    """Return a claim as a set makes it, without an acquisition: its permits are not renewed."""
    requests = requested or {}
    plan = plan_for(limit_set.scoped, tuple(requests), left_out=frozenset(left_out), priority=priority)
    amounts, _ = plan.shape.amounts(requests)
    return Claim(plan, amounts, limit_set.version)


def taken(
    limit_set: LimitSet,
    requested: Mapping[str, GivenAmount] | None = None,
    left_out: Iterable[str] = (),
    *,
    priority: str | None = None,
) -> Claim:
    """A claim that the store has decided."""
    claim = claim_of(limit_set, requested, left_out, priority=priority)
    admitted = limit_set.store.acquire(claim)
    assert claim.admitted is admitted
    return claim


def admissions(limit_set: LimitSet, times: int) -> list[bool | None]:
    """The decisions on so many claims of one each."""
    return [taken(limit_set).admitted for _ in range(times)]


def settle(limit_set: LimitSet, claim: Claim, changes: Mapping[str, GivenAmount]) -> None:
    """Settle a claim with changes in units, by key."""
    limits = claim.shape.limits
    parts = [int(Fraction(str(changes.get(limit.key, 0))) * limit.rule.parts_per_amount) for limit in limits]
    limit_set.store.settle(claim, parts)


def report(acquired: Acquisition, amount: Amount, key: str = KEY) -> None:
    """Report the amount that was used, and release."""
    acquired.update({key: amount})
    acquired.release()


def credit_of(limit_set: LimitSet, key: str) -> Claim:
    """A claim that gives nothing but credit of a limit, once it is settled."""
    left_out = frozenset(limit.key for limit in limit_set)
    claim = Claim(plan_for(limit_set.scoped, (key,), left_out=left_out, is_credit=True), [0])
    limit_set.store.peek(claim)
    return claim


def credit(limit_set: LimitSet, key: str, amount: int) -> None:
    """Give credit of a limit, in units."""
    settle(limit_set, credit_of(limit_set, key), {key: -amount})


def give_back(limit_set: LimitSet, claim: Claim) -> None:
    """Release the permits of a claim."""
    limit_set.store.settle(claim, claim.shape.changes({}, claim.amounts))


def reset(limit_set: LimitSet, keys: Iterable[str] | None = None) -> None:
    """Reset all scopes of a set."""
    limit_set.store.reset([part.scope.key for part in limit_set.scoped], None if keys is None else list(keys))


def newcomers_come(store: Store, name: str, count: int = 40) -> None:
    """Use other scopes once, so that the store looks for idle ones."""
    for number in range(count):
        assert limits_of(store, CallLimit(1, 0.001), entity=f"{name} {number}").try_acquire()


def snapshot(limit_set: LimitSet) -> list[tuple[str, str, tuple[object, ...]]]:
    """The whole state behind a set, as values that can be compared; states that equal unused ones are all the same."""
    claim = claim_of(limit_set, dict.fromkeys([limit.key for limit in limit_set], 0))
    limit_set.store.peek(claim)
    return [
        (
            claim.plan.scope_keys[limit.scope_index],
            limit.key,
            tuple(_plain(limit.rule.start if limit.rule.restored_at(state) <= claim.decided_at else state)),
        )
        for limit, _, state in claim.decisions()
    ]


def available(limit_set: LimitSet, key: str = KEY) -> Fraction | int:
    """How much a limit would admit now, rounded down to thousandths."""
    return Fraction(str(limit_set.get_stats()[key]["available"]))


def used(limit_set: LimitSet, key: str = KEY) -> object:
    """How much of a limit is used now."""
    return limit_set.get_stats()[key]["used"]


def holders(limit_set: LimitSet, key: str = "db") -> object:
    """How many leases of a limit there are."""
    return limit_set.get_stats()[key]["holders"]


def wait_us(refused: Acquisition) -> int:
    """The microseconds after which a refusal says that it would admit."""
    assert not refused
    seconds = refused.outcome.retry_after
    assert seconds is not None
    return round(seconds * SECOND_US)


def collected(store: CountingStore, namespace: str = "") -> CountsByScope:
    """Everything that was counted in a namespace."""
    counts: Counter[tuple[str | None, str | None, bool, int, str]] = Counter()
    while (batch := store.collect_counts(namespace)) is not None:
        for count in batch.counts:
            for key, amount in count.amounts.items():
                counts[count.resource, count.entity, count.shared, count.hour, key] += amount
        store.forget_counts(batch.name, namespace)
    return counts


def collected_by_plan(store: CountingStore) -> dict[tuple[int, str, str], int]:
    """Everything that was counted, by hour, plan and key."""
    counts: Counter[tuple[int, str, str]] = Counter()
    while (batch := store.collect_counts()) is not None:
        for count in batch.counts:
            for key, amount in count.amounts.items():
                counts[count.hour, count.plan, key] += amount
        store.forget_counts(batch.name)
    return dict(counts)


def rejections_in(store: CountingStore, namespace: str = "") -> dict[Rejected, Times]:
    """All rejections that were added to a namespace."""
    rejections: dict[Rejected, Times] = {}
    while (batch := store.collect_counts(namespace)) is not None:
        for rejected, times in batch.rejections.items():
            rejections[rejected] = rejections[rejected].merged(times) if rejected in rejections else times
        store.forget_counts(batch.name, namespace)
    return rejections


def total(store: CountingStore) -> int:
    """The sum of everything that was counted, in thousandths."""
    return sum(collected(store).values())


def _plain(state: State) -> Iterable[object]:
    for item in cast("tuple[object, ...]", state):
        if isinstance(item, Log):
            yield [(item.time(index), item.total(index)) for index in range(len(item))]
        else:
            yield item

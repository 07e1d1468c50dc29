"""What every test of the suite starts from: a store on a clock that the test moves, and limits in scopes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import cast

import pytest

from limits_app.core.acquisition import Acquisition
from limits_app.core.algorithms import State
from limits_app.core.algorithms.window_log import Log
from limits_app.core.amounts import Amount
from limits_app.core.keys import scope_of
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import AnyLimit, RateLimitAlgorithm
from limits_app.core.plan import Claim, ScopedLimits
from limits_app.core.planning import plan_for
from limits_app.core.record import schema_of
from limits_app.core.store import Store
from limits_app.testing.clock import FakeClock

__all__ = [
    "ALGORITHMS",
    "DRAINING",
    "KEY",
    "REFUNDING",
    "SECOND",
    "Contract",
    "available",
    "claim_of",
    "credit",
    "credit_of",
    "give_back",
    "limits_in",
    "limits_of",
    "scoped",
    "settle",
    "snapshot",
    "taken",
    "wait_us",
]

KEY = "units"
SECOND = 1_000_000
ALGORITHMS = tuple(RateLimitAlgorithm)
DRAINING = (RateLimitAlgorithm.TOKEN_BUCKET, RateLimitAlgorithm.LEAKY_BUCKET, RateLimitAlgorithm.GCRA)
REFUNDING = (RateLimitAlgorithm.TOKEN_BUCKET, RateLimitAlgorithm.GCRA)


class Contract:
    """The part that a user fills in, and the fixtures made of it."""

    def make_store(self, clock: FakeClock) -> Store:
        """Make a fresh, empty store whose time is `clock`."""
        raise NotImplementedError("make_store(clock) must return a fresh, empty store on that clock")

    def close_store(self, store: Store) -> None:
        """Put away a store that `make_store` has made."""

    def count_entries(self, store: Store) -> int | None:
        """How many entries of any kind the store keeps; None when that is unknown."""

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


def scoped(store: Store, *limits: AnyLimit, entity: str = "someone") -> ScopedLimits:
    """Limits of one entity, as a part of a set over several scopes."""
    return ScopedLimits(scope_of("conformance", entity), schema_of(limits, store.lease_us))


def limits_in(store: Store, *parts: ScopedLimits, version: int | None = None) -> LimitSet:
    """A set over several scopes."""
    return LimitSet.composed(parts, store, version=version)


def limits_of(store: Store, *limits: AnyLimit, entity: str = "someone", version: int | None = None) -> LimitSet:
    """A set over one scope; two sets of the same entity share its state."""
    return limits_in(store, scoped(store, *limits, entity=entity), version=version)


def claim_of(limit_set: LimitSet, requested: Mapping[str, Amount] | None = None, left_out: Iterable[str] = ()) -> Claim:
    """Return a claim as a set makes it, without an acquisition: its permits are not renewed."""
    wanted = requested or {}
    plan = plan_for(limit_set.scoped, tuple(wanted), version=limit_set.version, left_out=frozenset(left_out))
    amounts, _ = plan.amounts(wanted)
    return Claim(plan, amounts)


def taken(limit_set: LimitSet, requested: Mapping[str, Amount] | None = None, left_out: Iterable[str] = ()) -> Claim:
    """A claim on which the store has decided."""
    claim = claim_of(limit_set, requested, left_out)
    admitted = limit_set.store.acquire(claim)
    assert claim.admitted is admitted
    return claim


def settle(limit_set: LimitSet, claim: Claim, changes: Mapping[str, Amount]) -> None:
    """Settle a claim with changes in units, by key."""
    limits = claim.plan.limits
    parts = [int(Fraction(str(changes.get(limit.key, 0))) * limit.rule.parts_per_unit) for limit in limits]
    limit_set.store.settle(claim, parts)


def credit_of(limit_set: LimitSet, key: str) -> Claim:
    """A claim that gives nothing but credit of a limit, once it is settled."""
    left_out = frozenset(limit.key for limit in limit_set)
    claim = Claim(plan_for(limit_set.scoped, (key,), version=None, left_out=left_out, is_credit=True), [0])
    limit_set.store.peek(claim)
    return claim


def credit(limit_set: LimitSet, key: str, amount: int) -> None:
    """Give credit of a limit, in units."""
    settle(limit_set, credit_of(limit_set, key), {key: -amount})


def give_back(limit_set: LimitSet, claim: Claim) -> None:
    """Release the permits of a claim."""
    limit_set.store.settle(claim, claim.plan.changes((), claim.amounts))


def snapshot(limit_set: LimitSet) -> list[tuple[str, str, tuple[object, ...]]]:
    """The whole state behind a set, as values that can be compared; states that equal unused ones are all the same."""
    claim = claim_of(limit_set, dict.fromkeys([limit.key for limit in limit_set], 0))
    limit_set.store.peek(claim)
    return [
        (
            limit.scope.key,
            limit.key,
            tuple(_plain(limit.rule.start if limit.rule.restored_at(state) <= claim.decided_at else state)),
        )
        for limit, _, state in claim.limits()
    ]


def available(limit_set: LimitSet, key: str = KEY) -> Fraction | int:
    """How much a limit would admit now, rounded down to thousandths."""
    return Fraction(str(limit_set.get_stats()[key]["available"]))


def wait_us(refused: Acquisition) -> int:
    """The microseconds after which a refusal says that it would admit."""
    assert not refused
    seconds = refused.outcome.retry_after
    assert seconds is not None
    return round(seconds * SECOND)


def _plain(state: State) -> Iterable[object]:
    for item in cast("tuple[object, ...]", state):
        if isinstance(item, Log):
            yield [(item.time(index), item.total(index)) for index in range(len(item))]
        else:
            yield item

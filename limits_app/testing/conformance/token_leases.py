"""Leases of tokens: what another program holds is changed only while its lease is there, in one step."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from limits_app.acquiring import Acquisition, LimitSet, Store
from limits_app.engine import DAY, LEASE_KEY, SECOND_US, Amount, ScopedLimits, lease_limits
from limits_app.engine.errors import LeaseEnded, LimitExceeded
from limits_app.engine.limits import AnyLimit, CallLimit, QuotaLimit, RateLimit, ResourceLimit
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    KEY,
    Contract,
    available,
    holders,
    limits_in,
    newcomers_come,
    scoped,
    taken,
    used,
)

_SETTLEMENTS = 100
_BUCKET = RateLimit(KEY, 1000, DAY)


def with_lease(store: Store, *limits: AnyLimit, lease_us: int = 60 * SECOND_US) -> LimitSet:
    """Limits with the lease of a new token."""
    return limits_in(store, scoped(store, *limits), lease_limits("conformance", "someone", lease_us))


def elsewhere(acquisition: Acquisition) -> Acquisition:
    """What a token holds, as another process reads it from the token."""
    first, *extensions = [
        Acquisition.held_elsewhere(
            limits_in(part.limit_set.store, *part.limit_set.scoped),
            part.requested,
            part.amounts,
            holder=part.holder if isinstance(part.holder, bytes) else b"",
            decided_at=part.decided_at,
        )
        for part in acquisition.parts()
    ]
    for extension in extensions:
        first.adopt(extension)
    return first


def settled(acquisition: Acquisition, usage: Mapping[str, Amount]) -> bool:
    """Settle what a token holds, in another process; return whether its lease was there."""
    other = elsewhere(acquisition)
    other.update(usage)
    other.release()
    return not other.is_over


def state_of(store: Store, part: ScopedLimits) -> tuple[object, object]:
    """What is available in a scope, and how many hold permits of it."""
    limits = limits_in(store, part)
    return available(limits), holders(limits)


class TokenLeases(Contract):
    """What a token holds: with and without permits, extended, renewed, settled once, and ended with its lease."""

    def test_a_token_is_settled_once_and_refunds_once(self, store: Store) -> None:
        limits = with_lease(store, _BUCKET, ResourceLimit("db", 2))
        acquisition = limits.try_acquire({KEY: 500})
        assert (available(limits), holders(limits)) == (500, 1)
        assert [settled(acquisition, {KEY: 100}) for _ in range(3)] == [True, False, False]
        assert (available(limits), holders(limits)) == (900, 0)

    def test_a_token_that_threads_settle_at_the_same_time_refunds_once(self, store: Store) -> None:
        limits = with_lease(store, _BUCKET, QuotaLimit.per_day("q", 1000))
        acquisition = limits.try_acquire({KEY: 500, "q": 500})
        with ThreadPoolExecutor(10) as pool:
            done = [*pool.map(lambda _: settled(acquisition, {KEY: 100, "q": 100}), range(_SETTLEMENTS))]
        assert done.count(True) == 1
        assert (used(limits), used(limits, "q")) == (100, 100)

    def test_a_token_without_permits_cannot_be_settled_after_its_lease(self, store: Store, clock: FakeClock) -> None:
        limits = with_lease(store, _BUCKET)
        in_time, late = limits.try_acquire({KEY: 100}), with_lease(store, _BUCKET).try_acquire({KEY: 100})
        clock.move(60 * SECOND_US - 1)
        assert settled(in_time, {KEY: 0})
        clock.move(1)
        before = available(limits)
        assert not settled(late, {KEY: 0})
        assert available(limits) == before

    @pytest.mark.parametrize("seconds", [2, 60, 3600])
    def test_permits_are_held_as_long_as_the_lease_of_their_token(
        self, store: Store, clock: FakeClock, seconds: int
    ) -> None:
        limits = with_lease(store, ResourceLimit("db", 1), lease_us=seconds * SECOND_US)
        assert limits.try_acquire()
        for step in range(10):
            clock.move(seconds * SECOND_US // 10 - (step == 9))
            newcomers_come(store, f"step {step}", 10)
            assert holders(limits) == 1
            assert not taken(limits_in(store, scoped(store, ResourceLimit("db", 1)))).admitted
        clock.move(1)
        assert taken(limits_in(store, scoped(store, ResourceLimit("db", 1)))).admitted

    def test_permits_of_processes_end_beside_those_of_tokens(self, store: Store, clock: FakeClock) -> None:
        limits = with_lease(store, ResourceLimit("db", 2))
        own = limits_in(store, scoped(store, ResourceLimit("db", 2)))
        assert limits.try_acquire()
        assert taken(own).admitted
        clock.move(store.lease_us)
        assert [taken(own).admitted for _ in range(2)] == [True, False]
        assert holders(own) == 2

    def test_a_renewed_token_is_held_for_another_lease(self, store: Store, clock: FakeClock) -> None:
        limits = with_lease(store, _BUCKET, ResourceLimit("db", 1))
        acquisition = limits.try_acquire({KEY: 100})
        for step in range(3):
            clock.move(60 * SECOND_US - 1)
            newcomers_come(store, f"step {step}", 10)
            assert store.renew(elsewhere(acquisition).parts()) == []
        assert settled(acquisition, {KEY: 0})
        assert store.renew([lost := elsewhere(acquisition)]) == [lost]
        assert holders(limits) == 0

    def test_a_token_that_has_ended_is_not_renewed(self, store: Store, clock: FakeClock) -> None:
        acquisition = with_lease(store, _BUCKET).try_acquire({KEY: 100})
        clock.move(60 * SECOND_US)
        assert store.renew([lost := elsewhere(acquisition)]) == [lost]
        assert not settled(acquisition, {KEY: 0})

    def test_extensions_are_settled_with_their_token(self, store: Store) -> None:
        limits = with_lease(store, _BUCKET, ResourceLimit("db", 3))
        acquisition = limits.try_acquire({KEY: 100})
        first = elsewhere(acquisition)
        first.extend({KEY: 200, "db": 1, LEASE_KEY: 1})
        first.extend({KEY: 300, LEASE_KEY: 1})
        assert (available(limits), holders(limits)) == (400, 2)
        assert [settled(first, {KEY: 350}) for _ in range(2)] == [True, False]
        assert (available(limits), holders(limits)) == (650, 0)

    def test_an_extension_that_the_settled_token_does_not_have_stays_charged(self, store: Store) -> None:
        limits = with_lease(store, _BUCKET)
        acquisition = limits.try_acquire({KEY: 100})
        extended = elsewhere(acquisition)
        extended.extend({KEY: 200, LEASE_KEY: 1})
        assert settled(acquisition, {KEY: 0})
        assert not settled(extended, {KEY: 0})
        assert available(limits) == 800

    def test_a_settled_token_is_not_extended(self, store: Store) -> None:
        limits = with_lease(store, _BUCKET, CallLimit(10, 60))
        acquisition = limits.try_acquire({KEY: 100})
        assert settled(acquisition, {KEY: 100})
        with pytest.raises(LeaseEnded):
            elsewhere(acquisition).extend({KEY: 200, LEASE_KEY: 1})
        assert available(limits) == 900

    def test_a_rejected_extension_leaves_the_token_as_it_was(self, store: Store) -> None:
        acquisition = with_lease(store, _BUCKET).try_acquire({KEY: 900})
        with pytest.raises(LimitExceeded):
            elsewhere(acquisition).extend({KEY: 200, LEASE_KEY: 1})
        assert settled(acquisition, {KEY: 0})
        assert available(acquisition.limit_set) == 1000  # type: ignore[arg-type]  # made by with_lease

    def test_a_cancelled_token_is_refunded_where_the_algorithm_can(self, store: Store) -> None:
        limits = with_lease(store, _BUCKET, CallLimit(10, 60))
        acquisition = limits.try_acquire({KEY: 100})
        other = elsewhere(acquisition)
        other.cancel()
        assert not other.is_over
        assert available(limits) == 1000
        assert not settled(acquisition, {KEY: 100})

    def test_a_token_over_several_scopes_is_settled_once(self, store: Store) -> None:
        names = [f"someone {number}" for number in range(5)]
        parts = [scoped(store, _BUCKET, ResourceLimit("db", 3), entity=name) for name in names]
        limits = limits_in(store, *parts, lease_limits("conformance", "someone", 60 * SECOND_US))
        acquisition = limits.try_acquire({KEY: 500})
        extended = elsewhere(acquisition)
        extended.extend({KEY: 100, "db": 1, LEASE_KEY: 1})
        assert store.renew(extended.parts()) == []
        with ThreadPoolExecutor(4) as pool:
            assert [*pool.map(lambda _: settled(extended, {KEY: 200}), range(8))].count(True) == 1
        assert [(available(limits_in(store, part)), holders(limits_in(store, part))) for part in parts] == [
            (800, 0)
        ] * 5
        with pytest.raises(LeaseEnded):
            elsewhere(acquisition).extend({KEY: 100, "db": 1, LEASE_KEY: 1})
        assert store.renew([lost := elsewhere(acquisition)]) == [lost]
        assert [(available(limits_in(store, part)), holders(limits_in(store, part))) for part in parts] == [
            (800, 0)
        ] * 5

    def test_a_clock_that_is_set_back_ends_the_lease_of_a_token_within_another_one(
        self, store: Store, clock: FakeClock
    ) -> None:
        limits = with_lease(store, ResourceLimit("db", 1))
        clock.move(DAY * SECOND_US)
        assert limits.try_acquire()
        clock.move(-DAY * SECOND_US // 2)
        own = limits_in(store, scoped(store, ResourceLimit("db", 1)))
        assert not taken(own).admitted
        clock.move(121 * SECOND_US)
        taken(own)
        clock.move(60 * SECOND_US)
        assert taken(own).admitted

"""Versions of the configuration, and resets of state."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from limits_app.acquiring import Store
from limits_app.engine import EntityScopes
from limits_app.engine.errors import StaleConfiguration
from limits_app.engine.limits import (
    AnyLimit,
    CallLimit,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.changes import every_algorithm
from limits_app.testing.conformance.contract import (
    KEY,
    Contract,
    available,
    claim_of,
    limits_of,
    reset,
    settle,
    snapshot,
    taken,
)


class Versions(Contract):
    """Versions of the configuration, and resets."""

    def test_the_version_grows_with_every_change_and_is_never_repeated(self, store: Store) -> None:
        versions = [store.version(), *[store.advance_version() for _ in range(100)]]
        assert all(later > earlier for earlier, later in pairwise(versions))
        assert store.version() == versions[-1]
        # Else a process would keep limits that it has compiled under an old version, when a store starts empty.
        assert versions[1] > datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000

    def test_old_and_unknown_limits_are_stale_and_charge_nothing(self, store: Store) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60), version=store.version())
        timeless = limits_of(store, RateLimit(KEY, 10, 60))
        assert limits.try_acquire({KEY: 4})
        store.advance_version()
        before = snapshot(timeless)
        for version in (limits.version, store.version() + 1):
            stale = limits_of(store, RateLimit(KEY, 10, 60), version=version)
            with pytest.raises(StaleConfiguration):
                stale.try_acquire({KEY: 1})
            with pytest.raises(StaleConfiguration):
                stale.peek({KEY: 1})
            claim = claim_of(stale, {KEY: 1})
            with pytest.raises(StaleConfiguration):
                store.acquire(claim)
            assert claim.admitted is None
        assert snapshot(timeless) == before
        assert timeless.try_acquire({KEY: 1})
        assert limits_of(store, RateLimit(KEY, 10, 60), version=store.version()).try_acquire({KEY: 5})

    def test_a_version_is_that_of_the_claim_and_not_of_the_compiled_limits(self, store: Store) -> None:
        old = limits_of(store, CallLimit(10, 60), ResourceLimit("db", 9), version=store.version())
        acquisition = old.try_acquire()
        new = old.at_version(store.advance_version())
        claims = [limits.prepare(None) for limits in (old, new)]
        assert claims[0].plan is claims[1].plan
        for verb in (store.acquire, store.peek):
            with pytest.raises(StaleConfiguration):
                verb(claims[0])
        with pytest.raises(StaleConfiguration):
            store.acquire_first([claims[0], claims[1]])
        assert store.acquire(claims[1])
        acquisition.release()
        store.settle(claims[1], [-amount for amount in claims[1].amounts])
        assert (available(new, "call_count"), available(new, "db")) == (9, 9)

    def test_clients_with_the_same_compiled_limits_count_apart(self, store: Store) -> None:
        limits = (RateLimit(KEY, 10, 60), CallLimit(5, 60, RateLimitAlgorithm.SLIDING_WINDOW), ResourceLimit("db", 2))
        first = limits_of(store, *limits, entity="client 0", version=store.version())
        scopes = EntityScopes(first.scopes, "client 0")
        names = [f"client {number}" for number in range(20)]
        clients = [first.bound(scopes.of(name), version=first.version) for name in names]
        acquisitions = [client.try_acquire({KEY: number % 10}) for number, client in enumerate(clients)]
        assert all(
            acquisition.successful and acquisition.shape is acquisitions[0].claim.shape for acquisition in acquisitions
        )
        for number, (name, client) in enumerate(zip(names, clients, strict=True)):
            assert [status.entity for status in acquisitions[number].outcome.passed] == [name] * 3
            alone = limits_of(store, *limits, entity=name)
            assert (available(alone), available(alone, "db")) == (10 - number % 10, 1)
            assert snapshot(client) == snapshot(alone)
        again = clients[3].try_acquire({KEY: 1})
        again.update({KEY: 1})
        for acquisition in acquisitions:
            acquisition.update({KEY: 0})
            acquisition.release()
        assert [available(client, "db") for client in clients] == [2] * 3 + [1] + [2] * 16
        assert [available(client) for client in clients] == [10] * 3 + [9] + [10] * 16
        assert [available(client, "call_count") for client in clients] == [4] * 3 + [3] + [4] * 16
        again.release()

    def test_a_claim_of_an_old_version_is_renewed_and_settled(self, store: Store) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60), ResourceLimit("db", 1), version=store.version())
        claim = taken(limits, {KEY: 5, "db": 1})
        store.advance_version()
        assert store.renew([claim]) == []
        settle(limits, claim, {KEY: -3, "db": -1})
        now = limits_of(store, RateLimit(KEY, 10, 60), ResourceLimit("db", 1), version=store.version())
        assert (available(now), available(now, "db")) == (8, 1)

    @every_algorithm
    def test_a_reset_forgets_the_use_and_leaves_permits_with_their_holders(
        self, store: Store, algorithm: RateLimitAlgorithm
    ) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60, algorithm), ResourceLimit("db", 1))
        claim, other = taken(limits, {KEY: 9, "db": 1}), taken(limits, {KEY: 1}, left_out=["db"])
        settle(limits, other, {KEY: 90})
        reset(limits)
        assert (available(limits), available(limits, "db")) == (10, 0)
        assert not taken(limits, {KEY: 1}).admitted
        settle(limits, claim, {KEY: -9, "db": -1})
        assert (available(limits), available(limits, "db")) == (10, 1), "a late refund restores no more than the limit"

    @pytest.mark.parametrize(
        "limit",
        [RateLimit(KEY, 10, 60), RateLimit(KEY, 10, 60, "gcra"), QuotaLimit(KEY, 10, "month")],
        ids=["token_bucket", "gcra", "quota"],
    )
    def test_what_a_reset_has_forgotten_is_not_refunded(self, store: Store, clock: FakeClock, limit: AnyLimit) -> None:
        others = RateLimit("others", 10, 60), ResourceLimit("db", 2)
        limits, now = limits_of(store, limit, *others), limits_of(store, *others, limit)
        first, second = [taken(limits, {KEY: 4, "others": 2, "db": 1}) for _ in range(2)]
        reset(limits, ["nothing", "db"])
        settle(limits, first, {KEY: -1, "db": -1})
        assert available(limits) == 3, "nothing was reset"
        reset(limits, [KEY])
        clock.move(1)
        third = taken(limits, {KEY: 7, "others": 1}, left_out=["db"])
        settle(limits, second, {KEY: -4, "others": -2, "db": -1})
        assert (available(limits), available(limits, "others"), available(limits, "db")) == (3, 5, 2)
        fourth = taken(now, {KEY: 1}, left_out=["others", "db"])  # the limits have changed
        settle(limits, third, {KEY: -7, "others": 3})
        settle(now, fourth, {KEY: 2})
        assert (available(now), available(now, "others")) == (7, 2)

    def test_a_reset_of_some_limits_and_scopes_leaves_the_others_alone(self, store: Store) -> None:
        first, two, three = (
            limits_of(store, RateLimit("first", 10, 60), RateLimit("second", 10, 60), entity=name) for name in "abc"
        )
        for limits in (first, two, three):
            assert limits.try_acquire({"first": 5, "second": 5})
        store.reset([first.scoped[0].scope.key, three.scoped[0].scope.key, "v1:never:seen"], ["second", "unknown"])
        left = [(available(limits, "first"), available(limits, "second")) for limits in (first, two, three)]
        assert left == [(5, 10), (5, 5), (5, 10)]

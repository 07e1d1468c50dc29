"""A cluster of three servers, and a primary with a replica that a sentinel watches."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Event, Thread
from threading import enumerate as enumerate_threads
from typing import Any

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.errors import StaleConfiguration, StoreUnavailable
from limits_app.engine.keys import IDEMPOTENCY_LEVEL, amounts_scope, idempotency_scope, short_key
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.redis import RedisClusterStore, RedisStore, open_redis_store
from limits_app.stores.redis import cluster as cluster_module
from limits_app.stores.redis.opening import tag_of
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import claim_of
from tests.replacing import at_next_call
from tests.servers.machine import free_ports
from tests.servers.redis import RedisServer, redis_cluster, redis_sentinel, until
from tests.stores.redis.support import PATIENT, changes_of, claimed, cluster_client, node_of, prefix, record, scoped
from tests.stores.support import PATIENCE, connections_of, has_subscribed, limits_of, used

pytestmark = pytest.mark.product

HOUR = 3600
PEOPLE = [f"person {number}" for number in range(6)]


@pytest.fixture
def store(cluster_store: RedisClusterStore) -> RedisClusterStore:
    return cluster_store


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_charges_of_earlier_servers_are_refunded_when_a_later_one_rejects(
    store: RedisClusterStore, algorithm: RateLimitAlgorithm
) -> None:
    limit = RateLimit("tokens", 10, HOUR, algorithm)
    parts = [scoped(store, limit, ResourceLimit("db", 3), entity=who) for who in PEOPLE]
    family, single = LimitSet.composed(parts, store), [LimitSet.composed([part], store) for part in parts]
    for one in single:
        assert single[-1].try_acquire({"tokens": 1, "db": 0})
        refused = family.try_acquire({"tokens": 10})
        assert not refused
        assert len(refused.outcome.violations) == 1
        assert used(one, "db") == 0
    assert [used(one, "tokens") for one in single[:-1]] == [0] * 5


def test_a_request_without_amounts_is_sent_to_the_server_of_its_key(
    store: RedisClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = limits_of(store, ResourceLimit("db", 3))
    monkeypatch.setattr(connections_of(store), "_update_nodes", lambda *_: pytest.fail("it was another one"))
    assert all(limits.try_acquire({"db": 0}) for _ in range(50))


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_use_by_another_process_in_the_meantime_is_kept(
    store: RedisClusterStore, algorithm: RateLimitAlgorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = RateLimit("tokens", 10, HOUR, algorithm)
    parts = [scoped(store, limit, ResourceLimit("db", 3), entity=who) for who in PEOPLE[:2]]
    family, single = LimitSet.composed(parts, store), [LimitSet.composed([part], store) for part in parts]
    first, last = sorted(single, key=lambda one: tag_of(short_key(one.scoped[0].scope.key)))
    assert last.try_acquire({"tokens": 10, "db": 0})

    def after_another_caller(undo: Callable[..., object], *arguments: object) -> object:
        assert first.try_acquire({"tokens": 2, "db": 0})
        return undo(*arguments)

    at_next_call(monkeypatch, store, "_undo", after_another_caller)
    assert not family.try_acquire({"tokens": 3})
    assert used(first, "tokens") == pytest.approx(2, abs=0.1)
    assert used(first, "db") == 0


@pytest.mark.parametrize(
    ("before", "used_up"),
    [
        pytest.param([1], 1, id="one_more_entry"),
        # The only entry is forgotten, and another one takes its place.
        pytest.param([4, 2], 2, id="a_log_that_begins_anew"),
    ],
)
def test_entries_of_a_log_are_removed_on_refund(before: list[int], used_up: int, cluster: list[RedisServer]) -> None:
    clock = FakeClock()
    store = RedisClusterStore(url=cluster[0].url, prefix=prefix(), clock=clock, **PATIENT)
    limit = RateLimit("tokens", 10, HOUR, RateLimitAlgorithm.SLIDING_WINDOW)
    parts = sorted(
        [scoped(store, limit, entity=who) for who in PEOPLE[:2]], key=lambda part: tag_of(short_key(part.scope.key))
    )
    first, last = (LimitSet.composed([part], store) for part in parts)
    for tokens in before:
        assert first.try_acquire({"tokens": tokens})
        clock.advance(HOUR / 2)
    assert last.try_acquire({"tokens": 10})
    assert not LimitSet.composed(parts, store).try_acquire({"tokens": 5})
    assert used(first, "tokens") == used_up
    store.close()


def test_a_window_that_has_ended_meanwhile_is_left_alone(cluster: list[RedisServer]) -> None:
    clock = FakeClock()
    store = RedisClusterStore(url=cluster[0].url, prefix=prefix(), clock=clock, **PATIENT)
    limits = limits_of(store, RateLimit("tokens", 10, 10, RateLimitAlgorithm.FIXED_WINDOW))
    held = limits.try_acquire({"tokens": 5}).claim
    clock.advance(10)
    assert limits.try_acquire({"tokens": 3})
    held.undoes = True
    store.settle(held, [-amount for amount in held.amounts])
    assert used(limits, "tokens") == 3
    store.close()


def test_settlements_and_permits_work_over_all_servers(store: RedisClusterStore) -> None:
    limits = [RateLimit("tokens", 100, HOUR), ResourceLimit("db", 2, max_hold_seconds=50)]
    family = LimitSet.composed([scoped(store, *limits, entity=who) for who in PEOPLE], store)
    with family.try_acquire({"tokens": 10}) as acquired:
        assert store.renew([acquired.claim]) == []
        acquired.update({"tokens": 4})
    assert used(family, "tokens") == pytest.approx(4, abs=0.1)
    assert used(family, "db") == 0


def test_a_version_counts_on_every_server(store: RedisClusterStore) -> None:
    sets = [limits_of(store, CallLimit(5, HOUR), entity=who, version=store.version()) for who in PEOPLE]
    assert all(limits.try_acquire() for limits in sets)
    version = store.advance_version()
    assert store.version() == version
    for limits in sets:
        with pytest.raises(StaleConfiguration):
            limits.try_acquire()
    family = LimitSet.composed([], store, version=version)
    assert family.try_acquire()


def test_a_cluster_store_can_be_sent_to_another_process(cluster: list[RedisServer]) -> None:
    store = open_redis_store(url=cluster[1].url, cluster=True, prefix=prefix(), **PATIENT)
    assert isinstance(store, RedisClusterStore)
    assert pickle.loads(pickle.dumps(store)) is store
    store.close()


def test_keys_that_move_to_another_server_are_followed(cluster: list[RedisServer], store: RedisClusterStore) -> None:
    limits = limits_of(store, CallLimit(5, HOUR))
    assert limits.try_acquire()
    with cluster_client(cluster[0].url) as client:
        key = record(store, limits)
        slot, old = client.keyslot(key), client.get_node_from_key(key)
        new = next(node for node in client.get_primaries() if node.name != old.name)
        source, target = (node.redis_connection for node in (old, new))
        ids = [node.execute_command("CLUSTER MYID").decode() for node in (source, target)]
        target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[0])
        source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[1])
        while keys := source.execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
            assert source.execute_command("MIGRATE", new.host, new.port, "", 0, 5000, "KEYS", *keys) == b"OK"
        for node in (target, source):
            node.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[1])
    assert limits.try_acquire()
    assert used(limits) == pytest.approx(2, abs=0.1)


def test_a_cluster_that_is_down_is_unavailable() -> None:
    with redis_cluster() as servers:
        store = RedisClusterStore(url=servers[0].url, connect_seconds=1, reply_seconds=1)
        family = LimitSet.composed([scoped(store, CallLimit(5, HOUR), entity=who) for who in PEOPLE], store)
        assert family.try_acquire()
        for server in servers:
            server.kill()
        with pytest.raises(StoreUnavailable):
            family.try_acquire()
        store.close()


def test_a_sentinel_leads_to_the_new_primary() -> None:
    with redis_sentinel() as (primary, replica, sentinel):
        manager = Sentinel([("127.0.0.1", sentinel.port)], socket_timeout=1)
        store = RedisStore(client=manager.master_for("limits"), connect_seconds=1, reply_seconds=1)
        limits = limits_of(store, CallLimit(5, HOUR))
        assert limits.try_acquire()
        primary.kill()
        with pytest.raises(StoreUnavailable):
            limits.try_acquire()

        def is_back() -> bool:
            with suppress(StoreUnavailable):
                return limits.try_acquire().successful
            return False

        def is_known() -> bool:
            with suppress(MasterNotFoundError):  # as long as the sentinel has doubts about it
                return manager.discover_master("limits")[1] == replica.port
            return False

        until(is_back, "nobody became the new primary")
        until(is_known, "another one became the new primary")
        store.close()
        for watcher in manager.sentinels:
            watcher.close()


def test_a_connection_to_a_primary_that_a_sentinel_named_is_replaced() -> None:
    with redis_sentinel() as (primary, _, sentinel):
        client = Sentinel([("127.0.0.1", sentinel.port)]).master_for("limits")
        store = RedisStore(client=client, **PATIENT)
        limits = limits_of(store, CallLimit(5, HOUR))
        with Redis(port=primary.port) as other:
            for _ in range(2):
                assert limits.try_acquire()
                other.client_kill_filter(_type="normal", skipme=True)
        assert limits.try_acquire()
        store.close()


def test_a_sentinel_without_a_primary_is_unavailable() -> None:
    impatient = {"retry": Retry(NoBackoff(), 0)}
    manager = Sentinel([("127.0.0.1", free_ports()[0])], sentinel_kwargs=impatient)
    store = RedisStore(client=manager.master_for("limits"))
    with pytest.raises(StoreUnavailable):
        limits_of(store, CallLimit(5, HOUR)).try_acquire()


def test_tasks_and_waiters_work_on_a_cluster(store: RedisClusterStore) -> None:
    limits = limits_of(store, RateLimit("tokens", 10, HOUR), ResourceLimit("db", 1))

    async def one_after_the_other() -> None:
        claim = claim_of(limits, {"tokens": 5})
        assert await store.aacquire(claim)
        await store.asettle(claim, changes_of(claim, {}))

    asyncio.run(one_after_the_other())
    held = limits.try_acquire({"tokens": 1})
    other = limits_of(store, RateLimit("tokens", 10, HOUR), ResourceLimit("db", 1))
    with ThreadPoolExecutor(1) as executor:
        waiter = executor.submit(other.acquire, {"tokens": 1})
        until(lambda: has_subscribed(store), "nobody listens")
        held.cancel()
        assert waiter.result(10)
    waiter.result().cancel()


def test_changed_limits_are_followed_on_a_cluster(store: RedisClusterStore) -> None:
    old, new = (
        LimitSet.composed([scoped(store, RateLimit("tokens", most, HOUR), entity=who) for who in PEOPLE], store)
        for most in (10, 20)
    )
    first = old.try_acquire({"tokens": 5})
    assert new.try_acquire({"tokens": 5})
    first.update({"tokens": 2})
    first.release()
    assert used(new, "tokens") == pytest.approx(7, abs=0.1)


def test_unreachable_cluster_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable):
        RedisClusterStore(url=f"redis://127.0.0.1:{free_ports()[0]}/0")


def test_a_client_that_the_caller_passed_is_not_closed(cluster: list[RedisServer]) -> None:
    with cluster_client(cluster[0].url) as client:
        store = RedisClusterStore(client=client, prefix=prefix(), **PATIENT)
        assert limits_of(store, CallLimit(5, HOUR)).try_acquire()
        store.close()
        assert limits_of(store, CallLimit(5, HOUR)).try_acquire()
        store.close()


def test_an_empty_set_can_be_looked_at_and_chosen(store: RedisClusterStore) -> None:
    empty = LimitSet.composed([], store, version=store.version())
    used_up = limits_of(store, CallLimit(1, HOUR))
    assert used_up.try_acquire()
    assert empty.get_stats() == {}
    claims = [claim_of(used_up), claim_of(empty)]
    assert store.acquire_first(claims, emptiest_first=True) is claims[1]
    store.advance_version()
    with pytest.raises(StaleConfiguration):
        empty.get_stats()


def test_keys_that_are_on_their_way_for_too_long_are_unavailable(
    cluster: list[RedisServer], store: RedisClusterStore
) -> None:
    limits = limits_of(store, CallLimit(5, HOUR))
    assert limits.try_acquire()
    key = record(store, limits)
    with cluster_client(cluster[0].url) as client:
        slot, source = client.keyslot(key), client.get_node_from_key(key)
        target = next(node for node in client.get_primaries() if node.name != source.name)
        name = target.redis_connection.execute_command("CLUSTER MYID").decode()
        source.redis_connection.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", name)
        source.redis_connection.delete(key)
        try:
            with pytest.raises(StoreUnavailable, match="the slots of the cluster keep moving"):
                limits.try_acquire()
        finally:
            source.redis_connection.execute_command("CLUSTER SETSLOT", slot, "STABLE")
    assert limits.try_acquire()


def test_one_thread_learns_where_keys_are_for_all_callers(
    store: RedisClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections, known = connections_of(store), Event()
    learned: list[bool] = []
    monkeypatch.setattr(connections, "_initialize", lambda: learned.append(known.wait(PATIENCE)))
    before = {*enumerate_threads()}
    for _ in range(2):
        connections._update_nodes()
    [learning] = {*enumerate_threads()} - before
    known.set()
    learning.join(PATIENCE)
    assert learned == [True]


def test_keys_that_no_server_has_are_unavailable() -> None:
    with redis_cluster(1) as (server,), Redis(port=server.port) as client:
        client.execute_command("CLUSTER DELSLOTS", *range(10, 16_384))
        with cluster_client(server.url, require_full_coverage=False) as ignorant:
            store = RedisClusterStore(client=ignorant, **PATIENT)
            with pytest.raises(StoreUnavailable, match="no server for these keys"):
                limits_of(store, CallLimit(5, HOUR)).try_acquire()
            store.close()


@contextmanager
def refusing(store: RedisClusterStore, limits: LimitSet) -> Iterator[None]:
    """The server that has the state of a set refuses to change it."""
    server = node_of(store, limits).redis_connection
    server.execute_command("ACL", "SETUSER", "default", "-hset")
    try:
        yield
    finally:
        server.execute_command("ACL", "SETUSER", "default", "+hset")


@pytest.fixture
def pair(store: RedisClusterStore) -> tuple[LimitSet, list[LimitSet]]:
    """A set over two scopes on two servers, and a set over each scope, in the order in which they are asked."""
    parts = [scoped(store, RateLimit("tokens", 100, HOUR), entity=who) for who in PEOPLE]
    parts.sort(key=lambda part: short_key(part.scope.key))
    single = [LimitSet.composed([part], store) for part in parts]
    nodes = [node_of(store, limits).name for limits in single]
    other = next(index for index, name in enumerate(nodes) if name != nodes[0])
    return LimitSet.composed([parts[0], parts[other]], store), [single[0], single[other]]


def test_a_release_that_a_server_has_ended_with_an_error_is_repeated_without_refunds(
    store: RedisClusterStore, pair: tuple[LimitSet, list[LimitSet]]
) -> None:
    family, (first, last) = pair
    claim = claimed(family, {"tokens": 50})
    assert store.acquire(claim)
    changes = [-20 * ask.rule.parts_per_unit for ask in claim.shape.limits]
    with refusing(store, last), pytest.raises(StoreUnavailable, match="refuses"):
        store.settle(claim, changes)
    assert not claim.settled
    for _ in range(2):
        store.settle(claim, changes)
    assert claim.settled
    assert [used(one, "tokens") for one in (first, last)] == [pytest.approx(50, abs=0.1)] * 2


def test_a_lease_is_kept_when_limits_have_changed_on_another_server(
    store: RedisClusterStore, pair: tuple[LimitSet, list[LimitSet]]
) -> None:
    _, (first, last) = pair
    scopes = [replace(first.scoped[0], schema=schema_of((ResourceLimit("db", 2),), store.lease_us)), last.scoped[0]]
    held = LimitSet.composed(scopes, store).try_acquire({"tokens": 50})
    changed = replace(last.scoped[0], schema=schema_of((RateLimit("tokens", 200, HOUR),), store.lease_us))
    assert LimitSet.composed([changed], store).try_acquire({"tokens": 1})
    held.update({"tokens": 10})
    held.release()
    assert held.claim.settled
    assert not held.lost_lease
    assert used(LimitSet.composed([changed], store), "tokens") == pytest.approx(11, abs=0.1)


def test_failed_refund_stays_charged_and_is_logged(
    store: RedisClusterStore,
    pair: tuple[LimitSet, list[LimitSet]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    family, (first, last) = pair
    assert first.try_acquire({"tokens": 1})
    assert last.try_acquire({"tokens": 90})

    def without_memory(undo: Callable[..., object], *arguments: object) -> object:
        with refusing(store, first):
            return undo(*arguments)

    at_next_call(monkeypatch, store, "_undo", without_memory)
    assert not family.try_acquire({"tokens": 20})
    assert "could not be refunded" in caplog.text
    assert used(first, "tokens") == pytest.approx(21, abs=0.1)


def test_idempotency_key_is_charged_after_the_limits_and_refunded_before_them(
    store: RedisClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, list[bool]]] = []

    def noted(name: str) -> None:
        verb = getattr(RedisStore, name)

        def call(self: RedisStore, part: Any, *given: Any) -> Any:
            claim = part[0] if name == "_decide" else part
            calls.append((name, [limit.level == IDEMPOTENCY_LEVEL for limit in claim.shape.limits]))
            return verb(self, part, *given)

        monkeypatch.setattr(RedisStore, name, call)

    noted("_decide")
    noted("_settle")
    once = schema_of((CallLimit(1, HOUR),), store.lease_us)
    for number in range(20):  # with each key, another server has it
        key = idempotency_scope("api", "ann", f"order {number}")
        keyed = [
            ScopedLimits(scope, once, IDEMPOTENCY_LEVEL, prefix="idempotency:")
            for scope in (key, amounts_scope(key, {}))
        ]
        parts = [scoped(store, RateLimit("tokens", 10, HOUR), entity=who) for who in PEOPLE]
        acquisition = LimitSet.composed([*keyed, *parts], store).try_acquire({"tokens": number % 2 + 1})
        assert acquisition
        acquisition.cancel()
        groups = [of_key for name, of_key in calls if name == "_decide"]
        refunds = [of_key for name, of_key in calls if name == "_settle"]
        assert groups[-1].count(True) == 2
        assert not any(any(group) for group in groups[:-1])
        assert refunds == groups[::-1]
        calls.clear()


def test_a_release_by_a_finalizer_while_a_server_is_met_for_the_first_time(
    store: RedisClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = limits_of(store, ResourceLimit("db", 2))
    held = limits.try_acquire()

    def make_while_something_is_finalized(make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        held.release()
        return make(*arguments, **options)

    connections_of(store)._by_node.clear()
    at_next_call(monkeypatch, cluster_module, "Connections", make_while_something_is_finalized)
    acquired: list[object] = []
    caller = Thread(target=lambda: acquired.append(limits.try_acquire()), daemon=True)
    caller.start()
    caller.join(PATIENCE)
    assert acquired
    assert held.is_released

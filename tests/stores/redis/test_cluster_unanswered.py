"""Servers of a cluster that stand still: nobody waits for them, and what they charged unheard is given back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from time import monotonic

import pytest

from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.keys import IDEMPOTENCY_LEVEL, idempotency_scope, short_key
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.engine.plan import ScopedLimits
from limits_app.engine.record import schema_of
from limits_app.stores.redis import RedisClusterStore
from limits_app.stores.redis.calls import Command
from limits_app.stores.redis.opening import tag_of
from tests.servers.redis import RedisServer, until
from tests.stores.redis.support import Keeper, record, scoped
from tests.stores.support import used

YEAR = 366 * 86_400
TOKENS = RateLimit("tokens", 100, YEAR)
PEOPLE = [f"person {number}" for number in range(6)]
SECONDS = 0.1


@pytest.fixture
def store(cluster_store: RedisClusterStore) -> RedisClusterStore:
    return cluster_store


@pytest.fixture
def keeper(store: RedisClusterStore) -> Keeper:
    return Keeper(store)


@pytest.fixture
def parts(store: RedisClusterStore) -> list[ScopedLimits]:
    """Limits of several people, in the order in which they are asked, all of which were used before."""
    parts = [scoped(store, TOKENS, ResourceLimit("db", 5), entity=who) for who in PEOPLE]
    parts.sort(key=lambda part: tag_of(short_key(part.scope.key)))
    acquired = LimitSet.composed(parts, store).try_acquire({"tokens": 20})
    acquired.update({"tokens": 20})
    acquired.release()
    return parts


@contextmanager
def frozen(cluster: list[RedisServer], store: RedisClusterStore, limits: LimitSet) -> Iterator[None]:
    """The server that has the state of some limits takes what it is sent, and answers when it goes on."""
    port = store._connections._client.get_node_from_key(record(store, limits)).port
    server = next(server for server in cluster if server.port == port)
    by_node = store._connections._by_node.values()
    for connections in by_node:
        connections.close()
        connections.connect_seconds, connections.reply_seconds = 10, SECONDS
        connections._idle.append(connections._connect())
        connections.connect_seconds = SECONDS
    store._connections.reply_seconds = SECONDS
    server.freeze()
    try:
        yield
    finally:
        server.resume()
        for connections in by_node:
            connections.connect_seconds = connections.reply_seconds = 10
            connections.close()


def test_what_a_server_has_charged_and_not_answered_is_given_back(
    cluster: list[RedisServer], store: RedisClusterStore, parts: list[ScopedLimits], keeper: Keeper
) -> None:
    family, single = LimitSet.composed(parts, store), [LimitSet.composed([part], store) for part in parts]
    with frozen(cluster, store, single[-1]), pytest.raises(StoreUnavailable):
        family.try_acquire({"tokens": 50})
    assert len(keeper.kept) == 1
    kept = keeper.kept[0]
    until(lambda: used(single[-1], "tokens") > 60, "the server does not do what it was asked")  # type: ignore[operator]
    keeper.catch_up()
    store.settle(*kept)
    assert [used(one, "tokens") for one in single] == [pytest.approx(20, abs=0.1)] * len(PEOPLE)
    assert [used(one, "db") for one in single] == [0] * len(PEOPLE)


def test_amounts_stay_charged_with_a_key_whose_server_has_not_answered(
    cluster: list[RedisServer], store: RedisClusterStore, parts: list[ScopedLimits], keeper: Keeper
) -> None:
    def port_of(limits: LimitSet) -> int:
        return store._connections._client.get_node_from_key(record(store, limits)).port

    once = schema_of((CallLimit(1, YEAR, RateLimitAlgorithm.TOKEN_BUCKET),), store.lease_us)
    keys = [
        ScopedLimits(idempotency_scope("api", "ann", f"order {number}"), once, IDEMPOTENCY_LEVEL, prefix="key:")
        for number in range(20)
    ]
    amounts = LimitSet.composed(parts[:1], store)
    key = next(key for key in keys if port_of(LimitSet.composed([key], store)) != port_of(amounts))
    of_key = LimitSet.composed([key], store)
    assert of_key.try_acquire({"key:call_count": 0})
    with frozen(cluster, store, of_key), pytest.raises(StoreUnavailable):
        LimitSet.composed([key, *parts[:1]], store).try_acquire({"tokens": 50})
    until(lambda: used(of_key, "key:call_count") > 0.9, "the server does not do what it was asked")  # type: ignore[operator]
    assert used(amounts, "tokens") == pytest.approx(70, abs=0.1)
    keeper.catch_up()
    assert used(of_key, "key:call_count") == pytest.approx(0, abs=0.1)
    assert used(amounts, "tokens") == pytest.approx(20, abs=0.1)


@pytest.mark.parametrize("tokens", [50, 90])
def test_what_cannot_be_found_out_yet_is_asked_for_again_and_a_rejection_refunds_nothing(
    cluster: list[RedisServer], store: RedisClusterStore, parts: list[ScopedLimits], keeper: Keeper, tokens: int
) -> None:
    limits = LimitSet.composed(parts[:1], store)
    with frozen(cluster, store, limits):
        with pytest.raises(StoreUnavailable):
            limits.try_acquire({"tokens": tokens})
        with pytest.raises(StoreUnavailable):
            keeper.catch_up()
    keeper.catch_up()
    assert used(limits, "tokens") == pytest.approx(20, abs=0.1)


def test_a_rejected_request_that_is_interrupted_anywhere_charges_nothing_in_the_end(
    store: RedisClusterStore, parts: list[ScopedLimits], keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, single = LimitSet.composed(parts[:3], store), [LimitSet.composed([part], store) for part in parts[:3]]
    with single[-1].try_acquire({"tokens": 75}) as acquisition:
        acquisition.update({"tokens": 75})
    run = store._connections.run
    for nth in range(8):
        numbers = count()

        def interrupted(call: Command, nth: int = nth, numbers: Iterator[int] = numbers) -> object:
            reply = run(call)
            if next(numbers) == nth:
                raise KeyboardInterrupt
            return reply

        with monkeypatch.context() as patch:
            patch.setattr(store._connections, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                family.try_acquire({"tokens": 10})
        keeper.catch_up()
        assert [used(one, "tokens") for one in single] == [pytest.approx(most, abs=0.1) for most in (20, 20, 95)]
        assert [used(one, "db") for one in single] == [0, 0, 0]


def test_a_request_that_no_server_receives_leaves_nothing_in_doubt(
    store: RedisClusterStore, parts: list[ScopedLimits], keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(_: Command) -> None:
        raise StoreUnavailable("the cluster has no server for these keys")

    monkeypatch.setattr(store._connections, "run", unreachable)
    with pytest.raises(StoreUnavailable):
        LimitSet.composed(parts, store).try_acquire({"tokens": 10})
    assert not keeper.kept


@pytest.mark.alone
def test_nobody_waits_until_it_is_learned_who_has_which_keys_now(
    cluster: list[RedisServer], store: RedisClusterStore, parts: list[ScopedLimits]
) -> None:
    limits = LimitSet.composed(parts[:1], store)
    with frozen(cluster, store, limits):
        for _ in range(3):
            started = monotonic()
            with pytest.raises(StoreUnavailable):
                limits.try_acquire({"tokens": 1})
            assert monotonic() - started < 5 * SECONDS

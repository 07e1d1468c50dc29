"""Calls whose reply is lost: none is sent again, and releases deliver permits and debt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from threading import Event

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.pool import LimitPool
from limits_app.engine.claims import Claim
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.keys import scope_of, short_key
from limits_app.engine.limits import CountedUnit, QuotaLimit, ResourceLimit
from limits_app.engine.prices import UnitPrice
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.redis import RedisClusterStore, RedisStore
from limits_app.stores.redis.commands import RedisCommand
from limits_app.stores.redis.errors import Unanswered
from limits_app.stores.redis.opening import tag_of
from limits_app.testing.conformance.contract import counting, total
from tests.replacing import at_next_call
from tests.servers.machine import HOST
from tests.servers.proxy import Proxy, proxy
from tests.servers.redis import RedisServer
from tests.stores.redis.support import PATIENT, changes_of, claimed, prefix, record, scoped
from tests.stores.support import Loser, connections_of, limits_of, used

UNITS = QuotaLimit("units", 10**6, "day")
PERMITS = ResourceLimit("db", 5)


class Sent(Loser):
    """Notes the scripts that are sent, and loses some of the replies to them."""

    def __init__(self) -> None:
        super().__init__(b"EVALSHA")
        self.scripts = 0

    def __call__(self, command: bytes) -> bool:
        self.scripts += self.command in command
        return super().__call__(command)


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def lossy(redis: RedisServer, sent: Sent) -> Iterator[Proxy]:
    with proxy(redis.port, sent) as between:
        yield between


@pytest.fixture
def store(lossy: Proxy) -> Iterator[RedisStore]:
    """A store with keys of its own, over the proxy."""
    with closing(RedisStore(url=f"redis://{HOST}:{lossy.port}/0", prefix=prefix(), **PATIENT)) as store:
        yield store


@pytest.fixture(params=["thread", "task"])
def acquire(request: pytest.FixtureRequest, store: RedisStore) -> Callable[[Claim], bool]:
    if request.param == "thread":
        return store.acquire
    return lambda claim: asyncio.run(store.aacquire(claim))


@pytest.fixture(params=["thread", "task"])
def settle(request: pytest.FixtureRequest, store: RedisStore) -> Callable[[Claim, list[int]], object]:
    if request.param == "thread":
        return store.settle
    return lambda claim, changes: asyncio.run(store.asettle(claim, changes))


def test_acquire_is_sent_once_and_reported_amounts_were_charged(
    store: RedisStore, acquire: Callable[[Claim], bool], sent: Sent, lossy: Proxy
) -> None:
    limits, told = limits_of(store, UNITS), 0
    assert acquire(claimed(limits, {"units": 1}))
    sent.share, sent.scripts = 0.2, 0
    for _ in range(200):
        claim = claimed(limits, {"units": 1})
        try:
            told += acquire(claim)
        except Unanswered:
            assert claim.admitted is None
    sent.share = 0
    assert sent.scripts == 200
    assert told == 200 - lossy.lost < 200
    assert used(limits, "units") == 201


@pytest.mark.parametrize("load_balancing", ["round_robin", "least_loaded", "failover"])
def test_a_pool_is_sent_once(store: RedisStore, sent: Sent, load_balancing: str) -> None:
    sets = [limits_of(store, UNITS, entity=f"member {number}") for number in range(3)]
    pool = LimitPool(sets, load_balancing)
    assert pool.try_acquire({"units": 1})
    sent.next, sent.scripts = 1, 0
    with pytest.raises(StoreUnavailable):
        pool.try_acquire({"units": 1})
    assert sent.scripts == 1
    assert sum(used(limits, "units") or 0 for limits in sets) == 2


def test_money_and_its_units_are_one_message(store: RedisStore, sent: Sent) -> None:
    units = QuotaLimit.per_month("usd", 5), CountedUnit("cached", "cached"), UNITS
    prices = tuple([UnitPrice.of(unit, "usd", Decimal(2), 1000) for unit in ("cached", "units")])
    schema = schema_of(units, store.lease_us, counts_usage=True)
    scopes = [ScopedLimits(scope_of("llm", entity), schema, prices=prices) for entity in ("user", "team")]
    limits = LimitSet.composed(scopes, store)
    for tokens in (100, 20):
        before, sent.scripts = sent.scripts, 0
        acquisition = limits.try_acquire({"units": tokens, "cached": tokens})
        assert (before, sent.scripts, acquisition.successful) == (2 * (tokens == 20), 1, True)
        acquisition.update({"units": tokens, "cached": 0})
        acquisition.release()
    assert limits.get_stats()["usd"]["used"] == 0.24


def test_retries_of_the_site_s_client_are_off(lossy: Proxy, sent: Sent) -> None:
    with Redis(port=lossy.port, retry=Retry(NoBackoff(), 10)) as client:
        store = RedisStore(client=client, prefix=prefix(), **PATIENT)
        limits = limits_of(store, UNITS)
        assert limits.try_acquire({"units": 1})
        sent.next, sent.scripts = 1, 0
        with pytest.raises(StoreUnavailable):
            limits.try_acquire({"units": 1})
        assert sent.scripts == 1
        store.close()


@pytest.mark.parametrize(
    ("units", "charged"),
    [pytest.param(40, (40,), id="a_refund"), pytest.param(150, (150, 200), id="debt")],
)
def test_a_release_without_an_answer_is_sent_again_without_refunds_and_usage(
    store: RedisStore,
    settle: Callable[[Claim, list[int]], object],
    sent: Sent,
    caplog: pytest.LogCaptureFixture,
    units: int,
    charged: tuple[int, ...],
) -> None:
    limits = counting(store, UNITS, PERMITS)
    limits.try_acquire({"units": 0}).release()  # so that the server knows the scripts
    total(store)
    claim, held = claimed(limits, {"units": 100}), claimed(limits, {"units": 0})
    assert store.acquire(claim)
    assert store.acquire(held)
    changes = changes_of(claim, {"units": units})
    sent.next = 2
    for _ in range(2):
        with pytest.raises(Unanswered):
            settle(claim, changes)
        assert not claim.settled
    settle(claim, changes)
    assert claim.settled
    assert used(limits, "units") in {*charged, 250}
    assert used(limits, "db") == 1
    assert total(store) == (units + 2) * 1000, "usage is counted once"
    assert "ran out" not in caplog.text
    settle(claim, changes)
    settle(held, changes_of(held, {}))
    assert used(limits, "units") in {*charged, 250}


def test_a_release_that_did_not_arrive_returns_its_permits(store: RedisStore, sent: Sent, lossy: Proxy) -> None:
    limits = limits_of(store, UNITS, PERMITS)
    claim = claimed(limits, {"units": 100})
    assert store.acquire(claim)
    sent.share, sent.arrives = 1, False
    with pytest.raises(Unanswered):
        store.settle(claim, changes_of(claim, {"units": 150}))
    sent.share = 0
    store.settle(claim, changes_of(claim, {"units": 150}))
    assert used(limits, "units") == 150
    assert used(limits, "db") == 0


def test_a_release_that_was_not_sent_waits_whole(store: RedisStore, lossy: Proxy, redis: RedisServer) -> None:
    limits = counting(store, UNITS, PERMITS)
    claim = claimed(limits, {"units": 100})
    assert store.acquire(claim)
    lossy.close()
    store.close()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            store.settle(claim, changes_of(claim, {"units": 40}))
    assert not claim.unanswered
    with closing(RedisStore(url=redis.url, prefix=store.prefix, **PATIENT)) as straight:
        connections_of(store).run = connections_of(straight).run
        store.settle(claim, changes_of(claim, {"units": 40}))
        assert used(counting(straight, UNITS, PERMITS), "units") == 40
        assert total(straight) == 41_000


def test_a_release_that_another_thread_has_begun_is_not_sent_again(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = limits_of(store, UNITS)
    claim = claimed(limits, {"units": 100})
    assert store.acquire(claim)

    def released_meanwhile(run: Callable[[RedisCommand], object], call: RedisCommand) -> object:
        store.settle(claim, [-50])
        return run(call)

    at_next_call(monkeypatch, connections_of(store), "run", released_meanwhile)
    store.settle(claim, [-50])
    assert used(limits, "units") == 50


@pytest.fixture
def groups(cluster_store: RedisClusterStore) -> list[LimitSet]:
    """Sets of scopes on several servers, in the order in which they are charged."""
    parts = [scoped(cluster_store, UNITS, PERMITS, entity=f"person {number}") for number in range(6)]
    family = LimitSet.composed(parts, cluster_store)
    assert family.try_acquire({"units": 1, "db": 0})
    parts.sort(key=lambda part: tag_of(short_key(part.scope.key)))
    return [LimitSet.composed([part], cluster_store) for part in parts]


def fail_once(monkeypatch: pytest.MonkeyPatch, store: RedisClusterStore, key: bytes, *, lost: bool = False) -> None:
    """Have the next command about a key refused, or its reply lost; later ones are as usual."""
    run, has_failed = connections_of(store).run, Event()

    def failing_once(call: RedisCommand) -> object:
        if has_failed.is_set() or key not in call.keys():  # noqa: SIM118 - a command is no mapping
            return run(call)
        has_failed.set()
        if lost:
            run(call)
            raise Unanswered("lost")
        raise StoreUnavailable("refused")

    monkeypatch.setattr(connections_of(store), "run", failing_once)


@pytest.mark.parametrize("lost", [True, False])
def test_groups_before_one_that_is_not_answered_stay_charged_and_others_are_refunded(
    cluster_store: RedisClusterStore, groups: list[LimitSet], monkeypatch: pytest.MonkeyPatch, *, lost: bool
) -> None:
    family = LimitSet.composed([limits.scoped[0] for limits in groups], cluster_store)
    fail_once(monkeypatch, cluster_store, record(cluster_store, groups[3]), lost=lost)
    with pytest.raises(StoreUnavailable):
        family.try_acquire({"units": 10, "db": 1})
    most = 11 if lost else 1
    assert [used(limits, "units") for limits in groups] == [most] * 4 + [1] * 2 if lost else [1] * 6
    assert [used(limits, "db") for limits in groups] == [1] * 4 + [0] * 2 if lost else [0] * 6


def test_a_release_that_some_servers_have_settled_delivers_permits_and_debt_to_the_others(
    cluster_store: RedisClusterStore, groups: list[LimitSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    family = LimitSet.composed([limits.scoped[0] for limits in groups], cluster_store)
    claim = claimed(family, {"units": 10, "db": 1})
    assert cluster_store.acquire(claim)
    fail_once(monkeypatch, cluster_store, record(cluster_store, groups[3]))
    with pytest.raises(Unanswered):
        cluster_store.settle(claim, changes_of(claim, {"units": 4}))
    cluster_store.settle(claim, changes_of(claim, {"units": 4}))
    assert [used(limits, "units") for limits in groups] == [11] * 4 + [5] * 2
    assert [used(limits, "db") for limits in groups] == [0] * 6

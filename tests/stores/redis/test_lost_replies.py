"""Replies that are lost after the server has done its work: everything is charged exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from redis import Redis

from limits_app.acquiring.pool import LimitPool
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.stores.redis import RedisStore
from limits_app.testing.conformance.contract import taken
from tests.servers.proxy import Proxy, proxy
from tests.servers.redis import RedisServer
from tests.stores.redis.support import PATIENT, changes_of
from tests.stores.support import Loser, limits_of, used

DAY = 86_400


@pytest.fixture
def loser() -> Loser:
    return Loser(b"EVALSHA")


@pytest.fixture
def lossy(redis: RedisServer, loser: Loser) -> Iterator[Proxy]:
    with proxy(redis.port, loser) as made:
        yield made


@pytest.fixture
def open_store(lossy: Proxy) -> Iterator[Callable[[], RedisStore]]:
    stores: list[RedisStore] = []

    def opened() -> RedisStore:
        prefix = f"lossy{len(stores)}-{lossy.port}:"
        stores.append(RedisStore(url=f"redis://127.0.0.1:{lossy.port}/0", prefix=prefix, **PATIENT))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


def test_a_thousand_acquisitions_are_charged_once_each_when_a_fifth_of_the_replies_is_lost(
    open_store: Callable[[], RedisStore], lossy: Proxy, loser: Loser
) -> None:
    store = open_store()
    limits = limits_of(store, CallLimit(10_000, 366 * DAY))
    assert limits.try_acquire()
    loser.share = 0.2
    assert all(limits.try_acquire() for _ in range(999))
    loser.share = 0
    assert lossy.lost > 150
    assert used(limits) == pytest.approx(1000, abs=0.01)  # a little drains meanwhile


@pytest.mark.parametrize("load_balancing", ["round_robin", "least_loaded"])
def test_what_was_chosen_is_charged_once(
    open_store: Callable[[], RedisStore], lossy: Proxy, loser: Loser, load_balancing: str
) -> None:
    store = open_store()
    sets = [limits_of(store, CallLimit(100, 366 * DAY), entity=who) for who in ("one", "two", "three")]
    pool = LimitPool(sets, load_balancing=load_balancing)
    loser.share = 0.2
    assert all(pool.try_acquire() for _ in range(210))
    loser.share = 0
    assert lossy.lost > 20
    assert [used(limits) for limits in sets] == [pytest.approx(70, abs=0.01)] * 3


def test_settlements_are_done_once_each(
    open_store: Callable[[], RedisStore], lossy: Proxy, loser: Loser, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    limits = limits_of(store, RateLimit("tokens", 10**6, 366 * DAY), ResourceLimit("db", 300))
    held = [limits.try_acquire({"tokens": 10}) for _ in range(300)]
    loser.share = 0.2
    for one in held:
        one.update({"tokens": 3})
        while not one.claim.settled:
            with suppress(StoreUnavailable):
                one.release()
    loser.share = 0
    assert lossy.lost > 40
    assert used(limits, "tokens") == pytest.approx(3 * 300, abs=0.1)
    assert used(limits, "db") == 0
    assert "ran out" not in caplog.text


def test_a_holder_is_told_once_although_the_reply_that_says_so_is_lost(
    open_store: Callable[[], RedisStore], redis: RedisServer, loser: Loser, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    held = limits_of(store, ResourceLimit("db", 1)).try_acquire()
    with Redis(port=redis.port) as client:
        client.flushall()
    loser.next = 1
    held.release()
    assert loser.next == 0
    assert caplog.text.count("the lease of db ran out") == 1


def test_a_settlement_that_was_never_answered_is_done_once_when_it_is_asked_for_again(
    open_store: Callable[[], RedisStore], loser: Loser
) -> None:
    store = open_store()
    limits = limits_of(store, RateLimit("tokens", 100, DAY), RateLimit("others", 100, DAY))
    one = limits.try_acquire({"tokens": 10})
    one.update({"tokens": 4})
    loser.next = 10
    with pytest.raises(StoreUnavailable):
        one.release()
    loser.next = 0
    assert limits.try_acquire({"others": 1})
    assert not one.claim.settled
    one.release()
    assert one.claim.settled
    assert used(limits, "tokens") == pytest.approx(4, abs=0.1)


def test_permits_are_lent_and_given_back_once(open_store: Callable[[], RedisStore], loser: Loser) -> None:
    store = open_store()
    limits = limits_of(store, ResourceLimit("db", 2))
    loser.next = 1
    first = taken(limits)
    assert used(limits, "db") == 1
    loser.next = 1
    store.settle(first, changes_of(first, {}))
    assert used(limits, "db") == 0


def test_a_fence_is_the_one_that_was_granted(open_store: Callable[[], RedisStore], loser: Loser) -> None:
    store = open_store()
    limits = limits_of(store, ResourceLimit("db", 2))
    with limits.try_acquire() as first:
        loser.next = 1
        with limits.try_acquire({"db": 1}) as second:
            assert second.fences["db"] > first.fences["db"]

"""Choosing among claims: one round trip, whatever is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from redis import Redis

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.pool import LimitPool
from limits_app.acquiring.store import Store
from limits_app.engine.claims import Claim
from limits_app.engine.limits import (
    AnyLimit,
    Blocked,
    CallLimit,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.stores.memory import MemoryStore
from limits_app.stores.redis import RedisStore
from limits_app.testing import FakeClock
from tests.servers.redis import RedisServer
from tests.stores.redis.support import claimed, forget_time, scripts_run, store_on
from tests.stores.support import limits_of, used

HOUR = 3600
DAY = 86_400
TOKENS = RateLimit("tokens", 10, HOUR)
WINDOW = RateLimit("tokens", 10, HOUR, RateLimitAlgorithm.SLIDING_WINDOW)
"""Unused amounts stay spent, so that a rejection is remembered."""


def members(store: RedisStore, *limits: AnyLimit, number: int = 3, version: int | None = None) -> list[LimitSet]:
    """So many sets of the same limits, each for an entity of its own."""
    return [limits_of(store, *limits, entity=f"member {index}", version=version) for index in range(number)]


def claims_of(sets: Sequence[LimitSet], tokens: int) -> list[Claim]:
    return [claimed(limits, {"tokens": tokens}) for limits in sets]


@pytest.mark.parametrize("load_balancing", ["round_robin", "random", "weighted", "least_loaded", "failover"])
def test_a_pool_takes_one_round_trip(store: RedisStore, client: Redis, load_balancing: str) -> None:
    pool = LimitPool(members(store, CallLimit(10, HOUR), number=6), load_balancing=load_balancing)
    assert pool.try_acquire()
    before = scripts_run(client)
    assert all(pool.try_acquire() for _ in range(50))
    assert scripts_run(client) == before + 50


def test_request_known_to_be_rejected_is_not_sent(store: RedisStore, client: Redis) -> None:
    sets = members(store, WINDOW)
    for limits in sets:
        assert limits.try_acquire({"tokens": 8})
    # A script that the server does not have yet is run twice.
    assert store.acquire_first(claims_of(sets, 1))
    assert store.acquire_first(claims_of(sets, 1), emptiest_first=True, failover=False)
    for limits in sets[:2]:
        assert not limits.try_acquire({"tokens": 5})
    before = scripts_run(client)
    claims = claims_of(sets, 5)
    assert store.acquire_first(claims) is None
    assert [claim.admitted for claim in claims] == [False] * 3
    assert store.acquire_first(claims_of(sets, 5), emptiest_first=True) is None
    assert scripts_run(client) == before + 1
    assert store.acquire_first(claims_of(sets, 5), emptiest_first=True, failover=False) is None
    assert scripts_run(client) == before + 2, "which one is the emptiest only the server knows"


def test_limits_of_all_kinds_are_chosen_among(store: RedisStore) -> None:
    limits: list[list[AnyLimit]] = [
        [RateLimit("tokens", 16, DAY), Blocked()],
        [RateLimit("tokens", 16, DAY, RateLimitAlgorithm.SLIDING_WINDOW), ResourceLimit("db", 1)],
        [QuotaLimit.per_day("tokens", 16, "Asia/Tokyo"), CallLimit(5, DAY, RateLimitAlgorithm.FIXED_WINDOW)],
        [QuotaLimit.per_session("tokens", 16, DAY), CallLimit(5, DAY, RateLimitAlgorithm.GCRA)],
        [QuotaLimit.per_month("tokens", 8, soft=True), CallLimit(5, DAY, RateLimitAlgorithm.LEAKY_BUCKET)],
    ]
    sets = [limits_of(store, *some, entity=str(number)) for number, some in enumerate(limits)]
    for expected in (1, 2, 3, 4, 4):
        claims = claims_of(sets, 16)
        assert store.acquire_first(claims) is claims[expected]
    assert [one.get_stats()["tokens"]["used"] for one in sets] == [0, 16, 16, 16, 32]
    claims = claims_of(sets, 16)
    assert store.acquire_first(claims, emptiest_first=True) is claims[4]
    assert [claim.admitted for claim in claims] == [False] * 4 + [True]


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_the_emptiest_of_those_that_have_one_limit_is_that_of_the_memory_store(
    redis: RedisServer, algorithm: RateLimitAlgorithm
) -> None:
    clock = FakeClock()
    ours, reference = store_on(redis, clock=clock), MemoryStore(clock=clock)

    def chosen(store: Store, tokens: int) -> tuple[object, ...]:
        limits = [RateLimit("tokens", capacity, HOUR, algorithm) for capacity in (10, 10, 12, 23)]
        sets = [limits_of(store, limit, entity=str(number)) for number, limit in enumerate(limits)]
        claims = claims_of(sets, tokens)
        found = store.acquire_first(claims, emptiest_first=True)
        return (found and claims.index(found), *[claim.admitted for claim in claims])

    for step in range(200):
        clock.move(7_000_000 * (step % 11))
        assert chosen(ours, 1 + step % 5) == chosen(reference, 1 + step % 5)
    ours.close()


def test_the_emptiest_is_so_by_limits_that_have_just_changed(store: RedisStore) -> None:
    for entity, tokens in (("changed", 8), ("same", 5)):
        assert limits_of(store, TOKENS, entity=entity).try_acquire({"tokens": tokens})
    larger = RateLimit("tokens", 100, HOUR)
    claims = claims_of([limits_of(store, larger, entity="changed"), limits_of(store, TOKENS, entity="same")], 1)
    assert store.acquire_first(claims, emptiest_first=True) is claims[0]


def test_an_empty_set_is_the_emptiest(store: RedisStore) -> None:
    sets = [limits_of(store, TOKENS), LimitSet.composed([], store, version=store.version())]
    claims = [claimed(sets[0], {"tokens": 1}), claimed(sets[1], {})]
    assert store.acquire_first(claims) is claims[0]
    claims = [claimed(sets[0], {"tokens": 1}), claimed(sets[1], {})]
    assert store.acquire_first(claims, emptiest_first=True) is claims[1]


def test_a_server_with_an_unknown_time_receives_the_right_periods(store: RedisStore) -> None:
    sets = members(store, QuotaLimit.per_month("tokens", 10))
    claim = claimed(sets[0], {"tokens": 8})
    for expected in (0, 1):
        forget_time(store)
        claims = claims_of(sets, 8)
        assert store.acquire_first(claims) is claims[expected]
    forget_time(store)
    assert not store.acquire(claim)
    forget_time(store)
    store.settle(claims[1], [-3])
    assert sets[1].get_stats()["tokens"]["used"] == 5


def test_prepared_requests_are_bounded(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limits_app.stores.redis.calls._MOST_CHOICES", 1)
    sets = members(store, CallLimit(10, HOUR))
    pools = [LimitPool(sets, load_balancing=load_balancing) for load_balancing in ("round_robin", "least_loaded")]
    assert sum(bool(pool.try_acquire()) for _ in range(16) for pool in pools) == 30
    assert len(store._calls._choices) == 1


def test_two_definitions_of_one_scope_are_chosen_among(store: RedisStore, client: Redis) -> None:
    sets = [
        limits_of(store, RateLimit("tokens", size, HOUR), entity=who) for size, who in [(10, "a"), (20, "a"), (5, "b")]
    ]
    assert sets[1].try_acquire({"tokens": 4})
    claims = claims_of(sets, 5)
    assert store.acquire_first(claims, emptiest_first=True) is claims[2]
    assert [claim.admitted for claim in claims] == [None, None, True]
    claims = claims_of(sets, 5)
    before = scripts_run(client)
    assert store.acquire_first(claims, emptiest_first=True) is claims[1]
    assert scripts_run(client) == before + 2, "the first finds that the definitions differ"
    claims = claims_of(sets, 5)
    assert store.acquire_first(claims, emptiest_first=True, failover=False) is claims[1]


def test_tasks_choose_as_threads_do(store: RedisStore, client: Redis) -> None:
    sets = members(store, WINDOW, ResourceLimit("db", 5))

    async def choose(tokens: int, **options: bool) -> list[bool | None]:
        claims = claims_of(sets, tokens)
        await store.aacquire_first(claims, **options)
        return [claim.admitted for claim in claims]

    async def one_after_the_other() -> None:
        assert await choose(8) == [True, None, None], "in a thread, since nothing is prepared"
        client.flushall()
        assert await choose(8) == [True, None, None], "and the server forgot all"
        assert await choose(8) == [False, True, None]
        assert await choose(8, emptiest_first=True) == [False, None, True], "of one it was known"
        assert await choose(8, emptiest_first=True) == [False] * 3
        assert await choose(8, emptiest_first=True) == [False] * 3
        assert await choose(8, failover=False) == [False, None, None]

    asyncio.run(one_after_the_other())


@pytest.mark.parametrize(
    ("limit", "tokens"),
    [
        pytest.param(TOKENS, 5, id="admitted"),
        pytest.param(TOKENS, 9, id="rejected"),
        pytest.param(QuotaLimit.per_month("tokens", 10), 5, id="other calendars"),
    ],
)
def test_a_task_that_is_cancelled_while_it_chooses_is_charged_nothing(
    store: RedisStore, redis: RedisServer, limit: AnyLimit, tokens: int
) -> None:
    sets = members(store, limit)
    for limits in sets:
        assert store.acquire(claimed(limits, {"tokens": 2}))

    async def cancel() -> None:
        assert await store.aacquire_first(claims_of(sets, 1)) is not None
        assert await store.aacquire_first(claims_of(sets, 1)) is not None
        forget_time(store)
        redis.freeze()
        task = asyncio.create_task(store.aacquire_first(claims_of(sets, tokens)))
        await asyncio.sleep(0)  # so that it has asked
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        redis.resume()

    asyncio.run(cancel())  # which waits for what threads have to finish
    assert [used(limits, "tokens") for limits in sets] == [pytest.approx(count, abs=0.1) for count in (4, 2, 2)]

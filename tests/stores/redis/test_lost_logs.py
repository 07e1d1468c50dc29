"""A server whose memory is full may evict the log of a sliding window alone: nobody fails, or gets more, by that."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

import pytest
from redis import Redis

from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.algorithms.windows import STEPS
from limits_app.engine.keys import short_key
from limits_app.engine.limits import RateLimit, RateLimitAlgorithm
from limits_app.stores.redis import RedisStore
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import claim_of, credit_of
from tests.servers.redis import RedisServer
from tests.stores.redis.support import names_of, store_on
from tests.stores.support import limits_of, used

CAPACITY: Final = 20
WINDOW_US: Final = 1_000_000_000
STEP_US: Final = WINDOW_US // STEPS
LIMIT: Final = RateLimit("units", CAPACITY, WINDOW_US // 1_000_000, RateLimitAlgorithm.SLIDING_WINDOW)


@pytest.fixture
def store(redis: RedisServer, clock: FakeClock) -> Iterator[RedisStore]:
    with_clock = store_on(redis, clock=clock)
    yield with_clock
    with_clock.close()


def log_of(store: RedisStore, limits: LimitSet) -> bytes:
    """The key of the log."""
    return names_of(store).log(short_key(limits.scoped[0].scope.key), LIMIT.key)


@pytest.mark.parametrize("seed", range(20))
def test_lost_logs_neither_over_admit_nor_fail(store: RedisStore, client: Redis, clock: FakeClock, seed: int) -> None:
    random, limits, taken = Random(seed), limits_of(store, LIMIT), list[tuple[int, int]]()
    for _ in range(120):
        clock.move(random.choice([0, 1, STEP_US // 2, STEP_US + 1, WINDOW_US // 30, WINDOW_US // 7]))
        if random.random() < 0.15:
            client.delete(log_of(store, limits))
        amount = random.randint(0, 5)
        claim = claim_of(limits, {LIMIT.key: amount})
        if store.acquire(claim):
            more = random.choice([0, 0, 0, 2]) if amount else 0
            store.settle(claim, [more])
            taken.append((clock.now_us, amount))
        assert sum(one for at, one in taken if at > clock.now_us - WINDOW_US) <= CAPACITY
    clock.move(WINDOW_US)
    assert used(limits, LIMIT.key) == 0
    assert limits.try_acquire({LIMIT.key: CAPACITY})


def spread(limits: LimitSet, clock: FakeClock, parts: int = 4) -> None:
    """Take one unit in each of several steps."""
    for _ in range(parts):
        assert limits.try_acquire({LIMIT.key: 1})
        clock.move(WINDOW_US // 10)


def test_what_stood_in_it_counts_until_the_last_of_all_has_expired(
    store: RedisStore, client: Redis, clock: FakeClock
) -> None:
    limits = limits_of(store, LIMIT)
    spread(limits, clock)
    client.delete(log_of(store, limits))
    clock.move(WINDOW_US * 6 // 10)  # the first would be forgotten by now
    assert used(limits, LIMIT.key) == 4
    refused = limits.try_acquire({LIMIT.key: CAPACITY - 3})
    assert not refused
    assert refused.outcome.retry_after == pytest.approx(WINDOW_US * 3 / 10 / 1e6, abs=2)
    clock.move(WINDOW_US * 3 // 10 + 2 * STEP_US)
    assert used(limits, LIMIT.key) == 0


def test_the_next_request_starts_a_log_that_expires(store: RedisStore, client: Redis, clock: FakeClock) -> None:
    limits = limits_of(store, LIMIT)
    spread(limits, clock)
    client.delete(log_of(store, limits))
    assert limits.try_acquire({LIMIT.key: 1})
    assert client.pttl(log_of(store, limits)) > 0  # type: ignore[operator]  # it is no task
    clock.move(WINDOW_US * 75 // 100)  # what was closed then has not expired yet
    assert used(limits, LIMIT.key) == 5
    clock.move(WINDOW_US // 5)
    assert used(limits, LIMIT.key) == 1


def test_credit_is_given_without_it(store: RedisStore, client: Redis, clock: FakeClock) -> None:
    limits = limits_of(store, LIMIT)
    spread(limits, clock)
    client.delete(log_of(store, limits))
    store.settle(credit_of(limits, LIMIT.key), [-3])
    assert used(limits, LIMIT.key) == 1
    clock.move(WINDOW_US * 65 // 100)
    assert limits.try_acquire({LIMIT.key: CAPACITY - 1})

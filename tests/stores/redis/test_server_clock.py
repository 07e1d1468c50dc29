"""The clock of a real server is set: the scripts read it, keys expire by it, and waiters sleep by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from limits_app.engine.errors import LimitTimeout
from limits_app.engine.limits import CallLimit, LimitDefinition, QuotaLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.redis import RedisStore
from tests.servers.redis import RedisServer, redis_server_with_clock
from tests.stores.redis.support import forget_rejections, store_on
from tests.stores.support import limits_of

pytestmark = pytest.mark.product

WINDOW = 1200
HOUR = 3600
LIMITS: list[LimitDefinition] = [
    *[CallLimit(3, WINDOW, algorithm) for algorithm in RateLimitAlgorithm],
    QuotaLimit.per_session("calls", 3, WINDOW),
]

SetClock = Callable[[float], None]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[RedisServer, SetClock]]:
    """A server whose clock can be set."""
    with redis_server_with_clock() as server:
        yield server


@pytest.fixture
def store(server: tuple[RedisServer, SetClock]) -> Iterator[RedisStore]:
    """A store by the clock of the server, which is right at the beginning."""
    server[1](0)
    store = store_on(server[0])
    yield store
    store.close()


@pytest.fixture
def set_clock(server: tuple[RedisServer, SetClock], store: RedisStore) -> SetClock:
    """Sets the clock of the server, when no rejection from before is remembered any more."""

    def set_clock(seconds: float) -> None:
        server[1](seconds)
        forget_rejections(store)

    return set_clock


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_a_window_after_an_hour_back_all_of_a_limit_is_available(
    store: RedisStore, set_clock: SetClock, limit: LimitDefinition
) -> None:
    limits = limits_of(store, limit)
    one = {"calls": 1} if isinstance(limit, QuotaLimit) else None
    assert [bool(limits.try_acquire(one)) for _ in range(4)] == [True, True, True, False]
    set_clock(-HOUR)
    rejected = [limits.try_acquire(one).outcome for _ in range(40)]
    assert not any(outcome.allowed for outcome in rejected)
    assert all(outcome.retry_after is not None and outcome.retry_after <= WINDOW for outcome in rejected)
    set_clock(-HOUR + WINDOW + 1)
    assert [bool(limits.try_acquire(one)) for _ in range(4)] == [True, True, True, False]


def test_a_clock_that_was_ahead_and_is_right_again_loses_nothing(store: RedisStore, set_clock: SetClock) -> None:
    limits = limits_of(store, CallLimit(3, WINDOW))
    assert [bool(limits.try_acquire()) for _ in range(2)] == [True, True]
    set_clock(365 * 24 * HOUR)
    assert [bool(limits.try_acquire()) for _ in range(4)] == [True, True, True, False]
    set_clock(0)
    assert not limits.try_acquire()
    set_clock(WINDOW + 1)
    assert [bool(limits.try_acquire()) for _ in range(4)] == [True, True, True, False]


def test_permits_of_a_holder_that_died_are_free_a_lease_after_a_step_back(
    store: RedisStore, set_clock: SetClock
) -> None:
    limits = limits_of(store, ResourceLimit("db", 1))
    held = limits.try_acquire()
    store.renewer.discard(held.claim)
    set_clock(-HOUR)
    assert not limits.try_acquire()
    set_clock(-HOUR + store.lease_us / 1_000_000 + 1)
    assert limits.try_acquire()


def test_the_longest_hold_of_a_permit_begins_again_with_an_hour_back(store: RedisStore, set_clock: SetClock) -> None:
    limits = limits_of(store, ResourceLimit("db", 1, max_hold_seconds=WINDOW))
    held = limits.try_acquire()
    store.renewer.discard(held.claim)
    for step in range(0, WINDOW, 6):
        set_clock(-HOUR + step)
        assert store.renew([held.claim]) == []
    set_clock(-HOUR + WINDOW + 1)
    assert limits.try_acquire()
    assert store.renew([held.claim]) == [held.claim]


def test_a_timeout_is_as_long_when_the_server_s_clock_is_set(store: RedisStore, set_clock: SetClock) -> None:
    limits = limits_of(store, CallLimit(1, WINDOW))
    assert limits.try_acquire()
    for seconds in (-HOUR, 2 * HOUR):
        set_clock(seconds)
        limits.try_acquire()
        with pytest.raises(LimitTimeout):
            limits.acquire(timeout=0.05)

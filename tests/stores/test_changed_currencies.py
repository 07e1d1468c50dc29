"""Limits whose key becomes a currency, or is one no more: recorded use is carried over, also by other processes."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from limits_app.engine.limits import QuotaLimit, RateLimit, RateLimitAlgorithm
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore
from limits_app.stores.redis import RedisStore
from tests.servers.redis import RedisServer
from tests.stores.support import limits_of, used

YEAR = 366 * 24 * 3600
OF_UNITS: list[RateLimit | QuotaLimit] = [
    *[RateLimit("gold", 9, YEAR, algorithm, is_money=False) for algorithm in RateLimitAlgorithm],
    QuotaLimit("gold", 9, session_seconds=YEAR, is_money=False),
]
CHANGES = [
    pytest.param(old, replace(new, is_money=True), id=f"{number}-{len(OF_UNITS)}-{place}")
    for number, old in enumerate(OF_UNITS)
    for place, new in enumerate(OF_UNITS)
    if old == new or {number, place} <= {0, 2, 5}
]


@pytest.mark.parametrize(("units", "money"), CHANGES)
def test_use_is_the_same_in_units_and_in_money(
    store: MemoryStore | ProcessStore, units: RateLimit | QuotaLimit, money: RateLimit | QuotaLimit
) -> None:
    check_carried(store, store, units, money)


@pytest.mark.parametrize(("units", "money"), CHANGES)
def test_use_is_the_same_in_units_and_in_money_on_redis(
    redis: RedisServer, units: RateLimit | QuotaLimit, money: RateLimit | QuotaLimit
) -> None:
    name = uuid4().hex
    first, second = (RedisStore(url=redis.url, prefix=name) for _ in range(2))
    check_carried(first, second, units, money)
    for opened in (first, second):
        opened.close()


def check_carried(
    first: MemoryStore | ProcessStore | RedisStore,
    second: MemoryStore | ProcessStore | RedisStore,
    units: RateLimit | QuotaLimit,
    money: RateLimit | QuotaLimit,
) -> None:
    before, after = limits_of(first, units), limits_of(second, money)
    assert before.try_acquire({"gold": 7})
    assert not after.try_acquire({"gold": "2.5"})
    assert after.try_acquire({"gold": "1.3"})
    assert used(after, "gold") == pytest.approx(8.3, abs=0.01)
    # Back in units, what was spent of a unit is a whole one.
    assert not before.try_acquire({"gold": 1}) or units.algorithm.refunds  # type: ignore[union-attr]
    assert 8.2 < used(before, "gold") <= 9  # type: ignore[operator]

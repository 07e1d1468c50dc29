"""Names that other libraries have for the same: state of one limit, the limits of a set, and empty requests."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from limits_app import CallLimit, LimitPool, LimitSet, QuotaLimit, RateLimit, ResourceLimit
from limits_app.engine.errors import InvalidRequest, NotOfSet
from limits_app.engine.limits import AnyLimit, Blocked
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock

LIMITS: list[AnyLimit] = [
    RateLimit("tpm", 100, 60),
    CallLimit(10, 60),
    QuotaLimit.per_day("day", 50),
    ResourceLimit("db", 3),
]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.key)
def test_a_limit_of_a_set_has_the_state_of_the_set(limit: AnyLimit) -> None:
    limit_set = LimitSet(LIMITS, store=MemoryStore(clock=FakeClock()))
    assert limit_set.try_acquire({"tpm": 30, "day": 20})
    one: Any = limit_set[limit.key]
    assert one == limit
    assert hash(one) == hash(limit)
    assert isinstance(one, type(limit))
    assert one.get_stats() == limit_set.get_stats()[limit.key]
    assert one.get_stats()["used"] in {30, 1, 20}
    assert LimitPool([limit_set])[limit.key].get_stats()["used"] == one.get_stats()["used"]
    assert pickle.loads(pickle.dumps(one)) == limit


@pytest.mark.parametrize("limit", [*LIMITS, Blocked()], ids=lambda limit: limit.key)
def test_a_limit_that_was_not_taken_from_a_set_has_no_state(limit: AnyLimit) -> None:
    with pytest.raises(NotOfSet, match="limit_set"):
        limit.get_stats()


def test_a_set_lists_its_limits_and_whether_it_is_shared() -> None:
    assert LimitSet(LIMITS).limits == tuple(LIMITS)
    assert not LimitSet(LIMITS).shared
    assert LimitSet(LIMITS, shared=True, mode="thread").shared
    assert LimitSet(LIMITS, store=MemoryStore()).shared


def test_an_acquisition_names_the_limit_of_each_key() -> None:
    acquisition = LimitSet(LIMITS).try_acquire({"tpm": 30})
    assert {key: use.limit for key, use in acquisition.acquisitions.items()} == {
        "tpm": LIMITS[0],
        "call_count": LIMITS[1],
        "db": LIMITS[3],
    }


@pytest.mark.parametrize("limits", [LIMITS, LIMITS[:1], LIMITS[:2]])
def test_an_empty_request_of_a_set_with_a_rate_is_as_no_request(limits: list[AnyLimit]) -> None:
    limit_set = LimitSet(limits)
    for requested in (None, {}):
        with pytest.raises(InvalidRequest, match="nothing is requested of tpm"):
            limit_set.acquire(requested)
    assert limit_set.get_stats()["tpm"]["used"] == 0


def test_an_empty_request_of_a_set_without_rates_takes_1_of_each() -> None:
    limit_set = LimitSet([LIMITS[1], LIMITS[3]])
    assert limit_set.acquire({}).acquisitions.keys() == {"call_count", "db"}

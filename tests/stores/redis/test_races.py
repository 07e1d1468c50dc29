"""Processes of several threads that race for one Redis."""

from __future__ import annotations

from functools import partial

import pytest

from limits_app.core.limits import RateLimitAlgorithm
from limits_app.stores.redis import open_redis_store
from tests.servers.redis import RedisServer
from tests.stores import races
from tests.stores.redis.support import PATIENT, prefix
from tests.stores.support import MULTI_THREADED_FORK

pytestmark = [
    pytest.mark.filterwarnings(MULTI_THREADED_FORK),
    pytest.mark.parametrize("algorithm", RateLimitAlgorithm),
]


@pytest.fixture
def open_store(redis: RedisServer) -> races.Opener:
    return partial(open_redis_store, url=redis.url, prefix=prefix(), **PATIENT)


def test_exactly_what_a_limit_has_is_admitted(open_store: races.Opener, algorithm: RateLimitAlgorithm) -> None:
    assert races.one_limit(open_store, algorithm)


def test_three_limits_of_two_entities_are_charged_together_or_not_at_all(
    open_store: races.Opener, algorithm: RateLimitAlgorithm
) -> None:
    assert races.three_limits(open_store, algorithm)

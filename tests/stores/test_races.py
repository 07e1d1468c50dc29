"""Processes of several threads that race for the same limits, on every store that machines share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from pytest_django import DjangoDbBlocker

from limits_app.engine.limits import RateLimitAlgorithm
from limits_app.stores.redis import open_redis_store
from tests.stores import races
from tests.stores.database.databases import VENDORS, PatientStores, database
from tests.stores.redis.support import PATIENT, prefix
from tests.stores.support import MULTI_THREADED_FORK

TWO_KINDS = [RateLimitAlgorithm.TOKEN_BUCKET, RateLimitAlgorithm.SLIDING_WINDOW]
"""One whose state is in its row, and the one that has a log beside it."""
IN_A_DATABASE = [
    pytest.param(vendor, algorithm, marks=[pytest.mark.release] * (algorithm not in TWO_KINDS))
    for vendor in VENDORS
    for algorithm in RateLimitAlgorithm
]

pytestmark = [
    pytest.mark.filterwarnings(MULTI_THREADED_FORK),
    pytest.mark.parametrize(
        ("open_store", "algorithm"),
        [
            *[("redis", algorithm) for algorithm in RateLimitAlgorithm],
            *IN_A_DATABASE,
        ],
        indirect=["open_store"],
    ),
]


@pytest.fixture
def open_store(request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker) -> Iterator[races.Opener]:
    server = request.getfixturevalue(request.param)
    if request.param == "redis":
        yield partial(open_redis_store, url=server.url, prefix=prefix(), **PATIENT)
        return
    settings = server if isinstance(server, dict) else server.settings
    with django_db_blocker.unblock(), database(settings), PatientStores(settings) as opener:
        yield opener


def test_three_limits_of_two_entities_are_charged_together_or_not_at_all(
    open_store: races.Opener, algorithm: RateLimitAlgorithm
) -> None:
    assert races.three_limits(open_store, algorithm)

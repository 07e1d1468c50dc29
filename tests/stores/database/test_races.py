"""Processes of several threads that race for the same limits, on every database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_django import DjangoDbBlocker

from limits_app.core.limits import RateLimitAlgorithm
from tests.stores import races
from tests.stores.database.databases import Settings, database
from tests.stores.database.racing import PatientStores
from tests.stores.support import MULTI_THREADED_FORK

pytestmark = pytest.mark.filterwarnings(MULTI_THREADED_FORK)

TWO_KINDS = [RateLimitAlgorithm.TOKEN_BUCKET, RateLimitAlgorithm.SLIDING_WINDOW]
"""One whose state is in its row, and the one that has a log beside it; `tests.stores.races` runs all."""


@pytest.fixture
def open_store(settings: Settings, django_db_blocker: DjangoDbBlocker) -> Iterator[races.Opener]:
    with django_db_blocker.unblock(), database(settings), PatientStores(settings) as opener:
        yield opener


@pytest.mark.parametrize("algorithm", TWO_KINDS)
def test_exactly_what_a_limit_has_is_admitted(open_store: races.Opener, algorithm: RateLimitAlgorithm) -> None:
    assert races.one_limit(open_store, algorithm)


@pytest.mark.parametrize("algorithm", TWO_KINDS)
def test_three_limits_of_two_entities_are_charged_together_or_not_at_all(
    open_store: races.Opener, algorithm: RateLimitAlgorithm
) -> None:
    assert races.three_limits(open_store, algorithm)

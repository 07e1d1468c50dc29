"""Processes that want the same permit all the time: each gets its turns, though nobody keeps a line between them."""

from __future__ import annotations

import pytest
from pytest_django import DjangoDbBlocker

from tests.stores.fairness import turns
from tests.stores.races import STORES
from tests.stores.support import MULTI_THREADED_FORK, PATIENCE

pytestmark = [pytest.mark.alone, pytest.mark.filterwarnings(MULTI_THREADED_FORK)]

SECONDS = 2.5


@pytest.mark.parametrize("store", ["process", "redis", "postgres", "sqlite"])
def test_nobody_starves_and_threads_of_one_process_take_turns(store: str, django_db_blocker: DjangoDbBlocker) -> None:
    with django_db_blocker.unblock(), STORES[store]() as open_store:
        shared = turns(open_store, SECONDS)
    for process in shared:
        counts = [one.count for one in process]
        # They take turns; a thread that the machine keeps from asking again in time misses some.
        assert max(counts) <= 1.5 * min(counts) + 2, "first come, first served"
        assert min(counts) > 0
        assert max(one.longest_seconds for one in process) < PATIENCE / 2

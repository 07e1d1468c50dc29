"""Processes that want the same permit all the time: each of them gets its turns."""

from __future__ import annotations

import pytest
from pytest_django import DjangoDbBlocker

from tests.stores.fairness import Load, most_to_fewest, turns
from tests.stores.races import STORES
from tests.stores.support import MULTI_THREADED_FORK, PATIENCE

pytestmark = [pytest.mark.alone, pytest.mark.filterwarnings(MULTI_THREADED_FORK)]


IN_A_DATABASE = [pytest.param(store, marks=pytest.mark.release) for store in ("postgres", "sqlite")]


@pytest.mark.parametrize("store", ["process", "redis", *IN_A_DATABASE])
def test_no_process_starves_and_its_threads_take_turns(store: str, django_db_blocker: DjangoDbBlocker) -> None:
    with django_db_blocker.unblock(), STORES[store]() as open_store:
        shared = turns(open_store, Load(seconds=2.5))
    for process in shared:
        counts = [one.count for one in process]
        # A thread that the machine keeps from asking again in time misses some turns.
        assert max(counts) <= 1.5 * min(counts) + 2, "waiters are served in the order of their arrival"
        assert min(counts) > 0
        assert max(one.longest_seconds for one in process) < PATIENCE / 2


@pytest.mark.parametrize("store", IN_A_DATABASE)
def test_processes_that_share_a_database_get_similar_numbers_of_turns(
    store: str, django_db_blocker: DjangoDbBlocker
) -> None:
    with django_db_blocker.unblock(), STORES[store]() as open_store:
        shared = turns(open_store, Load(seconds=6, threads=1, hold_seconds=0.003, timeout=3))
    assert most_to_fewest(shared) <= 3, shared
    assert [one.timeouts for process in shared for one in process] == [0, 0, 0, 0]

"""Many roll up at once, on every database: nothing is added twice, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.db import connections
from pytest_django import DjangoDbBlocker

from limits_app.core.keys import scope_of
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit
from limits_app.core.plan import ScopedLimits
from limits_app.core.record import schema_of
from limits_app.models import Period, UsageSnapshot
from limits_app.stores.memory import MemoryStore
from limits_app.usage.rollup import roll_up
from tests.stores.database.databases import ALIAS, VENDORS, site_on


@pytest.fixture(params=VENDORS)
def _database(request: pytest.FixtureRequest, tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    with django_db_blocker.unblock(), site_on(request.param, tmp_path):
        yield


def _roll(store: MemoryStore) -> int:
    try:
        return roll_up(store)
    finally:
        connections[ALIAS].close()


@pytest.mark.usefixtures("_database")
def test_many_at_once_add_nothing_twice() -> None:
    store = MemoryStore()
    layout = schema_of((CallLimit(1000, 3600),), store.lease_us, counts_usage=True)
    expected: Counter[str] = Counter()
    rolled = 0
    with ThreadPoolExecutor(4) as threads:
        for turn in range(10):
            entity = ["user:1", "tenant:käse", "a\0b"][turn % 3]
            LimitSet.composed([ScopedLimits(scope_of("api", entity), layout)], store).try_acquire()
            expected[entity.replace("\0", "\\x00")] += 1_000
            rolled += sum(threads.map(_roll, [store] * 4))
    found = UsageSnapshot.objects.filter(period=Period.DAY)
    assert {one.entity: one.admitted_milli for one in found} == expected
    assert rolled == 10

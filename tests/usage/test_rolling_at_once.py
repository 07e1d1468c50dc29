"""Many roll up at once, on every database: nothing is added twice, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from pytest_django import DjangoDbBlocker, Settings

from limits_app.core.keys import scope_of
from limits_app.core.layout import layout_of
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit
from limits_app.core.plan import ScopedLimits
from limits_app.models import Period, UsageSnapshot
from limits_app.stores.memory import MemoryStore
from limits_app.usage import roll_up
from tests.servers.mariadb import mariadb_server
from tests.servers.postgres import postgres_server
from tests.stores.database.databases import ALIAS, forget, sqlite_in, use


class There:
    """Everything is in the database of the test."""

    def db_for_read(self, model: object, **hints: object) -> str:
        return ALIAS

    db_for_write = db_for_read


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def _database(
    request: pytest.FixtureRequest, settings: Settings, tmp_path: Path, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    with django_db_blocker.unblock():
        match request.param:
            case "sqlite":
                options = sqlite_in(tmp_path)
                options["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 20}
                yield from _migrated(options, settings)
            case "postgres":
                with postgres_server() as server:
                    yield from _migrated(server.settings, settings)
            case _:
                with mariadb_server() as server:
                    yield from _migrated(server.settings, settings)


def _migrated(database: dict[str, Any], settings: Settings) -> Iterator[None]:
    use(database)
    try:
        call_command("migrate", "limits_app", database=ALIAS, verbosity=0)
        settings.DATABASE_ROUTERS = [There()]
        yield
    finally:
        settings.DATABASE_ROUTERS = []
        forget()


def _roll(store: MemoryStore) -> int:
    try:
        return roll_up(store)
    finally:
        connections[ALIAS].close()


@pytest.mark.usefixtures("_database")
def test_many_at_once_add_nothing_twice() -> None:
    store = MemoryStore()
    layout = layout_of((CallLimit(1000, 3600),), store.lease_us, counts=True)
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

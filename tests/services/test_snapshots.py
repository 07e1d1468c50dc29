"""Transactions that may not see what others have committed: what they read is used once, and not kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import override_settings
from pytest_django import DjangoAssertNumQueries, DjangoDbBlocker

from limits_app import CallLimit, limits
from limits_app.acquiring import Cooling
from limits_app.models import CoolDown, Endpoint, Entity, Limit, Policy, Pool, PoolMember, Resource
from limits_app.models.changes import may_be_kept
from limits_app.models.pool import keep_cool_down
from limits_app.policies import configuration, resolver
from limits_app.policies.balancing import Balancers
from limits_app.services.url_matching import endpoints
from tests.stores.database.databases import ALIAS, Settings, There, forget, migrated, served, use

pytestmark = pytest.mark.slow

PRESENT: dict[str, tuple[str, dict[str, Any]]] = {
    "sqlite_that_keeps_writers_out": ("sqlite", {"transaction_mode": "IMMEDIATE"}),
    "sqlite_with_a_journal": ("sqlite", {"init_command": "PRAGMA journal_mode=DELETE"}),
    "postgres_at_read_committed": ("postgres", {}),
    "mariadb_at_read_committed": ("mariadb", {}),
}
SNAPSHOTS: dict[str, tuple[str, dict[str, Any]]] = {
    "sqlite_with_a_write_ahead_log": ("sqlite", {}),
    "postgres_at_repeatable_read": ("postgres", {"options": r"-c default_transaction_isolation=repeatable\ read"}),
    "postgres_serializable": ("postgres", {"options": "-c default_transaction_isolation=serializable"}),
    "mariadb_at_repeatable_read": ("mariadb", {"isolation_level": "repeatable read"}),
}
in_the_present = pytest.mark.parametrize("site", PRESENT.values(), ids=PRESENT, indirect=True)
in_a_snapshot = pytest.mark.parametrize("site", SNAPSHOTS.values(), ids=SNAPSHOTS, indirect=True)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Settings]]:
    """Gives a database of each kind, with all tables; its server runs until the tests here end."""
    known: dict[str, Settings] = {}
    with ExitStack() as running:

        def prepare(vendor: str, directory: Path) -> Settings:
            settings = running.enter_context(served(vendor, directory))
            with migrated(settings, "limits_app"):
                return settings

        def find(vendor: str) -> Settings:
            if vendor not in known:
                known[vendor] = prepare(vendor, tmp_path_factory.mktemp(vendor))
            return known[vendor]

        yield find


@pytest.fixture
def site(
    request: pytest.FixtureRequest, prepared: Callable[[str], Settings], django_db_blocker: DjangoDbBlocker
) -> Iterator[Any]:
    """The configuration is in a database of a kind, which is connected to with some options; gives the connection."""
    vendor, options = request.param
    endpoints.clear()
    with django_db_blocker.unblock(), override_settings(DATABASE_ROUTERS=[There()]):
        settings = prepared(vendor)
        use(settings | {"OPTIONS": settings.get("OPTIONS", {}) | options})
        yield connections[ALIAS]
        for model in (Endpoint, Limit, Policy, Resource, Pool, Entity):
            model._default_manager.all().delete()
    endpoints.clear()
    forget()


def elsewhere(change: Callable[[], object]) -> None:
    """Change something on another connection, which is committed when this returns."""

    def change_and_leave() -> None:
        try:
            change()
        finally:
            connections[ALIAS].close()

    with ThreadPoolExecutor(1) as other:
        other.submit(change_and_leave).result()


def capacity(resource: str = "api", entity: str = "user:1") -> float:
    [status] = limits.check(resource, entity=entity).passed
    return status.capacity


def read_identifiers() -> None:
    """Read which identifiers have rows, as the background thread does."""
    while configuration.current().known.read_page():
        pass


def set_to(number: int) -> None:
    limits.set_resource_limits("api", [CallLimit(number, 60)])


@in_a_snapshot
def test_what_a_snapshot_has_of_limits_pools_and_endpoints_is_used_once_and_not_kept(
    site: Any, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    set_to(100)
    pool = Pool.objects.create(name="regions")
    member = PoolMember.objects.create(pool=pool, name="only")
    Limit.from_definition(member, CallLimit(100, 60)).save()
    chat = Resource.objects.create(name="chat", pool=pool)

    def change_all() -> None:
        set_to(5)
        Limit.objects.filter(member=member).update(text="5/min")
        Endpoint.objects.create(name="new", path="/new/", resource=chat)

    with transaction.atomic(ALIAS):
        assert not Entity.objects.exists()  # the snapshot is of now
        elsewhere(change_all)
        assert not may_be_kept(ALIAS)
        assert (capacity("api"), capacity("chat")) == (100, 100)
        assert endpoints.current().known("/new/", None, "GET") == ()
    assert (capacity("api"), capacity("chat", "user:2")) == (5, 5)
    assert endpoints.current().known("/new/", None, "GET")
    with django_assert_num_queries(1, connection=site):  # what is read after the snapshot is kept
        for _ in range(3):
            limits.limit_set("api", "user:3")


@in_a_snapshot
def test_cool_downs_of_a_snapshot_are_used_once_and_not_kept(
    site: Any, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    cooling, balancers = Cooling(2**40, 30_000_000), Balancers()

    def cooled() -> Mapping[str, Cooling]:
        return balancers.find("regions", "round_robin", (1.0,)).cooling

    assert not cooled()
    try:
        with transaction.atomic(ALIAS):
            assert not Entity.objects.exists()  # the snapshot is of now
            elsewhere(lambda: keep_cool_down("regions", "only", cooling))
            balancers.drop_cool_downs()
            assert not cooled()
        assert cooled() == {"only": cooling}
        with django_assert_num_queries(0, connection=site):
            assert cooled() == {"only": cooling}
    finally:
        CoolDown.objects.all().delete()


@in_a_snapshot
def test_latest_rows_that_a_snapshot_lacks_are_read_after_it(site: Any) -> None:
    set_to(100)
    assert capacity() == 100
    read_identifiers()
    with transaction.atomic(ALIAS):
        assert not Entity.objects.exists()  # the snapshot is of now
        blocked = [Entity(identifier=f"key:{number}", blocked=True) for number in range(100)]
        elsewhere(lambda: Entity.objects.bulk_create(blocked))
        assert limits.try_acquire("api", entity="user:2")
    read_identifiers()
    assert [bool(limits.try_acquire("api", entity=name)) for name in ("user:2", "key:5")] == [True, False]


@in_the_present
def test_reads_in_the_present_are_cached(site: Any, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    set_to(5)
    Resource.objects.update(pool=Pool.objects.create(name="regions"))
    resolver.clear()
    each = 3 if site.vendor == "postgresql" else 1  # with a savepoint where an error ends the transaction
    with transaction.atomic(ALIAS):
        assert not Entity.objects.exists()
        with django_assert_num_queries(4 * each, connection=site):
            limits.limit_set("api", "user:1")  # with its pool
            endpoints.current()  # with who is blocked or exempt
        with django_assert_num_queries(each, connection=site):
            limits.limit_set("api", "user:2")
            limits.limit_set("api", "user:1")
            endpoints.current()


@pytest.mark.parametrize("site", [PRESENT["postgres_at_read_committed"]], ids=["postgres"], indirect=True)
def test_transaction_that_sees_commits_of_others_keeps_their_limits(site: Any) -> None:
    set_to(100)
    with transaction.atomic(ALIAS):
        assert capacity() == 100
        elsewhere(partial(set_to, 5))
        assert capacity() == 5
        kept = resolver.cached(("api", "user:1", (), None))
        assert kept is not None
        assert kept.limit_set.version == kept.limit_set.store.version(kept.limit_set.namespace)


@pytest.mark.parametrize(
    "site", [*SNAPSHOTS.values(), PRESENT["sqlite_that_keeps_writers_out"]], ids=[*SNAPSHOTS, "sqlite"], indirect=True
)
def test_autocommit_that_is_switched_off_is_a_transaction(site: Any) -> None:
    transaction.set_autocommit(False, using=ALIAS)
    try:
        assert not may_be_kept(ALIAS)
        with transaction.atomic(ALIAS):  # which begins with a savepoint, and locks nobody out
            assert not may_be_kept(ALIAS)
        transaction.rollback(using=ALIAS)
    finally:
        transaction.set_autocommit(True, using=ALIAS)
    assert may_be_kept(ALIAS)


@pytest.mark.parametrize("site", [PRESENT["sqlite_with_a_journal"]], ids=["unknown"], indirect=True)
def test_unknown_databases_are_not_cached_in_a_transaction(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections[ALIAS], "vendor", "unknown")
    assert may_be_kept(ALIAS)
    with transaction.atomic(ALIAS):
        assert not may_be_kept(ALIAS)

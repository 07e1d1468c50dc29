"""A database that cannot be read: never migrated, or without a column, a right or a connection; on real databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import Group, User
from django.db import DatabaseError, OperationalError, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoDbBlocker, Settings

from limits_app import CallLimit, checks, limits
from limits_app.acquiring.limit_set import LimitSet
from limits_app.conf import test_runner
from limits_app.engine.errors import StoreUnavailable, Unresolved
from limits_app.models import Endpoint, Policy
from limits_app.models.in_tests import are_empty_in_test
from limits_app.models.own_queries import DATABASE_ERRORS, FAILED, NOT_MIGRATED, Failures, failures
from limits_app.policies import resolver
from limits_app.services.doctor import diagnose
from limits_app.services.url_matching import endpoints
from tests.integrations.site import Ask, fine
from tests.stores.database.databases import ALIAS, VENDORS, There, database, served
from tests.stores.database.databases import Settings as DatabaseSettings
from tests.stores.database.databases import migrated as with_tables

pytestmark = pytest.mark.slow

DEFAULTS = [CallLimit(2, 3600)]
POLICY, RESOURCES, RULES = "limits_app_policy", "limits_app_resource", "limits_app_endpoint"


class Databases(NamedTuple):
    """The settings of a database without tables of the app, and of one with all tables."""

    empty: DatabaseSettings
    filled: DatabaseSettings


@pytest.fixture(scope="module", params=VENDORS)
def databases(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker
) -> Iterator[Databases]:
    """Two databases of each kind."""
    with (
        django_db_blocker.unblock(),
        served(request.param, tmp_path_factory.mktemp("empty")) as empty,
        served(request.param, tmp_path_factory.mktemp("filled")) as filled,
    ):
        for settings, app in (empty, "auth"), (filled, "limits_app"):
            with with_tables(settings, app):
                pass
        yield Databases(empty, filled)


@contextmanager
def site_in(settings: DatabaseSettings) -> Iterator[None]:
    """Everything that is stored is in a database, of which this process has read nothing."""
    with database(settings, bare=True), override_settings(DATABASE_ROUTERS=[There()]):
        forget_all()
        yield
        forget_all()


def forget_all() -> None:
    """Drop what this process has read."""
    resolver.clear()
    endpoints.clear()
    failures.clear()


@pytest.fixture
def unmigrated(databases: Databases) -> Iterator[None]:
    """A site before `migrate`."""
    with site_in(databases.empty):
        yield


@pytest.fixture
def migrated(databases: Databases) -> Iterator[None]:
    """A site with a limit of 1 on all pages."""
    with site_in(databases.filled):
        limits.set_resource_limits("api", [CallLimit(1, 3600)])
        Endpoint.objects.create(name="all", path="/*", resource=Policy.objects.get().resource)
        forget_all()
        yield
        Endpoint.objects.all().delete()
        Policy.objects.all().delete()


def execute(*statements: str, using: str = ALIAS) -> None:
    """Send statements to the database."""
    with connections[using].cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@contextmanager
def without_column(table: str) -> Iterator[None]:
    """Remove a column that queries name, as before a migration that adds it."""
    column = {RESOURCES: "store", RULES: "description"}[table]
    execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO gone")
    try:
        yield
    finally:
        connections[ALIAS].close()
        execute(f"ALTER TABLE {table} RENAME COLUMN gone TO {column}")


@contextmanager
def without_right(table: str) -> Iterator[None]:
    """Connect as a user who may not read a table."""
    connection = connections[ALIAS]
    settings = connection.settings_dict
    before = dict(settings)
    match connection.vendor:
        case "postgresql":
            execute("DROP ROLE IF EXISTS weak", "CREATE ROLE weak LOGIN", "GRANT ALL ON SCHEMA public TO weak")
            execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO weak", f"REVOKE SELECT ON {table} FROM weak")  # noqa: S608 - a name of a table
            settings["USER"] = "weak"
        case "mysql":
            execute("CREATE OR REPLACE USER weak@'127.0.0.1' IDENTIFIED BY ''")
            names = set(connection.introspection.table_names()) - {table}
            execute(*[f"GRANT ALL ON {settings['NAME']}.{name} TO weak@'127.0.0.1'" for name in sorted(names)])
            settings["USER"] = "weak"
        case _:
            connection.ensure_connection()
            connection.connection.set_authorizer(lambda _action, name, *_: 1 if name == table else 0)
    if connection.vendor != "sqlite":
        connection.close()
    try:
        yield
    finally:
        connection.close()
        settings.update(before)
        if connection.vendor == "postgresql":
            execute("DROP OWNED BY weak", "DROP ROLE weak")


def end_connection() -> None:
    """End the connection of this thread from the outside."""
    connection = connections[ALIAS]
    connection.ensure_connection()
    if connection.vendor == "sqlite":
        connection.connection.close()
        return
    number, end = {
        "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
        "mysql": ("SELECT CONNECTION_ID()", "KILL {}"),
    }[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(number)
        (mine,) = cursor.fetchone()
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute(end.format(mine))
    other.close()


BROKEN: list[Any] = [
    pytest.param(without_column, RESOURCES, id="column_of_resources"),
    pytest.param(without_column, RULES, id="column_of_rules"),
    pytest.param(without_right, POLICY, id="right_on_policies"),
    pytest.param(without_right, RULES, id="right_on_rules"),
]


def decide() -> bool | str:
    """Return whether a request without known limits is admitted, or that it cannot be decided."""
    try:
        return bool(limits.try_acquire("api", entity="user:1", default_limits=DEFAULTS))
    except Unresolved:
        return "unresolved"


def reads(request: HttpRequest) -> HttpResponse:
    """A view with a query of its own after a decision about limits."""
    answer = decide()
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("SELECT 1")
    return HttpResponse(str(answer))


@pytest.fixture(params=[False, True], ids=["autocommit", "atomic_requests"])
def atomic(request: pytest.FixtureRequest) -> Iterator[None]:
    """The site begins a transaction for each request, or does not."""
    connections[ALIAS].settings_dict["ATOMIC_REQUESTS"] = request.param
    yield
    connections[ALIAS].settings_dict["ATOMIC_REQUESTS"] = False


@pytest.mark.usefixtures("unmigrated", "atomic")
@pytest.mark.parametrize("unresolved", ["block", "allow"])
def test_site_that_was_never_migrated_has_no_rules(
    ask: Ask, serve: Any, settings: Settings, unresolved: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings.LIMITS = settings.LIMITS | {"ON_UNRESOLVED": unresolved}
    serve({"x/": reads, "y/": fine})
    assert [ask("/x/").content for _ in range(3)] == [b"True", b"True", b"False"]
    assert [ask(path).status_code for path in ("/x/", "/y/", "/missing/")] == [200, 200, 404]
    about_tables = [one for one in caplog.messages if "no tables of limits_app" in one]
    assert about_tables == [
        f"the database '{ALIAS}' has no tables of limits_app, so no rules and policies apply: run manage.py migrate"
    ]
    assert set(failures.counts) == {NOT_MIGRATED}


@pytest.mark.usefixtures("unmigrated")
def test_site_that_was_never_migrated_queries_nothing_once_that_is_known(ask: Ask, serve: Any) -> None:
    serve({"x/": fine})
    assert [decide(), ask("/x/").status_code] == [True, 200]
    with CaptureQueriesContext(connections[ALIAS]) as captured:
        assert [decide(), ask("/x/").status_code] == [True, 200]
    assert len(captured) == 0


@pytest.mark.usefixtures("unmigrated")
def test_missing_tables_are_reported(settings: Settings) -> None:
    found = {one.id for one in checks.check_stores([ALIAS])}
    assert "limits_app.W072" in found
    assert not found & {"limits_app.W073"}
    assert {"limits_app.D002", "limits_app.W072"} <= {one.id for one in diagnose()}


@pytest.mark.usefixtures("unmigrated")
def test_groups_change_before_the_tables_exist() -> None:
    with transaction.atomic(using=ALIAS):
        user, group = User.objects.create(username="ann"), Group.objects.create(name="pro")
        user.groups.add(group)
        assert [one.name for one in user.groups.all()] == ["pro"]
        group.delete()
        assert not user.groups.exists()
        transaction.set_rollback(True, using=ALIAS)


@pytest.mark.usefixtures("migrated", "atomic")
@pytest.mark.parametrize(("broken", "table"), BROKEN)
@pytest.mark.parametrize(("unresolved", "status"), [("block", 503), ("allow", 200)])
def test_setting_decides_while_the_database_cannot_be_read(
    serve: Any, settings: Settings, broken: Any, table: str, unresolved: str, status: int
) -> None:
    settings.LIMITS = settings.LIMITS | {"ON_UNRESOLVED": unresolved}
    serve({"x/": fine})
    with broken(table):
        assert Client().get("/x/").status_code == status
    assert set(failures.counts) == {FAILED}


@pytest.mark.usefixtures("migrated")
@pytest.mark.parametrize(("unresolved", "status"), [("block", 503), ("allow", 200)])
def test_setting_decides_when_the_connection_ends(serve: Any, settings: Settings, unresolved: str, status: int) -> None:
    settings.LIMITS = settings.LIMITS | {"ON_UNRESOLVED": unresolved}
    serve({"x/": fine})
    end_connection()
    assert Client().get("/x/").status_code == status
    connections[ALIAS].close()


@pytest.mark.usefixtures("migrated")
def test_connection_that_ends_in_a_transaction_is_an_error_of_the_database() -> None:
    with pytest.raises(DATABASE_ERRORS), transaction.atomic(using=ALIAS):  # noqa: PT012 - at the end of the transaction
        end_connection()
        assert decide() == "unresolved"
    connections[ALIAS].close()


@pytest.mark.usefixtures("migrated")
@pytest.mark.parametrize(("broken", "table"), BROKEN)
def test_limits_that_were_read_before_stay_in_force(
    serve: Any, settings: Settings, broken: Any, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings.LIMITS = settings.LIMITS | {"RESOLVER_TTL_SECONDS": 1e-9, "ON_UNRESOLVED": "allow"}
    serve({"x/": fine})
    assert Client().get("/x/").status_code == 200
    with broken(table):
        assert [Client().get("/x/").status_code for _ in range(3)] == [429] * 3
    assert len([one for one in caplog.messages if "cannot be read from the database" in one]) == 1


@pytest.mark.usefixtures("migrated")
@pytest.mark.parametrize("broken", [False, True])
def test_transaction_of_a_test_is_as_it_was_before(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    """A failed statement ends a transaction of PostgreSQL; then our query fails as any other does."""
    running = object()
    monkeypatch.setattr(test_runner, "current_test", lambda: running)
    with transaction.atomic(using=ALIAS):
        if broken:
            with suppress(DatabaseError):
                execute("SELECT 1 FROM missing")
        assert are_empty_in_test([Endpoint], ALIAS) is False
        with pytest.raises(DatabaseError):
            execute("RELEASE SAVEPOINT limits_app_in_tests")
        transaction.set_rollback(True, using=ALIAS)


@pytest.mark.usefixtures("migrated")
@pytest.mark.parametrize(("broken", "table"), [(without_column, RESOURCES), (without_right, POLICY)])
def test_transaction_of_the_site_goes_on(broken: Callable[[str], Any], table: str) -> None:
    with broken(table):
        with transaction.atomic(using=ALIAS):
            Group.objects.create(name="kept")
            assert decide() == "unresolved"
            Group.objects.filter(name="kept").update(name="changed")
        assert Group.objects.get().name == "changed"
        Group.objects.all().delete()


@pytest.mark.usefixtures("migrated")
def test_transaction_without_autocommit_goes_on() -> None:
    connection = connections[ALIAS]
    with without_column(RESOURCES):
        transaction.set_autocommit(False, using=ALIAS)
        Group.objects.create(name="kept")
        assert decide() == "unresolved"
        assert Group.objects.count() == 1
        transaction.rollback(using=ALIAS)
        connection.close()


@pytest.mark.usefixtures("migrated")
def test_known_limits_need_no_query_and_no_savepoint() -> None:
    assert decide() is True
    with transaction.atomic(using=ALIAS), CaptureQueriesContext(connections[ALIAS]) as captured:
        assert decide() is False
    with CaptureQueriesContext(connections[ALIAS]) as read:
        limits.try_acquire("api", entity="user:2", default_limits=DEFAULTS)
    assert (len(captured), len(read)) == (0, 1)


@pytest.mark.usefixtures("migrated")
@pytest.mark.parametrize(("broken", "table"), [(without_column, RESOURCES), (without_right, POLICY)])
def test_unreadable_limits_are_reported(broken: Callable[[str], Any], table: str) -> None:
    with broken(table):
        assert "limits_app.W073" in {one.id for one in checks.check_stores([ALIAS])}
        assert {"limits_app.D005", "limits_app.W073"} <= {one.id for one in diagnose()}
    assert not {one.id for one in checks.check_stores([ALIAS])} & {"limits_app.W072", "limits_app.W073"}


@pytest.mark.usefixtures("migrated")
@pytest.mark.parametrize("databases", ["postgres"], indirect=True)
def test_schema_without_the_right_to_use_it_is_not_taken_for_an_empty_one() -> None:
    connection = connections[ALIAS]
    execute("CREATE ROLE weak LOGIN", "REVOKE ALL ON SCHEMA public FROM public, weak")
    connection.close()
    before = connection.settings_dict["USER"]
    connection.settings_dict["USER"] = "weak"
    try:
        assert decide() == "unresolved"
    finally:
        connection.close()
        connection.settings_dict["USER"] = before
        execute("GRANT USAGE ON SCHEMA public TO public", "DROP ROLE weak")


@pytest.mark.usefixtures("migrated")
def test_groups_that_cannot_be_read_exempt_no_client_unless_the_setting_allows(settings: Settings, serve: Any) -> None:
    Endpoint.objects.update(exempt_groups="pro")
    serve({"x/": fine})
    settings.MIDDLEWARE = [*settings.MIDDLEWARE]
    settings.MIDDLEWARE.insert(2, f"{__name__}.log_in")
    settings.LIMITS = settings.LIMITS | {"ON_UNRESOLVED": "block"}
    assert Client().get("/x/").status_code == 200
    endpoints.clear()
    with without_right("auth_group"):
        assert Client().get("/x/").status_code == 503
        settings.LIMITS = settings.LIMITS | {"ON_UNRESOLVED": "allow"}
        assert [Client().get("/x/").status_code for _ in range(2)] == [200, 200]


def log_in(get_response: Any) -> Any:
    """Let every request be of one user."""

    def middleware(request: HttpRequest) -> Any:
        request.user = User(pk=7)
        return get_response(request)

    return middleware


@pytest.mark.parametrize("error", [OperationalError, DatabaseError, StoreUnavailable, Unresolved])
@pytest.mark.usefixtures("migrated")
def test_error_of_a_function_of_the_site_is_raised_once(settings: Settings, error: type[Exception]) -> None:
    settings.LIMITS = settings.LIMITS | {"ON_UNRESOLVED": "allow", "ON_UNAVAILABLE": "allow"}
    calls = []

    def amounts(limits: LimitSet) -> None:
        calls.append(limits)
        if len(calls) == 1:
            raise error("of the site")

    with pytest.raises(error, match="of the site"):
        limits.try_acquire("api", requested=amounts)
    assert len(calls) == 1


def test_each_reason_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    noted = Failures(clock=lambda: now[0])
    for second, reason in [(0, "a"), (59, "a"), (59, "b"), (60, "a"), (118, "b"), (120, "a")]:
        now[0] = second
        noted.note(reason, "%s at %s", reason, second)
    assert caplog.messages == ["a at 0", "b at 59", "a at 60", "a at 120"]
    assert noted.counts == {"a": 4, "b": 2}

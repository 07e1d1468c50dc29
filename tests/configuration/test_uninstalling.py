"""Uninstalling leaves nothing of the app in a database and on the disk, and nothing of other apps is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import connections
from pytest_django import DjangoDbBlocker, Settings

from limits_app.audit import protect
from limits_app.models import Resource
from tests.commands.running import run
from tests.servers.shared import mariadb_database, postgres_database
from tests.stores.database.databases import ALIAS, forget, sqlite_in, use


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def database(request: Any, tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """An alias with an empty database of each kind."""
    with ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())
        kinds = {"postgres": postgres_database, "mariadb": mariadb_database}
        use(stack.enter_context(kinds[request.param]()) if request.param in kinds else sqlite_in(tmp_path))
        call_command("migrate", database=ALIAS, verbosity=0)
        yield request.param
        forget()


def of_the_app(model: Any, field: str) -> int:
    return int(model.objects.using(ALIAS).filter(**{field: "limits_app"}).count())


def functions() -> int:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_proc WHERE proname LIKE 'limits_app%'")
        return int(cursor.fetchone()[0])


@pytest.mark.release  # each database is migrated twice
def test_nothing_of_the_app_is_left(database: str, tmp_path: Path, settings: Settings) -> None:
    settings.LIMITS = {"STATE_DIR": str(tmp_path / "state of the site")}
    state = tmp_path / "state of the site" / "state"
    state.mkdir(parents=True)
    (state / "data.mdb").write_bytes(b"x")
    user = User.objects.db_manager(ALIAS).create_user("ann")
    group = Group.objects.using(ALIAS).create(name="limits viewer")
    group.permissions.set(Permission.objects.using(ALIAS).filter(codename__in=["view_resource", "view_user"]))
    types = ContentType.objects.db_manager(ALIAS)
    for model in (Resource, User):
        LogEntry.objects.using(ALIAS).create(
            user=user, content_type=types.get_for_model(model), object_id="1", object_repr="x", action_flag=CHANGE
        )
    Resource.objects.using(ALIAS).create(name="reports")
    protect(using=ALIAS)

    assert run(f"uninstall --database {ALIAS}").code == 2
    assert run(f"uninstall --database {ALIAS} --dry-run").code == 0
    assert of_the_app(ContentType, "app_label") > 10
    assert state.is_dir()

    ran = run(f"uninstall --database {ALIAS} --yes")
    assert ran.code == 0, ran.err
    tables = connections[ALIAS].introspection.table_names()
    assert [name for name in tables if name.startswith("limits_app")] == []
    assert of_the_app(ContentType, "app_label") == of_the_app(Permission, "content_type__app_label") == 0
    assert [entry.content_type.model for entry in LogEntry.objects.using(ALIAS) if entry.content_type] == ["user"]
    assert LogEntry.objects.using(ALIAS).count() == 1
    assert [permission.codename for permission in group.permissions.all()] == ["view_user"]
    assert not state.exists()
    if database == "postgres":
        assert functions() == 0

    call_command("migrate", database=ALIAS, verbosity=0)
    assert Resource.objects.using(ALIAS).count() == 0


def test_an_unknown_database_is_named(db: None) -> None:
    ran = run("uninstall --database nowhere --yes")
    assert (ran.code, "'nowhere' is not in DATABASES" in ran.err) == (1, True)

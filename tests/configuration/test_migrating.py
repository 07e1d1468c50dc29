"""Migrations run as often as one likes, leave nothing behind, and need no privilege but those for tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connections
from pytest_django import DjangoDbBlocker

from limits_app.audit import is_protected, protect, unprotect, verify
from limits_app.engine.errors import CannotProtect
from limits_app.models import Resource
from tests.servers.mariadb import mariadb_server
from tests.stores.database.databases import ALIAS, forget, sqlite_in, use


@pytest.fixture(autouse=True)
def no_database(django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """An alias that tests give a database of which the app has nothing."""
    with django_db_blocker.unblock():
        yield
        forget()


def migrate(*to: str) -> None:
    call_command("migrate", "limits_app", *to, database=ALIAS, verbosity=0)


def tables() -> list[str]:
    return [name for name in connections[ALIAS].introspection.table_names() if name.startswith("limits_app")]


def test_the_app_can_be_removed_and_installed_again(tmp_path: Path) -> None:
    use(sqlite_in(tmp_path))
    migrate()
    migrate()
    Resource.objects.using(ALIAS).create(name="reports")
    protect(using=ALIAS)
    migrate("zero")
    assert tables() == []
    migrate()
    assert not Resource.objects.using(ALIAS).exists()
    assert not is_protected(using=ALIAS)


@pytest.mark.product
def test_mariadb_with_binary_logging_is_migrated_with_a_hint_about_protection() -> None:
    with mariadb_server("--log-bin", "--server-id=1") as server:
        use(server.settings)
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("CREATE USER site@'%' IDENTIFIED BY ''")
            cursor.execute("GRANT ALL ON limits.* TO site@'%'")
        use({**server.settings, "USER": "site"})
        migrate()
        migrate()
        migrate("zero")
        assert tables() == []
        migrate()
        Resource.objects.using(ALIAS).create(name="reports")
        unprotect(using=ALIAS)
        with pytest.raises(CannotProtect, match="set log_bin_trust_function_creators = 1"):
            protect(using=ALIAS)
        assert not is_protected(using=ALIAS)
        call_command("flush", database=ALIAS, interactive=False, verbosity=0, inhibit_post_migrate=True)
        use(server.settings)
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("SET GLOBAL log_bin_trust_function_creators = 1")
            cursor.execute("REVOKE TRIGGER ON limits.* FROM site@'%'")
        use({**server.settings, "USER": "site"})
        with pytest.raises(CannotProtect, match="Grant the database user the privilege TRIGGER"):
            protect(using=ALIAS)
        use(server.settings)
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("GRANT TRIGGER ON limits.* TO site@'%'")
        use({**server.settings, "USER": "site"})
        protect(using=ALIAS)
        assert is_protected(using=ALIAS)
        assert verify(using=ALIAS).ok

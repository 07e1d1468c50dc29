"""`uninstall`: removes what the app has stored, before it is removed from the settings."""

from __future__ import annotations

import shutil
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from django.apps import apps
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import connections, transaction
from django.db.models import QuerySet

from limits_app.audit import unprotect
from limits_app.engine.errors import CannotProtect
from limits_app.management.limits.arguments import argument
from limits_app.management.limits.output import Output, Table
from limits_app.management.limits.subcommand import confirm, fail, subcommand
from limits_app.models import write_alias
from limits_app.services.rights import APP
from limits_app.stores.registry import state_directories, state_directory

_NEXT: Final = (
    "Now remove limits_app from the settings. Groups, keys in Redis, and schedules stay: "
    "docs/uninstalling.md names them."
)


@subcommand(
    "delete all tables of the app, its content types, permissions and log entries, and its state files",
    argument("--database", metavar="ALIAS", help="the database that has the tables; the default is that of the app"),
    argument("--dry-run", action="store_true", help="show what would be deleted"),
    argument("--yes", action="store_true", help="do not ask for confirmation"),
    examples=("uninstall --dry-run", "uninstall --yes"),
)
def uninstall(options: Namespace, out: Output) -> None:
    """Delete everything that the app has stored on this site."""
    using = options.database or write_alias()
    if using not in connections.settings:
        fail(f"{using!r} is not in DATABASES: must be one of {', '.join(connections.settings)}")
    rows, directories = _rows(using), _state_directories()
    names = connections[using].introspection.table_names()
    counts = [("tables", sum(name.startswith(f"{APP}_") for name in names))]
    counts += [(name, queryset.count()) for name, queryset in rows.items()]
    counts += [(f"state in {directory}", 1) for directory in directories]
    question = f"Delete all limits, usage and the audit log of this site from the database {using!r}?"
    confirm(question, options, out)
    if not options.dry_run:
        _delete(using, rows, directories)
    out.show(Table(("what", "number"), counts))
    out.note("This was a dry run: nothing was deleted." if options.dry_run else _NEXT)


def _rows(using: str) -> Mapping[str, QuerySet[Any]]:
    """What other apps have stored about this one, in the order in which it is deleted."""
    rows: dict[str, QuerySet[Any]] = {}
    if apps.is_installed("django.contrib.admin"):
        from django.contrib.admin.models import LogEntry

        rows["log entries"] = LogEntry.objects.using(using).filter(content_type__app_label=APP)
    rows["permissions"] = Permission.objects.using(using).filter(content_type__app_label=APP)
    rows["content types"] = ContentType.objects.using(using).filter(app_label=APP)
    return rows


def _state_directories() -> list[Path]:
    """The directories with the state of process stores, which only the app writes."""
    directories = {*state_directories(), state_directory()}
    return sorted(path for directory in directories if (path := directory / "state").is_dir())


def _delete(using: str, rows: Mapping[str, QuerySet[Any]], directories: list[Path]) -> None:
    with suppress(CannotProtect):  # a database of another kind has no triggers
        unprotect(using=using)
    call_command("migrate", APP, "zero", database=using, interactive=False, verbosity=0)
    with transaction.atomic(using=using):
        for queryset in rows.values():
            queryset.delete()
    ContentType.objects.clear_cache()
    for directory in directories:
        shutil.rmtree(directory)

"""Findings, and those about the environment: the database, its tables, the stores and the settings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from django.core import checks
from django.db import DatabaseError, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import NotSupportedError

from limits_app import conf
from limits_app.core.errors import StoreUnavailable
from limits_app.resolver.resolution import write_alias
from limits_app.stores import registry


class Severity(StrEnum):
    """The severity of a finding."""

    ERROR = "error"
    """Requests are limited wrongly or not at all, or will be."""
    WARNING = "warning"
    """Something is probably unintended."""
    INFO = "info"
    """Worth knowing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding; its `id` never changes, and is explained in the documentation."""

    id: str
    severity: Severity
    message: str
    advice: str

    def as_dict(self) -> dict[str, str]:
        """The finding as plain data."""
        return asdict(self)


_LABEL: Final = "limits_app"
_HINT: Final = "See the page about settings and checks."


def answers(ask: Callable[[], object], seconds: float) -> str | None:
    """Why a call fails or takes too long; None where it succeeds. A call that never ends keeps its daemon thread."""
    done = threading.Event()
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            ask()
        except Exception as error:  # noqa: BLE001 - every error is a finding
            failed.append(error)
        finally:
            done.set()

    threading.Thread(target=wait, name="limits-doctor", daemon=True).start()
    if not done.wait(seconds):
        return f"it did not answer within {seconds:g} seconds"
    return f"{type(failed[0]).__name__}: {failed[0]}".strip() if failed else None


def asked_database(seconds: float) -> Iterator[Finding]:
    """Whether the database with the configuration is available."""
    using = write_alias()
    why = answers(lambda: _ask_database(using), seconds)
    if why is not None:
        yield Finding(
            "limits_app.D001",
            Severity.ERROR,
            f"the database {using!r}, in which limits are set, cannot be used: {why}",
            "Start it, or correct DATABASES; until then processes go by what they know, and new ones by nothing.",
        )


def _ask_database(using: str) -> None:
    connection = connections[using]
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    finally:
        connection.close()  # it is this thread's own


def migrated() -> Iterator[Finding]:
    """Whether all migrations are applied, and Django supports the version of the database."""
    using = write_alias()
    connection = connections[using]
    try:
        connection.check_database_version_supported()
    except NotSupportedError as error:
        yield Finding(
            "limits_app.D003", Severity.ERROR, f"the database {using!r} is too old: {error}", "Upgrade the database."
        )
    executor = MigrationExecutor(connection)
    targets = [node for node in executor.loader.graph.leaf_nodes() if node[0] == _LABEL]
    missing = [migration.name for migration, backwards in executor.migration_plan(targets) if not backwards]
    if missing:
        yield Finding(
            "limits_app.D002",
            Severity.ERROR,
            f"the tables are not those of this version: {', '.join(missing)} is missing",
            "Run manage.py migrate limits_app.",
        )


def asked_stores(seconds: float) -> Iterator[Finding]:
    """Whether the stores are available."""
    for alias in conf.get(conf.STORES):
        why = answers(lambda alias=alias: registry.store(alias).version(), seconds)  # type: ignore[misc]
        if why is not None:
            yield Finding(
                "limits_app.D004",
                Severity.ERROR,
                f"the store {alias!r} cannot be used: {why}",
                "Start it, or correct LIMITS; until then requests are answered as policies say.",
            )


def checked(*, stores_answer: bool) -> Iterator[Finding]:
    """The messages of the app's system checks, under their own ids."""
    databases = [write_alias()] if stores_answer else []
    with suppress(DatabaseError, StoreUnavailable):
        for message in checks.run_checks(tags=[_LABEL], include_deployment_checks=True, databases=databases):
            yield Finding(str(message.id), _severity(message.level), str(message.msg), str(message.hint or _HINT))


def _severity(level: int) -> Severity:
    if level >= checks.ERROR:
        return Severity.ERROR
    return Severity.WARNING if level >= checks.WARNING else Severity.INFO

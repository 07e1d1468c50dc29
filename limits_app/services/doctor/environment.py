"""Findings, and those about what runs: the database, its tables, the stores, the settings, and recorded usage."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, cast

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Exists, OuterRef
from django.db.utils import NotSupportedError
from django.utils import timezone

from limits_app import conf
from limits_app.engine import HOUR
from limits_app.engine.errors import StoreUnavailable
from limits_app.models import (
    BucketKind,
    CodeLimits,
    Entity,
    Resource,
    UsagePeriod,
    UsageSnapshot,
    jobs_named,
    write_alias,
)
from limits_app.models.fields import aware
from limits_app.models.namespaces import current_keys
from limits_app.models.own_queries import DATABASE_ERRORS
from limits_app.stores import registry

if TYPE_CHECKING:
    from limits_app.stores.database import DatabaseStore
    from limits_app.stores.redis import RedisStore

logger = logging.getLogger("limits_app")

MOST_LISTED: Final = 10
"""How many findings of one kind are listed."""


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
        except Exception as error:
            failed.append(error)  # every error is a finding
            if not isinstance(error, (*DATABASE_ERRORS, ImproperlyConfigured, StoreUnavailable)):
                logger.exception("an unknown error")
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
            "Start it, or correct DATABASES; until then processes use the last known limits, and new ones have none.",
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
    plan = executor.migration_plan(targets)  # with the migrations of other apps that these need
    missing = [node.name for node, backwards in plan if node.app_label == _LABEL and not backwards]
    if missing:
        yield Finding(
            "limits_app.D002",
            Severity.ERROR,
            f"migrations of {_LABEL} are not applied: {', '.join(missing)}",
            "Run manage.py migrate.",
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
                "Start it, or correct LIMITS; until then `on_unavailable` decides about requests.",
            )


def pooled_stores(seconds: float) -> Iterator[Finding]:
    """Whether a pooler shares the sessions of a store among transactions."""
    for alias in conf.get(conf.STORES):
        if conf.store_settings(alias).kind is not conf.StoreKind.DATABASE:
            continue
        pooled: list[bool] = []
        answers(lambda alias=alias, pooled=pooled: pooled.append(_pools_transactions(alias)), seconds)  # type: ignore[misc]
        if any(pooled):
            yield Finding(
                "limits_app.D029",
                Severity.ERROR,
                f"the store {alias!r} is behind a pooler such as PgBouncer that pools transactions",
                "Set pool_mode = session for the store's database, or give the store an alias of DATABASES without "
                "the pooler: it prepares statements and sets timeouts, which other clients of the pool receive.",
            )


def pooled_database(seconds: float) -> Iterator[Finding]:
    """Whether a pooler shares sessions among transactions, and Django reads rows in parts that need a session."""
    using = write_alias()
    connection = connections[using]
    if connection.vendor != "postgresql" or connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
        return
    pooled: list[bool] = []
    answers(lambda: pooled.append(registry.pools_transactions(using)), seconds)
    if any(pooled):
        yield Finding(
            "limits_app.D036",
            Severity.WARNING,
            f"the database {using!r} is behind a pooler such as PgBouncer that pools transactions, and does not set "
            "DISABLE_SERVER_SIDE_CURSORS",
            f"Set DATABASES[{using!r}]['DISABLE_SERVER_SIDE_CURSORS'] = True, as Django requires: otherwise commands "
            "and background jobs that read many rows fail.",
        )


def _pools_transactions(alias: str) -> bool:
    return cast("DatabaseStore", registry.store(alias)).pools_transactions()


def checked(*, stores_answer: bool) -> Iterator[Finding]:
    """The messages of the app's system checks, under their own ids, the most severe first."""
    databases = [write_alias()] if stores_answer else []
    with suppress(*DATABASE_ERRORS, StoreUnavailable):
        messages = checks.run_checks(tags=[_LABEL], include_deployment_checks=True, databases=databases)
        # Django runs checks in no order, which differs from process to process.
        for message in sorted(messages, key=lambda message: (-message.level, str(message.id), str(message.msg))):
            yield Finding(str(message.id), _severity(message.level), str(message.msg), str(message.hint or _HINT))


def _severity(level: int) -> Severity:
    if level >= checks.ERROR:
        return Severity.ERROR
    return Severity.WARNING if level >= checks.WARNING else Severity.INFO


_UNUSED: Final = timedelta(days=30)
_LATE: Final = timedelta(hours=3)
_LATELY: Final = timedelta(days=1)


def used(using: str) -> Iterator[Finding]:
    """Compare usage and configuration; no findings for a site that records no usage."""
    snapshots = UsageSnapshot._default_manager.using(using)
    yield from _late()
    if not snapshots.exists():
        return
    now = timezone.now()
    # Members of pools are counted under the name of the pool, which need not be that of a resource.
    own = snapshots.filter(start__gte=now - _UNUSED).exclude(bucket=BucketKind.MEMBER)
    lately = {*own.order_by().values_list("resource", flat=True).distinct()}
    resources = {*Resource._base_manager.using(using).values_list("name", flat=True)}
    unused = sorted(resources - lately)
    if unused:
        yield Finding(
            "limits_app.D020",
            Severity.INFO,
            f"{_named(unused)} has not been used for {_UNUSED.days} days",
            "Delete resources that are not needed, or check whether the code uses another name.",
        )
    of_code = CodeLimits._default_manager.using(using).values_list("resource", flat=True)
    unknown = sorted(lately - resources - {*of_code})
    if unknown:
        yield Finding(
            "limits_app.D021",
            Severity.INFO,
            f"resources without a row and without limits in code are used: {_named(unknown)}",
            "Create the resource to set specific limits for it, or correct a misspelled name in the code.",
        )
    yield from _without_rows(snapshots.filter(period=UsagePeriod.HOUR, start__gte=now - _LATELY), using)


def waiting() -> Iterator[Finding]:
    """Whether usage waits in a Redis store to be rolled up, which keeps idle scopes there."""
    for alias in conf.get(conf.STORES):
        if conf.store_settings(alias).kind is not conf.StoreKind.REDIS:
            continue
        oldest = cast("RedisStore", registry.store(alias)).oldest_hour(current_keys().counters)
        since = None if oldest is None else datetime.fromtimestamp(oldest * HOUR, UTC)
        if since is not None and timezone.now() - since > _LATE:
            yield Finding(
                "limits_app.D027",
                Severity.WARNING,
                f"the store {alias!r} has usage since {since:%Y-%m-%d %H:%M} UTC that was not rolled up",
                "Run manage.py limits snapshot by a timer, or set LIMITS['USAGE'] to False: the store keeps idle "
                "scopes until their usage is rolled up, and drops the oldest usage when there is too much.",
            )


def _late() -> Iterator[Finding]:
    """Whether usage is still rolled up: by a task, a command or code, or in the background."""
    row = jobs_named("roll_up").first()
    last = None if row is None else max(filter(None, (row.ran_at, row.scheduled_at)), default=None)
    if last is not None and timezone.now() - aware(last) > _LATE:
        yield Finding(
            "limits_app.D022",
            Severity.WARNING,
            f"usage was last rolled up at {aware(last):%Y-%m-%d %H:%M}",
            "Check that a process of the site answers requests and LIMITS['BACKGROUND_JOBS'] is True, or schedule "
            "manage.py limits snapshot every minute.",
        )


def _without_rows(snapshots: Any, using: str) -> Iterator[Finding]:
    rows = Entity._base_manager.using(using).filter(identifier=OuterRef("entity"))
    mine = snapshots.filter(~Exists(rows), bucket=BucketKind.ENTITY).exclude(entity="").order_by()
    count = mine.values("entity").distinct().count()
    if count:
        yield Finding(
            "limits_app.D023",
            Severity.INFO,
            f"entities without a row that were active within a day: {count}; the general policies apply to them",
            "No action is required, unless some of them need specific limits.",
        )


def _named(names: list[str]) -> str:
    more = len(names) - 10
    return ", ".join(names[:10]) + (f" and {more} more" if more > 0 else "")

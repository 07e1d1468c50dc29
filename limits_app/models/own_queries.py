"""The queries that requests make for limits: what happens when they fail, and in a transaction of the site."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import monotonic
from typing import Any, Final, TypeVar

from django.apps import apps
from django.db import DatabaseError, InterfaceError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from limits_app import conf
from limits_app.conf import OnUnresolved, test_runner
from limits_app.engine.errors import UnknownTimeZone, Unresolved
from limits_app.engine.locks import RLock
from limits_app.models.in_tests import is_forbidden

logger = logging.getLogger("limits_app")

T = TypeVar("T")

DATABASE_ERRORS: Final = (DatabaseError, InterfaceError)
"""All errors of a database: no table, column or right, no connection, and others."""
NOT_MIGRATED: Final = "not_migrated"
FAILED: Final = "failed"
TIME_ZONE: Final = "time_zone"

_LOG_SECONDS: Final = 60.0
_MISSING_TABLE: Final[Mapping[str, Callable[[Any], bool]]] = {
    "postgresql": lambda error: "42P01" in {getattr(error, "sqlstate", ""), getattr(error, "pgcode", "")},
    "mysql": lambda error: error.args[:1] == (1146,),
    "sqlite": lambda error: "no such table" in str(error),
}
"""By kind of database, whether an error of its driver is about a table that does not exist."""
_TABLES_OF_POSTGRESQL: Final = """
    SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname IN (SELECT TRIM(BOTH '"' FROM CASE TRIM(s) WHEN '"$user"' THEN CURRENT_USER::text ELSE TRIM(s) END)
                        FROM regexp_split_to_table(current_setting('search_path'), ',') s)
"""
"""The tables on the search path, also those in schemas that the user has no right to use."""


class Failures:
    """Counts the reads that failed in this process, by reason, and logs each reason at most once a minute.

    `clock` returns seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = RLock()  # reentrant, because a finalizer may resolve limits while this thread holds the lock
        self.observers: list[Callable[[], object]] = []
        """Called for each failure; must not block or raise."""
        self.clear()

    def clear(self) -> None:
        """Forget all failures."""
        self.counts: Counter[str] = Counter()
        self._logged_at: dict[str, float] = {}

    def totals(self) -> list[tuple[str, int]]:
        """Return how many reads failed for each reason."""
        with self._lock:
            return [*self.counts.items()]

    def note(self, reason: str, message: str, *args: object) -> None:
        """Count a failure, and log it unless one with the same reason was logged within a minute."""
        now = self._clock()
        for observer in self.observers:
            observer()
        with self._lock:
            self.counts[reason] += 1
            last = self._logged_at.get(reason)
            if last is not None and now - last < _LOG_SECONDS:
                return
            self._logged_at[reason] = now
        logger.warning(message, *args)


failures: Final = Failures()
"""The failures of this process."""


def read(using: str, query: Callable[[], T], default: T) -> T:
    """Return what `query` reads from a database; `default` where the tables of the app were never made.

    Also `default` where the test of a project may not use the database.
    Raises Unresolved for every other error of the database. No error ends a transaction of the site.
    """
    try:
        with own_query(using):
            return query()
    except DATABASE_ERRORS as error:
        if is_not_migrated(using, error):
            failures.note(
                NOT_MIGRATED,
                "the database %r has no tables of limits_app, so no rules and policies apply: run manage.py migrate",
                using,
            )
            return default
        failures.note(
            FAILED,
            "the limits cannot be read from the database %r: %s; the last known ones stay in force, and "
            "LIMITS['ON_UNRESOLVED'] decides about others",
            using,
            error,
        )
        raise Unresolved(f"the limits cannot be read from the database: {error}") from error
    except Exception as error:
        if test_runner.current_test() is not None and is_forbidden(error):
            return default
        raise


def check_unresolved(error: Unresolved) -> None:
    """Raise an error where ON_UNRESOLVED says that requests are blocked whose limits cannot be read."""
    if conf.get(conf.ENABLED) and conf.get(conf.ON_UNRESOLVED) is OnUnresolved.BLOCK:
        error.retry_after = conf.get(conf.BREAKER_PROBE_SECONDS)
        raise error


@contextmanager
def known_time_zones() -> Iterator[None]:
    """Raise Unresolved where limits or hours that were read are in a time zone that this machine lacks."""
    try:
        yield
    except UnknownTimeZone as error:
        failures.note(TIME_ZONE, "limits cannot be used: %s; LIMITS['ON_UNRESOLVED'] decides instead", error)
        raise Unresolved(str(error)) from error


def own_query(using: str) -> AbstractContextManager[None]:
    """A block for a query of the app, whose error must not end a transaction of the site."""
    connection = connections[using]
    # Other databases undo only the statement that fails. Without a transaction there is nothing to keep.
    is_ended_by_errors = connection.vendor == "postgresql"
    in_transaction = connection.in_atomic_block or (is_ended_by_errors and not connection.get_autocommit())
    return transaction.atomic(using=using) if is_ended_by_errors and in_transaction else nullcontext()


def is_not_migrated(using: str, error: BaseException) -> bool:
    """Whether a query failed because a table does not exist, and no table of the app does."""
    connection = connections[using]
    is_missing_table = _MISSING_TABLE.get(connection.vendor)
    if is_missing_table is None or error.__cause__ is None or not is_missing_table(error.__cause__):
        return False
    tables = {model._meta.db_table for model in apps.get_app_config("limits_app").get_models()}
    try:
        with own_query(using):
            return not tables & {*_tables(connection)}
    except DATABASE_ERRORS:
        return False


def _tables(connection: BaseDatabaseWrapper) -> list[str]:
    if connection.vendor != "postgresql":
        return connection.introspection.table_names()
    with connection.cursor() as cursor:
        cursor.execute(_TABLES_OF_POSTGRESQL)
        return [name for (name,) in cursor.fetchall()]

"""What the tests of a project see of our tables, where they have no limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper

from limits_app.conf import test_runner

_SAVEPOINT: Final = "limits_app_in_tests"
_FORBIDDEN: Final = "Database access not allowed"
"""What pytest-django says where a test may not use the database."""


def are_empty_in_test(tables: Iterable[type[models.Model]], using: str) -> bool:
    """Whether a test runner runs and its test sees no rows of some models, or may not use the database.

    It uses the driver directly, so that `assertNumQueries` of a project without limits does not count it.
    """
    if test_runner.current_test() is None:
        return False
    connection = connections[using]
    try:
        connection.cursor().close()
    except Exception as error:
        if is_forbidden(error):
            return True
        raise
    names = [connection.ops.quote_name(model._meta.db_table) for model in tables]
    sql = " UNION ALL ".join(f"SELECT 1 FROM {name}" for name in names) + " LIMIT 1"  # noqa: S608 - our own tables
    with closing(connection.connection.cursor()) as cursor:
        try:
            with _savepoint(connection, cursor):
                cursor.execute(sql)
                return cursor.fetchone() is None
        except connection.Database.Error:  # type: ignore[attr-defined]  # every wrapper has it
            return False  # the query itself will fail too, and that is handled


@contextmanager
def _savepoint(connection: BaseDatabaseWrapper, cursor: Any) -> Iterator[None]:
    """Leave a transaction of the test as it is, whether a statement fails in the block or not."""
    if not connection.in_atomic_block:
        yield
        return
    cursor.execute(connection.ops.savepoint_create_sql(_SAVEPOINT))
    try:
        yield
    except BaseException:
        cursor.execute(connection.ops.savepoint_rollback_sql(_SAVEPOINT))
        raise
    finally:
        cursor.execute(connection.ops.savepoint_commit_sql(_SAVEPOINT))


def is_forbidden(error: BaseException) -> bool:
    """Whether a test case of Django, or pytest-django, does not let the running test use the database."""
    from django.test.testcases import DatabaseOperationForbidden  # type: ignore[attr-defined]  # it is there since 4.2

    return isinstance(error, DatabaseOperationForbidden) or (
        isinstance(error, RuntimeError) and str(error).startswith(_FORBIDDEN)
    )

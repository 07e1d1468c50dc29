"""The version of the configuration and the log of its changes: one row for each namespace that has changed."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from limits_app.engine import Change, ChangeLog, namespace_digest
from limits_app.stores.database.connections import namespace_id

if TYPE_CHECKING:
    from limits_app.stores.database.transaction import Transaction

VERSION: Final = "COALESCE((SELECT version FROM limits_app_version WHERE id = %s), 0)"
"""The version of a namespace; 0 where it has none."""
_LOG: Final = "SELECT version, log FROM limits_app_version WHERE id = %s"
_ADVANCE: Final = "UPDATE limits_app_version SET version = %s, log = %s WHERE id = %s"


def version(namespace: str, transaction: Transaction) -> int:
    """Return the version of a namespace."""
    [row] = transaction.connection.execute(f"SELECT {VERSION}", (namespace_id(namespace_digest(namespace)),))
    return int(row[0])


def read(namespace: str, transaction: Transaction) -> ChangeLog:
    """Return the version of a namespace and its log, as they are at one moment."""
    return _log_of(transaction.connection.execute(_LOG, (namespace_id(namespace_digest(namespace)),)))


def advance(changes: Collection[Change], namespace: str, transaction: Transaction) -> int:
    """Raise the version of a namespace, and append the changes to its log; returns the version.

    No transaction locks another row with that of a version, so that announcements wait for each other alone.
    """
    connection, row_id = transaction.connection, namespace_id(namespace_digest(namespace))
    connection.insert("limits_app_version", "id, version", (row_id, 0))
    transaction.begin()
    log = _log_of(connection.execute(_LOG + connection.lock_sql, (row_id,))).advanced(changes)
    connection.execute(_ADVANCE, (log.version, log.log, row_id))
    transaction.commit()
    return log.version


def _log_of(rows: list[Any]) -> ChangeLog:
    return ChangeLog(int(rows[0][0]), bytes(rows[0][1] or b"")) if rows else ChangeLog()

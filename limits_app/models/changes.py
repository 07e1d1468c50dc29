"""Announces changes of configuration, once per transaction and only after the commit.

It also returns whether configuration that was read may be cached, and whether a transaction is open.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from django.db import connections, transaction

from limits_app import signals

_ISOLATION: Final = {
    "postgresql": "SHOW transaction_isolation",
    "mysql": "SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')",
}
"""The level is the last column of the result. The variable has different names in MySQL and MariaDB."""


@dataclass(frozen=True, slots=True)
class _Announcement:
    """The callback after the commit; its type distinguishes it from other callbacks of the transaction."""

    using: str

    def __call__(self) -> None:
        signals.limits_changed.send_robust(sender=None, using=self.using)


def announce(using: str) -> None:
    """Send `limits_changed` when the current transaction on `using` is committed, or immediately without a transaction.

    A transaction is announced once, however much it changes, and not at all when it is rolled back.
    It runs before all other callbacks of the commit, because a failing callback prevents those after it.
    A receiver that fails is logged and does not stop the others.
    """
    if pending(using):
        return
    transaction.on_commit(_Announcement(using), using=using)
    if pending(using):
        waiting = connections[using].run_on_commit
        waiting.insert(0, waiting.pop())


def pending(using: str) -> bool:
    """Whether the current transaction on `using` has announced a change that is not committed yet."""
    return any(isinstance(hook[1], _Announcement) for hook in connections[using].run_on_commit)


def may_be_kept(using: str) -> bool:
    """Whether rows that were just read on `using` are the committed ones and may be cached for other requests.

    They may not if the current transaction has changed configuration, because it may be rolled back, or if it reads
    from a snapshot, which may be older than the version of the store.
    """
    return not (pending(using) or _reads_a_snapshot(connections[using]))


def _reads_a_snapshot(connection: Any) -> bool:
    """Whether a transaction is open that may not see later commits of other transactions.

    It uses the driver directly, so that it does not count as a query.
    """
    if connection.connection is None or (connection.autocommit and not connection.in_atomic_block):
        return False
    if connection.vendor == "sqlite":
        return not _excludes_writers(connection) and _last_column(connection, "PRAGMA journal_mode") == "wal"
    if connection.vendor in _ISOLATION:
        return _last_column(connection, _ISOLATION[connection.vendor]).replace("-", " ").lower() != "read committed"
    return True


def _excludes_writers(connection: Any) -> bool:
    """Whether an SQLite transaction has prevented all other writes since it began; with a journal, any reader does.

    With autocommit off, Django begins no transaction itself and sets `commit_on_exit` to False.
    """
    is_begun = connection.in_atomic_block and connection.commit_on_exit
    return is_begun and connection.transaction_mode in {"IMMEDIATE", "EXCLUSIVE"}


def _last_column(connection: Any, query: str) -> str:
    with connection.wrap_database_errors, closing(connection.connection.cursor()) as cursor:
        cursor.execute(query)
        return str(cursor.fetchone()[-1])


def in_transaction(using: str) -> bool:
    """Whether the caller has an open transaction on `using`, apart from the transactions of TestCase.

    These are never committed, so callbacks after the commit would never run. Django refuses a durable block in each
    other transaction; without a savepoint it sends nothing to the database.
    Raises TransactionManagementError with autocommit off, as `on_commit` does.
    """
    connection = transaction.get_connection(using)
    if connection.in_atomic_block:
        try:
            with transaction.atomic(using=using, savepoint=False, durable=True):
                return False
        except RuntimeError:
            return True
    if connection.get_autocommit():
        return False
    raise transaction.TransactionManagementError("callbacks after the commit require autocommit: use atomic()")

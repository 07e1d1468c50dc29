"""Telling the site that configuration changed, once per transaction and only after it was committed.

It also says when configuration that was read may be cached, and whether a transaction is open.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from django.db import connections, models, transaction
from django.db.models.signals import post_delete, post_save

from limits_app import signals

__all__ = ["announce", "in_transaction", "may_be_kept", "pending", "watch"]

_ISOLATION: Final = {
    "postgresql": "SHOW transaction_isolation",
    "mysql": "SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')",
}
"""Gives a row, of which the level is the last column. MySQL and MariaDB have renamed the variable, each in its time."""


@dataclass(frozen=True, slots=True)
class _Announcement:
    """The callback after the commit; its type distinguishes it from other callbacks of the transaction."""

    using: str

    def __call__(self) -> None:
        signals.limits_changed.send_robust(sender=None, using=self.using)


def announce(using: str) -> None:
    """Send `limits_changed` when the current transaction on `using` is committed, or immediately without a transaction.

    A transaction is announced once, however much it changes, and not at all when it is rolled back.
    It comes before whatever else waits for the commit, of which what fails keeps all that comes after it from running.
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

    It is not while the current transaction has changed configuration, which may be rolled back, and not while its reads
    are of a snapshot: of how things were when it began, and not when a store was asked for its version.
    """
    return not (pending(using) or _reads_a_snapshot(connections[using]))


def _reads_a_snapshot(connection: Any) -> bool:
    """Whether a transaction is open that may not see what others have committed since it began.

    The driver is asked directly, so that it does not count as a query.
    """
    if connection.connection is None or (connection.autocommit and not connection.in_atomic_block):
        return False
    if connection.vendor == "sqlite":
        return not _excludes_writers(connection) and _last_column(connection, "PRAGMA journal_mode") == "wal"
    if connection.vendor in _ISOLATION:
        return _last_column(connection, _ISOLATION[connection.vendor]).replace("-", " ").lower() != "read committed"
    return True


def _excludes_writers(connection: Any) -> bool:
    """Whether an SQLite transaction has kept all others from writing since it began; with a journal, any reader does.

    Django begins none itself where autocommit is switched off, which it notes as that it will not commit either.
    """
    is_begun = connection.in_atomic_block and connection.commit_on_exit
    return is_begun and connection.transaction_mode in {"IMMEDIATE", "EXCLUSIVE"}


def _last_column(connection: Any, query: str) -> str:
    with connection.wrap_database_errors, closing(connection.connection.cursor()) as cursor:
        cursor.execute(query)
        return str(cursor.fetchone()[-1])


def in_transaction(using: str) -> bool:
    """Whether the caller has a transaction open on `using`; those in which a TestCase runs its tests are none.

    Those are never committed, so callbacks that wait for the commit would never run.
    Raises TransactionManagementError where autocommit is off, as `on_commit` does.
    """
    connection: Any = connections[using]
    if connection.in_atomic_block:
        return any(not block._from_testcase for block in connection.atomic_blocks)
    if connection.get_autocommit():
        return False
    raise transaction.TransactionManagementError("without autocommit, nothing can wait for a commit: use atomic()")


def watch(watched: Iterable[type[models.Model]]) -> None:
    """Announce whenever a row of these models is saved or deleted."""
    for model in watched:
        for signal in (post_save, post_delete):
            signal.connect(_announce_row, sender=model, dispatch_uid=f"limits_app.changes.{model.__name__}")


def _announce_row(sender: type[models.Model], *, using: str, **details: object) -> None:
    announce(using)

"""Announces changes of configuration, once per transaction and only after the commit.

It also returns whether configuration that was read may be cached, and whether a transaction is open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final

from django.db import DatabaseError, InterfaceError, connections, models, transaction

from limits_app import signals
from limits_app.engine import ACCESS, ALL, COOLING, EVERYTHING, GENERAL, MOST_CLIENTS, ROWS, Change, Changes
from limits_app.models.namespaces import SiteNamespace, namespace_in

_ISOLATION: Final = {
    "postgresql": "SHOW transaction_isolation",
    "mysql": "SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')",
}
"""The level is the last column of the result. The variable has different names in MySQL and MariaDB."""


_PERSON: Final = b"limits_app"


def identifier_digest(identifier: str) -> bytes:
    """The digest of an identifier in announcements, the same in every process and release."""
    return blake2b(identifier.encode("utf-8", "surrogatepass"), digest_size=8, person=_PERSON).digest()


@dataclass(slots=True)
class Touched:
    """What the changes of a transaction concern, so that processes drop that and nothing else.

    `is_access` says that who is blocked or exempt has changed, and `moved` are rows, by model, of which that depends
    on whether they are the parents of others.
    `clients` are the identifiers whose limits have changed, and those among them that are `named` had no row or no
    plan of a group before, except for the rows that were `created`, by model. With `has_chosen_keys`, the database did
    not choose the primary keys of all these, so that they may be below those of rows that were deleted. `is_many` says
    that any client may be one of them, `is_all` that something changed that belongs to no single client, and
    `is_everything` that identifiers which are not known here have rows now, and `is_cooling` that cool-downs of members
    have changed.
    """

    clients: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    created: dict[type[models.Model], set[Any]] = field(default_factory=dict)
    moved: dict[type[models.Model], set[Any]] = field(default_factory=dict)
    has_chosen_keys: bool = False
    is_access: bool = False
    is_many: bool = False
    is_all: bool = False
    is_everything: bool = False
    is_cooling: bool = False

    @classmethod
    def of(cls, clients: Iterable[str] = (), *, named: Iterable[str] = ()) -> Touched:
        """The limits of some clients, and of others that had no row or no plan of a group before."""
        names = set(named)
        return cls(clients={*clients} | names, named=names)

    @classmethod
    def anything(cls) -> Touched:
        """Something that belongs to no single client."""
        return cls(is_all=True)

    @classmethod
    def cool_downs(cls) -> Touched:
        """The cool-downs of members, and no limits."""
        return cls(is_cooling=True)

    def add(self, other: Touched) -> None:
        """Add what another one concerns."""
        self.clients |= other.clients
        self.named |= other.named
        for mine, others in ((self.created, other.created), (self.moved, other.moved)):
            for model, keys in others.items():
                mine.setdefault(model, set()).update(keys)
        self.has_chosen_keys = self.has_chosen_keys or other.has_chosen_keys
        self.is_access = self.is_access or other.is_access
        self.is_many = self.is_many or other.is_many
        self.is_all = self.is_all or other.is_all
        self.is_everything = self.is_everything or other.is_everything
        self.is_cooling = self.is_cooling or other.is_cooling

    def changes(self, using: str) -> Changes:
        """What is announced; it may query the database for the rows that were created, and those below others."""
        if not self.is_cooling:
            return self._of_limits(using)
        others = replace(self, is_cooling=False)
        return (COOLING,) if others == Touched() else (*others.changes(using), COOLING)

    def _of_limits(self, using: str) -> Changes:
        is_many = self.is_many or len(self.clients) > MOST_CLIENTS
        if self.is_everything or (is_many and len(self.named) > MOST_CLIENTS) or (self.is_all and self.named):
            return (EVERYTHING,)
        if is_many or self.is_all:
            created = self.created.items()
            if self.has_chosen_keys or not all(_are_latest(model, keys, using) for model, keys in created):
                return (EVERYTHING,)
            if self.is_all:
                return (ALL,) if created or self.is_many else (GENERAL,)
            return (ROWS, *((ACCESS,) if self.is_access else ()), *_of_clients(self.named))
        clients = _of_clients(self.clients)
        is_access = self.is_access or any(_are_parents(model, keys, using) for model, keys in self.moved.items())
        return (*clients, *((ACCESS,) if is_access else ())) if clients else (ALL,)


def _of_clients(identifiers: Iterable[str]) -> Changes:
    return tuple([Change.of_client(identifier_digest(identifier)) for identifier in sorted(identifiers)])


def _are_latest(model: type[models.Model], keys: Collection[Any], using: str) -> bool:
    """Whether rows have the highest primary keys; False where that is unknown."""
    rows = model._base_manager.using(using).filter(pk__gte=min(keys)).order_by()
    try:
        return rows.count() == len(keys)
    except (DatabaseError, InterfaceError):
        return False


def _are_parents(model: type[models.Model], keys: Collection[Any], using: str) -> bool:
    """Whether one of some rows is the parent of another; True where that is unknown."""
    try:
        return model._base_manager.using(using).filter(parent__in=keys).exists()
    except (DatabaseError, InterfaceError):
        return True


@dataclass(frozen=True, slots=True)
class _Announcement:
    """The callback after the commit; its type distinguishes it from other callbacks of the transaction.

    The changes are those of a namespace, which may be another one when the transaction is committed.
    """

    using: str
    namespace: SiteNamespace
    touched: Touched

    def __call__(self) -> None:
        is_here = namespace_in(self.using) == self.namespace
        changes = self.touched.changes(self.using) if is_here else (EVERYTHING,)
        keys = self.namespace.keys
        signals.limits_changed.send_robust(sender=None, using=self.using, changes=changes, namespace=keys)


def announce(using: str, touched: Touched) -> None:
    """Send `limits_changed` when the current transaction on `using` is committed, or immediately without a transaction.

    A transaction is announced once, with what all its changes concern, and not at all when it is rolled back.
    It runs before all other callbacks of the commit, because a failing callback prevents those after it.
    A receiver that fails is logged and does not stop the others.
    """
    namespace = namespace_in(using)
    waiting = next((change for change in _pending(connections[using]) if change.namespace == namespace), None)
    if waiting is not None:
        waiting.touched.add(touched)
        return
    announcement = _Announcement(using, namespace, Touched())
    announcement.touched.add(touched)
    transaction.on_commit(announcement, using=using)
    if pending(using):
        hooks = connections[using].run_on_commit
        hooks.insert(0, hooks.pop())


def pending(using: str) -> bool:
    """Whether the current transaction on `using` has announced a change that is not committed yet."""
    return bool(_pending(connections[using]))


def _pending(connection: Any) -> list[_Announcement]:
    return [hook[1] for hook in connection.run_on_commit if isinstance(hook[1], _Announcement)]


def may_be_kept(using: str) -> bool:
    """Whether rows that were just read on `using` are the committed ones and may be cached for other requests.

    They may not if the current transaction has changed configuration, because it may be rolled back, or if it reads
    from a snapshot, which may be older than the version of the store.
    """
    connection: Any = connections[using]
    return not (_pending(connection) or _reads_snapshot(connection))


def reads_snapshot(using: str) -> bool:
    """Whether a transaction is open on `using` that may not see later commits of other transactions.

    It uses the driver directly, so that it does not count as a query.
    """
    return _reads_snapshot(connections[using])


def _reads_snapshot(connection: Any) -> bool:
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

"""Checks of the databases of stores, by their settings; they are not connected to."""

from __future__ import annotations

from collections.abc import Iterator

from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's name
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from limits_app.checks.reporting import stores_of
from limits_app.conf import StoreKind


def _databases() -> Iterator[tuple[str, BaseDatabaseWrapper]]:
    """The aliases of database stores and their connections, if the database is configured."""
    for alias, using in _databases_used():
        if using in connections.settings:
            yield alias, connections[using]


def _databases_used() -> Iterator[tuple[str, str]]:
    for alias, chosen in stores_of(StoreKind.DATABASE):
        yield alias, chosen.using or DEFAULT_DB_ALIAS


def missing_databases() -> Iterator[CheckMessage]:
    """Report database stores whose database is not in DATABASES."""
    for alias, using in _databases_used():
        if using not in connections.settings:
            yield Error(
                f"the store {alias!r} uses the database {using!r}, which is not defined in DATABASES",
                hint=f"Set USING to one of {', '.join(map(repr, connections.settings))}.",
                id="limits_app.E055",
            )


def database_in_memory() -> Iterator[CheckMessage]:
    """Report a store in an in-memory database of SQLite."""
    for alias, connection in _databases():
        if connection.vendor == "sqlite" and ":memory:" in str(connection.settings_dict["NAME"]):
            yield Warning(
                f"the store {alias!r} uses an in-memory SQLite database, which other connections cannot open",
                hint="Use a database file, or a memory store.",
                id="limits_app.W049",
            )


def pooled_transactions() -> Iterator[CheckMessage]:
    """Report a database that a pooler of transactions seems to share."""
    for alias, connection in _databases():
        if connection.vendor == "postgresql" and connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
            yield Warning(
                f"the store {alias!r} seems to use a transaction-pooled connection: its database sets "
                "DISABLE_SERVER_SIDE_CURSORS",
                hint="Set USING to a database with a direct or session-pooled connection: the store prepares "
                "statements and sets session timeouts.",
                id="limits_app.W052",
            )


def transactions_in_the_way() -> Iterator[CheckMessage]:
    """Report a store in a file of SQLite that transactions of the site lock."""
    for alias, connection in _databases():
        options = connection.settings_dict
        locks = str(options["OPTIONS"].get("transaction_mode")).upper() in {"IMMEDIATE", "EXCLUSIVE"}
        if connection.vendor == "sqlite" and (options["ATOMIC_REQUESTS"] or locks):
            yield Warning(
                f"the store {alias!r} uses an SQLite file that transactions of the site lock: its database has "
                f"{'transaction_mode' if locks else 'ATOMIC_REQUESTS'}",
                hint="Set USING to a separate database file without these options: a request inside a transaction on "
                "the file of the store blocks itself.",
                id="limits_app.W056",
            )


def database_of_one_machine() -> Iterator[CheckMessage]:
    """Report a store in SQLite."""
    for alias, connection in _databases():
        if connection.vendor == "sqlite":
            yield Warning(
                f"the store {alias!r} uses an SQLite database, which is limited to one machine",
                hint="Use PostgreSQL, MySQL, MariaDB or Redis for several machines; "
                "on one machine, the process store is faster.",
                id="limits_app.W053",
            )

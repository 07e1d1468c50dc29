"""The database store: state in tables of PostgreSQL, MySQL, MariaDB or SQLite, for sites without Redis."""

from __future__ import annotations

from limits_app.stores.database.store import DatabaseStore, open_database_store

__all__ = ["DatabaseStore", "open_database_store"]

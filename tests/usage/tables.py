"""Tables that are missing for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections

__all__ = ["missing"]


@contextmanager
def missing(table: str) -> Iterator[None]:
    """A table of the default database is not there in the block."""
    _rename(table, f"{table}_elsewhere")
    try:
        yield
    finally:
        _rename(f"{table}_elsewhere", table)


def _rename(old: str, new: str) -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute(f"ALTER TABLE {old} RENAME TO {new}")

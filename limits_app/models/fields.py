"""Columns that hold names exactly as they were given, and references that are never emptied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.db import models

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.deletion import Collector

    CharField = models.CharField[str, str]
else:
    CharField = models.CharField  # it takes no parameters when the code runs

__all__ = ["ExactTextField", "cascade"]

_MYSQL_COLLATION = "utf8mb4_0900_bin"
_MARIADB_COLLATION = "utf8mb4_nopad_bin"
"""They tell upper from lower case and `a` from `a `, as the other databases do by themselves."""


class ExactTextField(CharField):
    """Short text in which case and spaces count, on every database and in forms."""

    def db_parameters(self, connection: BaseDatabaseWrapper) -> dict[str, str | None]:
        """Add the collation where the database's own would take different names for the same."""
        parameters = super().db_parameters(connection)
        if connection.vendor == "mysql":
            is_mariadb = getattr(connection, "mysql_is_mariadb", False)
            parameters["collation"] = _MARIADB_COLLATION if is_mariadb else _MYSQL_COLLATION
        return parameters

    def formfield(self, **kwargs: Any) -> forms.Field | None:
        """Give a form field that keeps spaces at the ends, so that saving a form never renames."""
        return super().formfield(**{"strip": False, **kwargs})


def cascade(
    collector: Collector,
    field: models.ForeignKey[Any, Any],
    objects: models.QuerySet[models.Model],
    using: str,
) -> None:
    """`CASCADE` for a reference that may be empty and must not become so.

    Where constraints cannot be deferred, Django's own empties it first, which a check of the row may refuse.
    """
    collector.collect(objects, source=field.remote_field.model, source_attr=field.name)

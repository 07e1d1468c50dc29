"""Constraints that not every database can have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models

if TYPE_CHECKING:
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor

__all__ = ["PrimaryKeyCheck"]


class PrimaryKeyCheck(models.CheckConstraint):
    """A check that reads a counted-up primary key, which MySQL refuses; there, only validation stands guard."""

    def constraint_sql(self, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None) -> str:
        """Give the part of CREATE TABLE."""
        return super().constraint_sql(model, schema_editor) if _is_possible(schema_editor) else ""

    def create_sql(self, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None) -> str:
        """Give the ALTER TABLE that adds it."""
        return super().create_sql(model, schema_editor) if _is_possible(schema_editor) else ""

    def remove_sql(self, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None) -> str:
        """Give the ALTER TABLE that drops it."""
        return super().remove_sql(model, schema_editor) if _is_possible(schema_editor) else ""


def _is_possible(schema_editor: BaseDatabaseSchemaEditor | None) -> bool:
    return schema_editor is not None and schema_editor.connection.vendor != "mysql"

"""Constraints that several models have, and those that only some databases support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from django.db import models
from django.db.backends.ddl_references import Statement, Table
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor


_NO_NAME: Final = _("Enter a name.")


def not_empty(model: str, field: str = "name", message: Any = _NO_NAME) -> models.CheckConstraint:
    """A text must not be empty."""
    return models.CheckConstraint(
        name=f"limits_app_{model}_has_{field}", condition=~models.Q((field, "")), violation_error_message=message
    )


def one_of(model: str, field: str, values: Sequence[str], message: Any) -> models.CheckConstraint:
    """A text must be one of some values."""
    condition = models.Q((f"{field}__in", list(values)))
    return models.CheckConstraint(
        name=f"limits_app_{model}_{field}", condition=condition, violation_error_message=message
    )


class PrimaryKeyCheck(models.CheckConstraint):
    """A check constraint on an AutoField, which MySQL does not support; there, only validation applies."""

    def constraint_sql(self, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None) -> str:
        """Return the SQL for CREATE TABLE."""
        return super().constraint_sql(model, schema_editor) if _is_possible(schema_editor) else ""

    def create_sql(self, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None) -> str:
        """Return the ALTER TABLE statement that adds it."""
        return super().create_sql(model, schema_editor) if _is_possible(schema_editor) else ""

    def remove_sql(self, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None) -> str:
        """Return the ALTER TABLE statement that drops it."""
        return super().remove_sql(model, schema_editor) if _is_possible(schema_editor) else ""


class Undated(models.Func):
    """A constant for a missing date; a literal, because it must not depend on settings."""

    template = "'1970-01-01 00:00:00'"
    arity = 0
    output_field = models.DateTimeField()

    def as_postgresql(self, compiler: Any, connection: BaseDatabaseWrapper, **context: Any) -> Any:
        """Return the literal with its type."""
        return self.as_sql(compiler, connection, template="'1970-01-01 00:00:00+00'::timestamptz", **context)

    def as_mysql(self, compiler: Any, connection: BaseDatabaseWrapper, **context: Any) -> Any:
        """Return the literal with its type."""
        return self.as_sql(compiler, connection, template="TIMESTAMP'1970-01-01 00:00:00'", **context)


class NoOverlap(models.BaseConstraint):
    """Rejects policies of one scope with overlapping dates on PostgreSQL; elsewhere only validation applies.

    Equal numbers are compared as ranges of one number, because this requires no extension; the words of `counted`
    differ in length.
    """

    _RULE = """EXCLUDE USING gist (
        int8range(COALESCE(resource_id, 0), COALESCE(resource_id, 0), '[]') WITH &&,
        int8range(COALESCE(entity_id, 0), COALESCE(entity_id, 0), '[]') WITH &&,
        int8range(COALESCE(plan_id, 0), COALESCE(plan_id, 0), '[]') WITH &&,
        int4range(LENGTH(counted), LENGTH(counted), '[]') WITH &&,
        tstzrange(valid_from, valid_until) WITH &&
    ) WHERE (valid_from IS NOT NULL)"""

    def constraint_sql(self, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None) -> str:
        """Return nothing for CREATE TABLE."""
        if _is_postgresql(schema_editor):
            schema_editor.deferred_sql.append(self.create_sql(model, schema_editor))
        return ""

    def create_sql(self, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None) -> Any:
        """Return the ALTER TABLE statement that adds it."""
        return self._altered("ADD CONSTRAINT %(name)s " + self._RULE, model, schema_editor)

    def remove_sql(self, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None) -> Any:
        """Return the ALTER TABLE statement that drops it."""
        return self._altered("DROP CONSTRAINT %(name)s", model, schema_editor)

    def validate(self, *args: object, **options: object) -> None:
        """Do nothing: the model validates it and names the other policy."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NoOverlap) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def _altered(
        self, change: str, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None
    ) -> Statement | None:
        if model is None or not _is_postgresql(schema_editor):
            return None
        quote = schema_editor.quote_name
        table = Table(model._meta.db_table, quote)
        return Statement(f"ALTER TABLE %(table)s {change}", table=table, name=quote(self.name))


def _is_postgresql(schema_editor: BaseDatabaseSchemaEditor | None) -> TypeGuard[BaseDatabaseSchemaEditor]:
    return schema_editor is not None and schema_editor.connection.vendor == "postgresql"


def _is_possible(schema_editor: BaseDatabaseSchemaEditor | None) -> bool:
    return schema_editor is not None and schema_editor.connection.vendor != "mysql"

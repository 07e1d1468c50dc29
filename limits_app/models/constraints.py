"""A unique constraint over expressions that MariaDB has as well, which has no indexes over expressions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core import checks
from django.db import models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models.expressions import Col
from django.db.models.sql import Query


class UniqueNumbers(models.UniqueConstraint):
    """A unique constraint over columns, and over expressions that are whole numbers or NULL.

    On a database without indexes over expressions, each expression is a generated column of the table.
    """

    def create_sql(self, model: Any, schema_editor: Any) -> Any:
        """Add the constraint, and the columns that it needs."""
        if _has_expressions(schema_editor.connection):
            return super().create_sql(model, schema_editor)
        quote = schema_editor.quote_name
        columns, added = [], []
        for name, generated in self._columns(model, schema_editor):
            columns.append(quote(name))
            if generated:
                added.append(f"ADD COLUMN {quote(name)} bigint GENERATED ALWAYS AS ({generated}) VIRTUAL")
        added.append(f"ADD UNIQUE INDEX {quote(self.name)} ({', '.join(columns)})")
        return f"ALTER TABLE {quote(model._meta.db_table)} {', '.join(added)}"

    def remove_sql(self, model: Any, schema_editor: Any) -> Any:
        """Remove the constraint and its columns."""
        if _has_expressions(schema_editor.connection):
            return super().remove_sql(model, schema_editor)
        quote = schema_editor.quote_name
        dropped = [f"DROP INDEX {quote(self.name)}"]
        dropped += [
            f"DROP COLUMN {quote(name)}" for name, generated in self._columns(model, schema_editor) if generated
        ]
        return f"ALTER TABLE {quote(model._meta.db_table)} {', '.join(dropped)}"

    def _check(self, model: Any, connection: Any) -> list[checks.CheckMessage]:
        """Leave out the warning that the constraint does not exist."""
        return [error for error in super()._check(model, connection) if error.id != "models.W044"]  # type: ignore[misc]

    def _columns(self, model: Any, schema_editor: BaseDatabaseSchemaEditor) -> Iterator[tuple[str, str]]:
        """The names of its columns, each with the expression that generates it; empty for a column of the model."""
        query = Query(model, alias_cols=False)
        compiler = query.get_compiler(connection=schema_editor.connection)
        for index, expression in enumerate(self.expressions):
            resolved: Any = expression.resolve_expression(query)  # type: ignore[union-attr]
            if isinstance(resolved, Col):
                yield str(resolved.target.column), ""
                continue
            sql, params = compiler.compile(resolved)
            yield f"{self.name}_{index}", sql % tuple(map(schema_editor.quote_value, params))


def _has_expressions(connection: Any) -> bool:
    return bool(connection.features.supports_expression_indexes)

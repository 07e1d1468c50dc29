"""Rows by a column, read by statements that are composed once, since Django composes a query longer than it runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Final

from django.db import connections, models

_NAME: Final = "name_of_{}"


def rows_by(
    model: type[models.Model], name: str, keys: Collection[Any], *, named: Sequence[str], using: str
) -> list[Any]:
    """The rows of which a field has one of some values, in the order of the model unless the field is unique.

    The rows in the foreign keys `named`, to models with a `named_by`, have their names alone.
    """
    connection = connections[using]
    field: Any = model._meta.get_field(name)
    values = [field.get_db_prep_value(key, connection) for key in keys]
    query = _statement(model, name, len(values), named=tuple(named), vendor=connection.vendor)
    rows = [*model._base_manager.using(using).raw(query, values)]
    for foreign_key in [_column(model, text) for text in named]:
        other, label = foreign_key.related_model, _NAME.format(foreign_key.name)
        for row in rows:
            if getattr(row, label) is not None:
                named_row = other(pk=getattr(row, foreign_key.attname), **{other.named_by: getattr(row, label)})
                setattr(row, foreign_key.name, named_row)
    return rows


@lru_cache(maxsize=1024)
def _statement(model: type[models.Model], name: str, number: int, *, named: tuple[str, ...], vendor: str) -> str:
    """The query; only names of tables and columns are inserted, and values are parameters."""
    quoted = ("`{}`" if vendor == "mysql" else '"{}"').format
    meta, field = model._meta, _column(model, name)

    def column(owner: str, of_owner: Any) -> str:
        return f"{quoted(owner)}.{quoted(of_owner.column)}"

    columns, tables = [column("own", own) for own in meta.concrete_fields], [f"{quoted(meta.db_table)} {quoted('own')}"]
    for foreign_key in [_column(model, text) for text in named]:
        other, alias = foreign_key.related_model, foreign_key.name
        label = quoted(_NAME.format(alias))
        columns.append(f"{column(alias, _column(other, other.named_by))} AS {label}")
        table = f"LEFT JOIN {quoted(other._meta.db_table)} {quoted(alias)}"
        tables.append(f"{table} ON {column(alias, other._meta.pk)} = {column('own', foreign_key)}")
    values = ", ".join(["%s"] * number)
    query = f"SELECT {', '.join(columns)} FROM {' '.join(tables)} WHERE {column('own', field)} IN ({values})"  # noqa: S608 - only names
    if field.unique:
        return query
    # The order of these models has names of their own columns alone.
    order = [str(text) for text in meta.ordering or ("pk",)]
    ends = [column("own", _column(model, text.removeprefix("-"))) + " DESC" * text.startswith("-") for text in order]
    return f"{query} ORDER BY {', '.join(ends)}"


def _column(model: type[models.Model], name: str) -> Any:
    return model._meta.pk if name == "pk" else model._meta.get_field(name.removesuffix("_id"))

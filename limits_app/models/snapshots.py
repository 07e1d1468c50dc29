"""Snapshots of configuration as JSON data: objects with nested objects, and related objects by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from copy import deepcopy
from datetime import datetime
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.core.exceptions import ObjectDoesNotExist
from django.db import models, router
from django.db.models import Prefetch

from limits_app.models.fields import decimal_text
from limits_app.models.rows import rows_by

if TYPE_CHECKING:
    from limits_app.models.base import Configuration

    Model = type[Configuration]

Snapshot = dict[str, Any]
"""The fields of an object by name, and lists of its nested objects by relation name."""

MOST_NAMES: Final = 500
"""Number of objects per query; older SQLite allows less than 1000 parameters."""


_PartsOf = Callable[[Any, str], Iterable[Any]]
"""Returns the nested objects of an object, by the name of the relation."""

_EMPTY: Final = (None, "", False)


class Taken(NamedTuple):
    """The label and the state of an object."""

    label: str
    state: Snapshot


def snapshot(item: Configuration) -> Snapshot:
    """Return a snapshot of an object in memory, with its nested objects from the database."""
    stored = snapshots(type(item), [item.pk], item._state.db).get(item.pk)
    return (stored.state if stored else {}) | _own(item)


def snapshots(model: Model, keys: Collection[Any], using: str | None) -> dict[Any, Taken]:
    """Return snapshots of the existing objects with these primary keys."""
    states: dict[Any, Taken] = {}
    for batch in batches(keys):
        whole_rows = _WholeRows(using or router.db_for_read(model))
        items = whole_rows.read(model, _key_of(model), batch)
        states |= {item.pk: Taken(str(item), _described(item, whole_rows.parts)) for item in items}
    return states


def taken(item: Configuration) -> Taken:
    """Return the label and the state of an object that was read with all that a snapshot has."""
    return Taken(str(item), _described(item, _prefetched))


def _prefetched(item: Configuration, relation: str) -> Iterable[Any]:
    return getattr(item, relation).all()  # type: ignore[no-any-return]


class _WholeRows:
    """Objects that were read by statements that are composed once, with all that a snapshot has."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._parts: dict[tuple[type[Any], Any, str], list[Any]] = defaultdict(list)

    def parts(self, item: Configuration, relation: str) -> Iterable[Any]:
        """The nested objects of an object that was read, by the name of the relation."""
        return self._parts[type(item), item.pk, relation]

    def read(self, model: Model, name: str, keys: Collection[Any]) -> list[Any]:
        """Read the objects of which a field has one of some values, those that they name, and their nested ones."""
        items = rows_by(model, name, keys, named=_named_in(model), using=self._using)
        for relation, owner, part in parts_of(model) if items else ():
            for row in self.read(part, owner, [item.pk for item in items]):
                self._parts[model, getattr(row, f"{owner}_id"), relation].append(row)
        return items


def _key_of(model: Model) -> str:
    return str(model._meta.pk.name)


def parts_of(model: Model) -> Iterator[tuple[str, str, Model]]:
    """Return the kinds of nested objects of a model: relation name, foreign key, and model."""
    for relation in model._meta.related_objects:
        part: Any = relation.related_model
        if relation.field.name in getattr(part, "part_of", ()):
            yield str(relation.get_accessor_name()), relation.field.name, part


def batches(keys: Collection[Any]) -> Iterator[list[Any]]:
    """Split keys into batches for one query each."""
    rest = iter(keys)
    while batch := list(islice(rest, MOST_NAMES)):
        yield batch


def whole(rows: models.QuerySet[Any]) -> models.QuerySet[Any]:
    """Objects with the data of a snapshot: one query, and one for each kind of nested object."""
    model: Any = rows.model
    related = _named_in(model)
    parts = [Prefetch(name, queryset=whole(part._base_manager.all())) for name, _, part in parts_of(model)]
    return (rows.select_related(*related) if related else rows).prefetch_related(*parts)


def _named_in(model: Model) -> list[str]:
    """The fields that name configuration; others, such as groups of users, may be in another database."""
    return [field.name for field in fields_of(model) if hasattr(field.related_model, "part_of")]


def fields_of(model: Model) -> list[models.Field[Any, Any]]:
    """Return the fields of a model without its primary key, automatic times, and the object that it is a part of."""
    automatic = ("auto_now", "auto_now_add")
    return [
        field
        for field in model._meta.concrete_fields
        if not (
            field.primary_key
            or field.name in model.part_of
            or any(getattr(field, option, False) for option in automatic)
        )
    ]


def _own(item: Configuration) -> Snapshot:
    implied = {name: _plain(getattr(item, name)) for name in item.implied}
    return implied | {field.name: _value(item, field.name) for field in fields_of(type(item))}


def _value(item: Configuration, name: str) -> object:
    try:
        return _plain(getattr(item, name))
    except ObjectDoesNotExist:  # a group in another database, which was deleted
        return None


def _described(item: Any, parts: _PartsOf) -> Snapshot:
    nested = {name: parts(item, name) for name, *_ in parts_of(type(item))}
    return _own(item) | {name: [_shortly(part, parts) for part in rows] for name, rows in nested.items()}


def _shortly(part: Configuration, parts: _PartsOf) -> Snapshot:
    """A nested object without fields that have an empty default value."""
    own = {field.name: (_value(part, field.name), _plain(field.get_default())) for field in fields_of(type(part))}
    unsaid = {name for name, (value, default) in own.items() if value in _EMPTY and value == default}
    return {name: value for name, value in _described(part, parts).items() if name not in unsaid}


def _plain(value: object) -> object:
    match value:
        case models.Model():
            return str(value)
        case models.Choices():
            return value.value
        case Decimal():
            return decimal_text(value)
        case datetime():
            return value.isoformat()
        case _:
            return deepcopy(value)

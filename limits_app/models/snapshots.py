"""Objects of the configuration as JSON can say them: each with its parts, and related ones by their names."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from copy import deepcopy
from datetime import datetime
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.db import models
from django.db.models import Prefetch

if TYPE_CHECKING:
    from limits_app.models.base import Configuration

    Model = type[Configuration]

__all__ = ["Snapshot", "Taken", "batches", "parts_of", "snapshot", "snapshots"]

Snapshot = dict[str, Any]
"""An object's fields by name, and its parts by the name that they have there."""

_BATCH: Final = 500
"""How many objects are asked for at once; SQLite has known less than 1000 parameters."""


_EMPTY: Final = (None, "", False)


class Taken(NamedTuple):
    """An object as it was: what people call it, and what it said."""

    label: str
    state: Snapshot


def snapshot(item: Configuration) -> Snapshot:
    """Give an object as it is now in memory, with its parts as the database has them."""
    stored = snapshots(type(item), [item.pk], item._state.db).get(item.pk)
    return (stored.state if stored else {}) | _own(item)


def snapshots(model: Model, keys: Collection[Any], using: str | None) -> dict[Any, Taken]:
    """Give those objects that are there with these primary keys, as the database has them."""
    found = {}
    for batch in batches(keys):
        for item in _whole(model).using(using).filter(pk__in=batch):
            found[item.pk] = Taken(str(item), _described(item))
    return found


def parts_of(model: Model) -> Iterator[tuple[str, str, Model]]:
    """Give what an object consists of: what parts are called there, their field that says so, and their model."""
    for relation in model._meta.related_objects:
        part: Any = relation.related_model
        if relation.field.name in getattr(part, "part_of", ()):
            yield str(relation.get_accessor_name()), relation.field.name, part


def batches(keys: Collection[Any]) -> Iterator[list[Any]]:
    """Cut keys into as many as one query takes."""
    rest = iter(keys)
    while batch := list(islice(rest, _BATCH)):
        yield batch


def _whole(model: Model) -> models.QuerySet[Any]:
    """All objects with everything that a snapshot says: one query for them, and one for each kind of part."""
    related = [field.name for field in _told(model) if field.is_relation]
    parts = [Prefetch(name, queryset=_whole(part)) for name, _, part in parts_of(model)]
    found: models.QuerySet[Any] = model._base_manager.all()
    return (found.select_related(*related) if related else found).prefetch_related(*parts)


def _told(model: Model) -> list[models.Field[Any, Any]]:
    return [field for field in model._meta.concrete_fields if _is_told(model, field)]


def _is_told(model: Model, field: Any) -> bool:
    """Whether a field says something that people decided."""
    kept_by_itself = getattr(field, "auto_now", False) or getattr(field, "auto_now_add", False)
    return not (field.primary_key or kept_by_itself or field.name in model.part_of)


def _own(item: Configuration) -> Snapshot:
    implied = {name: _plain(getattr(item, name)) for name in item.implied}
    return implied | {field.name: _plain(getattr(item, field.name)) for field in _told(type(item))}


def _described(item: Any) -> Snapshot:
    parts = {name: getattr(item, name).all() for name, *_ in parts_of(type(item))}
    return _own(item) | {name: [_shortly(one) for one in there] for name, there in parts.items()}


def _shortly(part: Configuration) -> Snapshot:
    """A part without what is empty and would be so without a word."""
    unsaid = {
        field.name for field in _told(type(part)) if getattr(part, field.name) in _EMPTY and _is_default(part, field)
    }
    return {name: value for name, value in _described(part).items() if name not in unsaid}


def _is_default(item: Configuration, field: Any) -> bool:
    return bool(getattr(item, field.name) == field.get_default())


def _plain(value: object) -> object:
    match value:
        case models.Model():
            return str(value)
        case models.Choices():
            return value.value
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case datetime():
            return value.isoformat()
        case _:
            return deepcopy(value)

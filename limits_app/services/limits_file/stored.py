"""What the database says, as a limits file would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from django.db import models
from django.utils import timezone

from limits_app.core.limits import Limit as Definition
from limits_app.core.notation import limit_text
from limits_app.models import Limit, PoolMember
from limits_app.models.limit_rules import COLUMNS, definition_of
from limits_app.services.limits_file.shape import LIMITS, MEMBERS, SECTIONS, Entry, Key, Section, State

__all__ = ["Stored", "stored_content", "stored_keys"]


@dataclass(frozen=True, slots=True)
class Stored:
    """An object of the database and its primary key."""

    pk: Any
    entry: Entry


def stored_content(using: str) -> dict[tuple[str, Key], Stored]:
    """Give all configuration, by section and key, in the order in which a file would have it."""
    return {(section.name, one.entry.key): one for section in SECTIONS.values() for one in _section(section, using)}


def stored_keys(section: Section, using: str) -> dict[Key, Any]:
    """Give the primary keys of all objects of a section."""
    bare = replace(section, fields=(), has_limits=False, parts=None)
    return {one.entry.key: one.pk for one in _section(bare, using)}


def _section(section: Section, using: str) -> Iterator[Stored]:
    limits = _limits("policy", using) if section.has_limits else {}
    members = _members(using) if section.parts is not None else {}
    names: Counter[Any] = Counter()
    for pk, key, state in _rows(section, section.model._base_manager.using(using).order_by(*_order(section))):
        if section.has_limits:
            state[LIMITS] = limits.get(pk, ())
        if section.parts is not None:
            state[section.parts.name] = members.get(pk, {})
        names[key] += 1
        yield Stored(pk, Entry(section, (*key, names[key] - 1) if section.counted else key, state))


def _order(section: Section) -> list[str]:
    """By identity, but for endpoints, of which the first that fits counts."""
    if section.counted:
        return ["order", "pk"]
    return [*(_column(section, name) for name in section.identity), "pk"]


def _rows(section: Section, rows: Any) -> Iterator[tuple[Any, Key, dict[str, Any]]]:
    names = (*section.identity, *section.fields)
    read = [_read(section.field(name)) for name in names]
    width = len(section.identity)
    for pk, *values in rows.values_list("pk", *(_column(section, name) for name in names)):
        plain = [one(value) for one, value in zip(read, values, strict=True)]
        yield pk, tuple(plain[:width]), dict(zip(names[width:], plain[width:], strict=True))


def _members(using: str) -> dict[Any, dict[str, State]]:
    limits = _limits("member", using)
    rows = PoolMember._base_manager.using(using).order_by("order", "pk")
    pools = dict(rows.values_list("pk", "pool_id"))
    found: dict[Any, dict[str, State]] = {}
    for pk, (name,), state in _rows(MEMBERS, rows):
        found.setdefault(pools[pk], {})[name] = state | {LIMITS: limits.get(pk, ())}
    return found


def _limits(owner: str, using: str) -> dict[Any, tuple[str, ...]]:
    """The limits of each owner as texts, in the order of their keys."""
    found: dict[Any, tuple[str, ...]] = {}
    rows = Limit._base_manager.using(using).exclude(**{owner: None}).order_by("key")
    for pk, shared, *columns in rows.values_list(f"{owner}_id", "shared", *COLUMNS):
        found[pk] = (*found.get(pk, ()), _text(shared, definition_of(*columns)))
    return found


@lru_cache(maxsize=65_536)
def _text(shared: bool, limit: Definition) -> str:
    return limit_text(limit, shared=shared)


def _column(section: Section, name: str) -> str:
    field = section.field(name)
    return f"{name}__{field.related_model.named_by}" if field.is_relation else name


def _read(field: Any) -> Callable[[Any], Any]:
    if isinstance(field, models.DateTimeField):
        return _moment
    return _related if field.is_relation else _same


def _moment(value: datetime | None) -> str:
    if value is None:
        return ""
    return (timezone.make_aware(value) if timezone.is_naive(value) else value).astimezone(UTC).isoformat()


def _related(name: str | None) -> str:
    return name or ""


def _same(value: Any) -> Any:
    return value

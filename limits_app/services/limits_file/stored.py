"""The objects of the database, as a limits file would have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from limits_app.models import Limit, PoolMember
from limits_app.models.limit_rules import COLUMNS, definition_of
from limits_app.services.limits_file.content import (
    LIMITS,
    MEMBERS,
    SECTIONS,
    Entry,
    Key,
    Name,
    Section,
    State,
    cached_text,
    plain_value,
)


@dataclass(frozen=True, slots=True)
class Stored:
    """An object of the database and its primary key."""

    pk: Any
    entry: Entry


def stored_content(using: str) -> dict[Name, Stored]:
    """Give all configuration, by section and key, in the order in which a file would have it."""
    return {one.entry.name: one for section in SECTIONS.values() for one in _section(section, using)}


def stored_keys(section: Section, using: str) -> dict[Key, Any]:
    """Give the primary keys of all objects of a section."""
    rows = _rows(section, section.identity, _all(section, using))
    return {key: pk for pk, key, _ in _counted(section, rows)}


def _section(section: Section, using: str) -> Iterator[Stored]:
    limits = _limits("policy", using) if section.has_limits else {}
    members = _members(using) if section.parts is not None else {}
    rows = _rows(section, (*section.identity, *section.fields), _all(section, using))
    for pk, key, state in _counted(section, rows):
        if section.has_limits:
            state[LIMITS] = limits.get(pk, ())
        if section.parts is not None:
            state[section.parts.name] = members.get(pk, {})
        yield Stored(pk, Entry(section, key, state))


_Rows = Iterator[tuple[Any, Key, dict[str, Any]]]


def _all(section: Section, using: str) -> Any:
    """All rows, by identity; endpoints in the order in which they are tried."""
    order = ["order"] if section.counted else [_column(section, name) for name in section.identity]
    return section.model._base_manager.using(using).order_by(*order, "pk")


def _rows(section: Section, names: tuple[str, ...], rows: Any) -> _Rows:
    fields = [section.field(name) for name in names]
    width = len(section.identity)
    for pk, *values in rows.values_list("pk", *(_column(section, name) for name in names)):
        plain = [plain_value(field, value) for field, value in zip(fields, values, strict=True)]
        yield pk, tuple(plain[:width]), dict(zip(names[width:], plain[width:], strict=True))


def _counted(section: Section, rows: _Rows) -> _Rows:
    """The rows with their whole keys."""
    seen: Counter[Key] = Counter()
    for pk, key, state in rows:
        seen[key] += 1
        yield pk, (*key, seen[key] - 1) if section.counted else key, state


def _members(using: str) -> dict[Any, dict[str, State]]:
    limits = _limits("member", using)
    rows = PoolMember._base_manager.using(using).order_by("order", "pk")
    pools = dict(rows.values_list("pk", "pool_id"))
    found: dict[Any, dict[str, State]] = {}
    for pk, (name,), state in _rows(MEMBERS, (*MEMBERS.identity, *MEMBERS.fields), rows):
        found.setdefault(pools[pk], {})[name] = state | {LIMITS: limits.get(pk, ())}
    return found


def _limits(owner: str, using: str) -> dict[Any, tuple[str, ...]]:
    """The limits of each owner as texts, in the order of their keys."""
    found: dict[Any, tuple[str, ...]] = {}
    rows = Limit._base_manager.using(using).exclude(**{owner: None}).order_by("key")
    for pk, shared, *columns in rows.values_list(f"{owner}_id", "shared", *COLUMNS):
        found[pk] = (*found.get(pk, ()), cached_text(shared, definition_of(*columns)))
    return found


def _column(section: Section, name: str) -> str:
    field = section.field(name)
    return f"{name}__{field.related_model.named_by}" if field.is_relation else name

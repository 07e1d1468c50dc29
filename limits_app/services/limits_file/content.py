"""The objects of limits files: which there are, what each has, and what the database has of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from django.db import models

from limits_app.core.errors import InvalidLimit
from limits_app.core.notation import Noted, parse_limit
from limits_app.models import Configuration, Counted, Endpoint, Entity, Limit, Plan, Policy, Pool, PoolMember, Resource
from limits_app.models.fields import aware
from limits_app.models.limit_rules import row_text
from limits_app.services.definitions import FIELDS, PARTS, Definition

Key = tuple[Any, ...]
"""The identity of an object in a section; endpoints with the same name and order are numbered."""

Name = tuple[str, Key]
"""A section, and a key in it."""

State = Mapping[str, Any]
"""An object as plain data: every field with its value, related objects by their names, dates and times as ISO text in
UTC, limits as a tuple of texts, and the members of a pool by their names."""

LIMITS: Final = "limits"


@dataclass(frozen=True, slots=True)
class Section:
    """One kind of object; `identity` are the fields that identify an object.

    A file has `named` objects in a mapping by their names, and others in a list. Of a `counted` section the identities
    need not differ: the second one is distinguished from the first.
    """

    name: str
    model: type[Configuration]
    identity: tuple[str, ...]
    named: bool = True
    counted: bool = False

    @property
    def kind(self) -> str:
        """What one of its objects is called."""
        return self.model._meta.model_name or ""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields besides the identity."""
        return tuple(name for name in FIELDS[self.model] if name not in self.identity)

    @property
    def has_limits(self) -> bool:
        """Whether its objects have limits of their own."""
        return PARTS.get(self.model) == LIMITS

    @property
    def parts(self) -> Section | None:
        """The section of its members."""
        return MEMBERS if self.model is Pool else None

    def field(self, name: str) -> Any:
        """A field of the model."""
        return self.model._meta.get_field(name)

    def default(self, name: str) -> Any:
        """The value of a field that was left out."""
        return plain_value(self.field(name), self.field(name).get_default())

    def defaults(self) -> dict[str, Any]:
        """The state of an object whose fields were all left out."""
        state: dict[str, Any] = {name: self.default(name) for name in self.fields}
        if self.has_limits:
            state[LIMITS] = ()
        return state | ({self.parts.name: {}} if self.parts else {})


_POLICY: Final = ("resource", "entity", "valid_from", "weekly_hours", "plan", "counted")
MEMBERS: Final = Section("members", PoolMember, ("name",))
SECTIONS: Final[Mapping[str, Section]] = MappingProxyType(
    {
        section.name: section
        for section in (
            Section("pools", Pool, ("name",)),
            Section("resources", Resource, ("name",)),
            Section("plans", Plan, ("name",)),
            Section("entities", Entity, ("identifier",)),
            Section("policies", Policy, _POLICY, named=False),
            Section("endpoints", Endpoint, ("name", "order"), named=False, counted=True),
        )
    }
)
"""In an order in which none refers to a later one."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One object: of a file with its line and its definition, of the database with its primary key."""

    section: Section
    key: Key
    state: State
    line: int = 0
    definition: Definition | None = None
    pk: Any = None

    @property
    def name(self) -> Name:
        """Its section and key."""
        return self.section.name, self.key

    @property
    def label(self) -> str:
        """What people call it."""
        if self.section.named:
            return f"{self.section.kind} {self.key[0]}"
        if self.section.counted:
            name, order, place = self.key
            among = "" if order == self.section.default("order") else f" of order {order}"
            return f"{self.section.kind} {name}{among}" + (f" ({place + 1})" if place else "")
        resource, entity, valid_from, hours, plan, counted = self.key
        subject = f"entity {entity}" if entity else f"plan {plan}" if plan else ""
        where = f"on {resource}" if subject and resource else f"resource {resource}" if resource else ""
        total = "in total" if counted == Counted.TOTAL else ""
        when = f"from {valid_from}" if valid_from else hours
        whom = subject or ("" if resource else "system")
        return " ".join(filter(None, ["policy", whom, where, total, when]))


_REFERENCES: Final = {
    "pool": "pools",
    "resource": "resources",
    "plan": "plans",
    "entity": "entities",
    "parent": "entities",
}


def references(entry: Entry) -> Iterator[Name]:
    """The objects that an object names."""
    said = dict(zip(entry.section.identity, entry.key, strict=False)) | dict(entry.state)
    for name, section in _REFERENCES.items():
        if said.get(name):
            yield section, (said[name],)


@dataclass(frozen=True, slots=True)
class Content:
    """A limits file: its own name, and its objects by section and key."""

    name: str
    entries: dict[Name, Entry]
    rows: Mapping[Name, Any]
    """The rows of all objects that the file has or names, which are not saved yet, by section and key."""

    def of(self, section: str) -> Iterator[Entry]:
        """The objects of one section, in order."""
        return (entry for (name, _), entry in self.entries.items() if name == section)

    def implied(self, name: Name, line: int) -> Entry:
        """An object that an object in a line names, and that is nowhere in the file."""
        section = SECTIONS[name[0]]
        return Entry(section, name[1], section.defaults(), line, Definition(self.rows[name]))


def noted_limits(state: State) -> list[Noted]:
    """Return the limits of an object, without those that were written past validation."""
    return [limit for text in state[LIMITS] if (limit := _noted(text)) is not None]


@lru_cache(maxsize=65_536)
def _noted(text: str) -> Noted | None:
    """Read the text of a limit, of which most objects have the same; None for an invalid one."""
    try:
        return parse_limit(text)
    except InvalidLimit:
        return None


@lru_cache(maxsize=65_536)
def _stored_text(key: str, text: str, shared: bool) -> str:
    """A row of a limit as text, of which most objects have the same."""
    return row_text(key, text, shared=shared)


def plain_value(field: Any, value: Any) -> Any:
    """The value of a field as plain data, of a row or of a query."""
    if isinstance(field, models.DateTimeField):
        return "" if value is None else aware(value).astimezone(UTC).isoformat()
    if field.is_relation:
        return "" if value is None else str(value)
    return value.value if isinstance(value, models.Choices) else value


def stored_content(using: str) -> dict[Name, Entry]:
    """Give all configuration, by section and key, in the order in which a file would have it."""
    return {entry.name: entry for section in SECTIONS.values() for entry in _section(section, using)}


def stored_keys(section: Section, using: str) -> dict[Key, Any]:
    """Give the primary keys of all objects of a section."""
    rows = _rows(section, section.identity, _all(section, using))
    return {key: pk for pk, key, _ in _counted(section, rows)}


def stored_entries(section: Section, using: str) -> Iterator[Entry]:
    """Give the objects of a section without their parts: policies without limits, and pools without members."""
    rows, defaults = _rows(section, (*section.identity, *section.fields), _all(section, using)), section.defaults()
    for pk, key, state in _counted(section, rows):
        yield Entry(section, key, defaults | state, pk=pk)


def _section(section: Section, using: str) -> Iterator[Entry]:
    limits = _limits("policy", using) if section.has_limits else {}
    members = _members(using) if section.parts is not None else {}
    for entry in stored_entries(section, using):
        if entry.pk in limits:
            yield replace(entry, state={**entry.state, LIMITS: limits[entry.pk]})
        elif entry.pk in members:
            yield replace(entry, state={**entry.state, MEMBERS.name: members[entry.pk]})
        else:
            yield entry


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
    for pk, *columns in rows.values_list(f"{owner}_id", "key", "text", "shared"):
        found[pk] = (*found.get(pk, ()), _stored_text(*columns))
    return found


def _column(section: Section, name: str) -> str:
    field = section.field(name)
    return f"{name}__{field.related_model.named_by}" if field.is_relation else name

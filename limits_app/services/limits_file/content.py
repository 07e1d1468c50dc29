"""The objects of limits files: which there are, what each has, and what the database has of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from decimal import Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from django.db import models

from limits_app.engine import Noted, parse_limit
from limits_app.engine.errors import InvalidLimit
from limits_app.models import (
    REGISTRY,
    AlertRule,
    Counted,
    Limit,
    PlanGroup,
    Policy,
    Pool,
    PoolMember,
    Price,
    Registered,
    registered,
)
from limits_app.models.base import Definable, name_field
from limits_app.models.fields import aware, decimal_text
from limits_app.models.limit_rules import row_text
from limits_app.models.plan import group_names
from limits_app.models.snapshots import batches
from limits_app.services.definitions import Definition

FileKey = tuple[Any, ...]
"""The identity of an object in a section; endpoints with the same name and order are numbered."""

Name = tuple[str, FileKey]
"""A section, and a key in it."""

FileState = Mapping[str, Any]
"""An object as plain data: every field with its value, related objects by their names, dates and times as ISO text in
UTC, limits as a tuple of texts, and the members of a pool by their names."""

LIMITS: Final = "limits"
GROUPS: Final = "groups"
"""The groups of users that objects name; they are no objects of files."""
_PAGE: Final = 2_000
"""How many objects are read together."""


@dataclass(frozen=True, slots=True)
class Section:
    """One kind of object, as the registry has it.

    A file has `named` objects in a mapping by their names, and others in a list. Of a `counted` section the identities
    need not differ: the second one is distinguished from the first.
    """

    name: str
    registered: Registered

    @property
    def model(self) -> type[Definable]:
        """The model of its objects."""
        return self.registered.model

    @property
    def identity(self) -> tuple[str, ...]:
        """The fields that identify an object."""
        return self.registered.identity

    @property
    def named(self) -> bool:
        """Whether one name identifies an object."""
        return len(self.identity) == 1

    @property
    def counted(self) -> bool:
        """Whether several objects can have the same identity."""
        return self.registered.numbered

    @property
    def kind(self) -> str:
        """The name of the model, under which manifests have its objects."""
        return self.model._meta.model_name or ""

    @property
    def label(self) -> str:
        """What one of its objects is called."""
        return _LABELS.get(self.model, self.kind)

    @property
    def written(self) -> tuple[str, ...]:
        """The fields that an object has in a file, besides the name of a named one."""
        return self.fields if self.named else (*self.registered.fields, *self.registered.only_new)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields besides the identity."""
        names = (*self.registered.fields, *self.registered.only_new)
        return tuple(name for name in names if name not in self.identity)

    @property
    def has_limits(self) -> bool:
        """Whether its objects have their own limits."""
        return self.registered.parts == LIMITS

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


_LABELS: Final[Mapping[type[models.Model], str]] = {PlanGroup: "group", AlertRule: "alert rule"}
MEMBERS: Final = Section("members", registered(PoolMember))
SECTIONS: Final[Mapping[str, Section]] = MappingProxyType(
    {entry.section: Section(entry.section, entry) for entry in REGISTRY.values() if entry.section}
)
"""In an order in which none refers to a later one."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One object: of a file with its line and its definition, of the database with its primary key."""

    section: Section
    key: FileKey
    state: FileState
    line: int = 0
    definition: Definition | None = None
    pk: Any = None

    @property
    def name(self) -> Name:
        """Its section and key."""
        return self.section.name, self.key

    @property
    def values(self) -> FileState:
        """Every field with its value, also those that identify it."""
        return dict(zip(self.section.identity, self.key, strict=False)) | dict(self.state)

    @property
    def label(self) -> str:
        """What people call it."""
        if self.section.named:
            return f"{self.section.label} {self.key[0]}"
        if self.section.counted:
            name, order, number = self.key
            among = "" if order == self.section.default("order") else f" of order {order}"
            return f"{self.section.label} {name}{among}" + (f" ({number + 1})" if number else "")
        if self.section.model is Price:
            resource, member, unit, currency, valid_from = self.key
            return f"price of {unit} of {', '.join(filter(None, [resource, member]))} in {currency} from {valid_from}"
        resource, entity, valid_from, hours, plan, counted = self.key
        subject = f"entity {entity}" if entity else f"plan {plan}" if plan else ""
        where = f"on {resource}" if subject and resource else f"resource {resource}" if resource else ""
        total = "in total" if counted == Counted.TOTAL else ""
        when = f"from {valid_from}" if valid_from else hours
        whom = subject or ("" if resource else "system")
        return " ".join(filter(None, ["policy", whom, where, total, when]))


def references(entry: FileEntry) -> Iterator[Name]:
    """The objects that an object names; the groups of users that it names are in no section."""
    values = entry.values
    for name in entry.section.registered.references:
        model = entry.section.field(name).related_model
        if values.get(name) and model in REGISTRY:
            yield registered(model).section, (values[name],)


@dataclass(frozen=True, slots=True)
class Content:
    """A limits file: its own name, and its objects by section and key."""

    name: str
    entries: dict[Name, FileEntry]
    rows: Mapping[Name, Any]
    """The rows of all objects that the file has or names, which are not saved yet, by section and key."""

    def of(self, section: str) -> Iterator[FileEntry]:
        """The objects of one section, in order."""
        return (entry for (name, _), entry in self.entries.items() if name == section)

    def implied(self, name: Name, line: int) -> FileEntry:
        """An object that an object in a line names, and that is nowhere in the file."""
        section = SECTIONS[name[0]]
        return FileEntry(section, name[1], section.defaults(), line, Definition(self.rows[name]))


def noted_limits(state: FileState) -> list[Noted]:
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
    if isinstance(field, models.JSONField):
        return _in_order(value)
    if isinstance(value, Decimal):
        return decimal_text(value)
    return value.value if isinstance(value, models.Choices) else value


def _in_order(value: Any) -> Any:
    """A JSON value with the keys of objects in order, which not every database keeps."""
    match value:
        case dict():
            return {key: _in_order(value[key]) for key in sorted(value)}
        case list():
            return [_in_order(item) for item in value]
        case _:
            return value


def stored_pages(section: Section, using: str) -> Iterator[FileEntry]:
    """Give all objects of a section: of a counted one in the order of rules, otherwise by primary key and in pages."""
    if section.counted:
        yield from _whole(section, stored_entries(section, using), using)
        return
    rows, last = _all(section, using).order_by("pk"), None
    while keys := [*(rows if last is None else rows.filter(pk__gt=last)).values_list("pk", flat=True)[:_PAGE]]:
        last = keys[-1]
        yield from stored_where(section, models.Q(pk__gte=keys[0], pk__lte=last), using)


def stored_entries(section: Section, using: str, where: models.Q | None = None) -> Iterator[FileEntry]:
    """Give the objects of a section without their parts: policies without limits, and pools without members."""
    queryset = _all(section, using) if where is None else _all(section, using).filter(where)
    rows, defaults = _rows(section, (*section.identity, *section.fields), queryset), section.defaults()
    for pk, key, state in _counted(section, rows):
        yield FileEntry(section, key, defaults | state, pk=pk)


def stored_where(section: Section, where: models.Q, using: str) -> list[FileEntry]:
    """Give some objects of a section; of a counted one, also those of the same name, on which their numbers depend."""
    parts = [where]
    if section.counted:
        names = {*_all(section, using).filter(where).values_list(section.identity[0], flat=True)}
        parts = [models.Q(**{f"{section.identity[0]}__in": batch}) for batch in batches(names)]
    entries = [entry for part in parts for entry in stored_entries(section, using, part)]
    return [*_whole(section, entries, using, [entry.pk for entry in entries])]


def where_named(section: Section, keys: Iterable[FileKey]) -> Iterator[models.Q]:
    """Give filters that together find the objects with these keys, and of policies those for the same subjects."""
    if section.model is not Policy:
        field = section.field(section.identity[0])
        names: set[Any] = {key[0] for key in keys}
        if _is_elsewhere(field):
            names = {pk for pk, name in group_names().items() if name in names}
        yield from (models.Q(**{f"{_column(field)}__in": batch}) for batch in batches(names))
        return
    entities, plans, resources = set(), set(), set()
    for resource, entity, _valid_from, _hours, plan, _counted_as in keys:
        if entity:
            entities.add(entity)
        elif plan:
            plans.add(plan)
        else:
            resources.add(resource)
    yield from (models.Q(entity__identifier__in=batch) for batch in batches(entities))
    yield from (models.Q(plan__name__in=batch) for batch in batches(plans))
    if "" in resources:
        yield models.Q(resource=None, entity=None, plan=None)
    for batch in batches(resources - {""}):
        yield models.Q(resource__name__in=batch, entity=None, plan=None)


def _whole(
    section: Section, entries: Iterable[FileEntry], using: str, keys: Collection[Any] | None = None
) -> Iterator[FileEntry]:
    """Add the parts of objects, which are all of a section, or have these primary keys."""
    limits = _limits("policy", using, keys) if section.has_limits else {}
    members = _members(using, keys) if section.parts is not None else {}
    for entry in entries:
        if entry.pk in limits:
            yield replace(entry, state={**entry.state, LIMITS: limits[entry.pk]})
        elif entry.pk in members:
            yield replace(entry, state={**entry.state, MEMBERS.name: members[entry.pk]})
        else:
            yield entry


_Rows = Iterator[tuple[Any, FileKey, dict[str, Any]]]


def _all(section: Section, using: str) -> Any:
    """All rows; of a counted section in the order in which they are tried."""
    return section.model._base_manager.using(using).order_by(*(["order", "pk"] if section.counted else []))


def _rows(section: Section, names: tuple[str, ...], rows: Any) -> _Rows:
    """The rows with their keys and states, without those of groups of users that do not exist."""
    fields = [section.field(name) for name in names]
    width = len(section.identity)
    elsewhere = [index for index, field in enumerate(fields) if _is_elsewhere(field)]
    records = rows.values_list("pk", *map(_column, fields))
    groups = group_names() if elsewhere and records else {}
    for pk, *values in records:
        for index in elsewhere:
            values[index] = groups.get(values[index])
        if any(values[index] is None for index in elsewhere):
            continue
        plain = [plain_value(field, value) for field, value in zip(fields, values, strict=True)]
        yield pk, tuple(plain[:width]), dict(zip(names[width:], plain[width:], strict=True))


def _counted(section: Section, rows: _Rows) -> _Rows:
    """The rows with their whole keys."""
    seen: Counter[FileKey] = Counter()
    for pk, key, state in rows:
        seen[key] += 1
        yield pk, (*key, seen[key] - 1) if section.counted else key, state


def _members(using: str, keys: Collection[Any] | None) -> dict[Any, dict[str, FileState]]:
    rows = PoolMember._base_manager.using(using).order_by("order", "pk")
    if keys is not None:
        rows = rows.filter(pool__in=keys)
    pools = dict(rows.values_list("pk", "pool_id"))
    limits = _limits("member", using, None if keys is None else pools.keys())
    states: dict[Any, dict[str, FileState]] = {}
    for pk, (name,), state in _rows(MEMBERS, (*MEMBERS.identity, *MEMBERS.fields), rows):
        states.setdefault(pools[pk], {})[name] = state | {LIMITS: limits.get(pk, ())}
    return states


def _limits(owner: str, using: str, keys: Collection[Any] | None) -> dict[Any, tuple[str, ...]]:
    """The limits of each owner as texts, in the order of their keys; of all owners, or of those with these keys."""
    names: dict[Any, tuple[str, ...]] = {}
    rows = Limit._base_manager.using(using).exclude(**{owner: None}).order_by("key")
    for part in [rows] if keys is None else [rows.filter(**{f"{owner}__in": batch}) for batch in batches(keys)]:
        for pk, *columns in part.values_list(f"{owner}_id", "key", "text", "shared"):
            names[pk] = (*names.get(pk, ()), _stored_text(*columns))
    return names


def _column(field: Any) -> str:
    if not field.is_relation:
        return str(field.name)
    return field.attname if _is_elsewhere(field) else f"{field.name}__{name_field(field.related_model)}"


def _is_elsewhere(field: Any) -> bool:
    """Whether a field refers to groups of users, which may be in another database."""
    return bool(field.is_relation) and field.related_model not in REGISTRY

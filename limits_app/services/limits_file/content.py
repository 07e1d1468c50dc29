"""The objects of limits files: which there are, and what each has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import models

from limits_app.core.limits import Limit as LimitDefinition
from limits_app.core.notation import Noted, limit_text, parse_limit
from limits_app.models import Configuration, Counted, Endpoint, Entity, Limit, Plan, Policy, Pool, PoolMember, Resource
from limits_app.models.fields import aware
from limits_app.services import definitions
from limits_app.services.definitions import FIELDS, PARTS, Definition, InvalidDefinition, Path
from limits_app.services.limits_file.document import Document, InvalidFile, Problem, read_document

Key = tuple[Any, ...]
"""The identity of an object in a section; endpoints with the same name and order are numbered."""

Name = tuple[str, Key]
"""A section, and a key in it."""

State = Mapping[str, Any]
"""An object as plain data: every field with its value, related objects by their names, dates and times as ISO text in
UTC, limits as a tuple of texts, and the members of a pool by their names."""

LIMITS: Final = "limits"
_END_ALONE: Final = "Write “valid_from” too, so that applying the file again changes nothing."


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
    """One object; of a file with its line and its definition, and otherwise 0 and None."""

    section: Section
    key: Key
    state: State
    line: int = 0
    definition: Definition | None = None

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


def read_content(text: str, *, name: str = "limits.yaml") -> Content:
    """Read the text of a limits file; InvalidFile (a ValueError) has every line that is wrong, and what to write.

    Needs the extra `yaml`; ImportError without it.
    """
    from limits_app.services.limits_file.form import check_form

    document = read_document(text, name)
    reader = _Reader(document)
    for path, message in check_form(document.data):
        reader.wrong(path, message)
    if isinstance(document.data, dict):
        for section in SECTIONS.values():
            reader.read(section, document.data.get(section.name))
    if reader.problems:
        raise InvalidFile(name, reader.problems)
    return Content(document.data.get("name") or "limits", reader.entries, reader.rows)


def schema() -> dict[str, Any]:
    """Give the JSON schema of limits files; ImportError without the extra `yaml`."""
    from limits_app.services.limits_file.form import LimitsFile

    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **LimitsFile.model_json_schema()}


class _Reader:
    """Reads well-formed objects, and collects their errors."""

    def __init__(self, document: Document) -> None:
        self.problems: list[Problem] = []
        self.entries: dict[Name, Entry] = {}
        self.rows: dict[Name, Any] = {}
        self._document = document
        self._wrong: set[Path] = set()

    def wrong(self, path: Path, message: str) -> None:
        """Note a problem."""
        self.problems.append(self._document.problem(message, path))
        self._wrong.add(path[:2])

    def read(self, section: Section, data: Any) -> None:
        """Read the objects of a section."""
        if data is None or (section.name,) in self._wrong:
            return
        seen: Counter[Any] = Counter()
        for step, said in data.items() if isinstance(data, dict) else enumerate(data):
            path = (section.name, step)
            if path in self._wrong:
                continue
            fields = _left_out_dropped(said) | ({section.identity[0]: step} if section.named else {})
            entry = self._entry(section, fields, path)
            if entry is None:
                continue
            if section.counted:
                seen[entry.key] += 1
                entry = replace(entry, key=(*entry.key, seen[entry.key] - 1))
            if entry.name in self.entries:
                self.wrong(path, f"{entry.label} is there already, in line {self.entries[entry.name].line}: keep one.")
            self.entries[entry.name] = entry

    def _entry(self, section: Section, fields: dict[str, Any], path: Path) -> Entry | None:
        row = self.rows.setdefault((section.name, (path[1],)), section.model()) if section.named else section.model()
        if section.model is Policy and "valid_until" in fields and "valid_from" not in fields:
            self.wrong(path, _END_ALONE)
        try:
            definition = definitions.read(row, fields, find=self._find, alone=True)
        except InvalidDefinition as error:
            for inner, messages in error.errors.items():
                for message in messages:
                    self.wrong(_in_file(section, path, fields, inner), message)
            return None
        key = tuple(plain_value(section.field(name), getattr(row, name)) for name in section.identity)
        return Entry(section, key, _state(section, definition), self._document.lines[path], definition)

    def _find(self, model: type[Configuration], name: str) -> Configuration:
        """The row of a name, which another part of the file may have, or no part of it."""
        section = next(one for one in SECTIONS.values() if one.model is model)
        if (section.name, (name,)) not in self.rows:
            try:
                section.field(model.named_by).clean(name, None)
            except ValidationError as error:
                raise ValidationError(error.messages) from None
            self.rows[section.name, (name,)] = model(**{model.named_by: name})
        found: Configuration = self.rows[section.name, (name,)]
        return found


def _left_out_dropped(said: Any) -> dict[str, Any]:
    """The fields of an object that have a value; members as a list."""
    fields = {name: value for name, value in (said or {}).items() if value is not None}
    if isinstance(members := fields.get(MEMBERS.name), dict):
        fields[MEMBERS.name] = [_left_out_dropped(member) | {"name": name} for name, member in members.items()]
    return fields


def _in_file(section: Section, path: Path, fields: Mapping[str, Any], inner: Path) -> Path:
    """The path in the file of an error in a definition; names are keys of mappings."""
    if section.parts is not None and len(inner) > 1:
        place: Any = inner[1]
        inner = (*inner[:1], fields[MEMBERS.name][place]["name"], *inner[2:])
    return path if section.named and inner == section.identity else (*path, *inner)


def _state(section: Section, definition: Definition) -> dict[str, Any]:
    """A definition as plain data; its limits are put into the order of their keys."""
    row, parts = definition.row, definition.parts or []
    state = {name: plain_value(section.field(name), getattr(row, name)) for name in section.fields}
    if section.has_limits:
        parts.sort(key=lambda part: str(part.row.key))
        state[LIMITS] = tuple(limit_text_of(part.row) for part in parts)
    if section.parts is not None:
        state[section.parts.name] = {part.row.name: _state(section.parts, part) for part in parts}
    return state


@lru_cache(maxsize=65_536)
def noted(text: str) -> Noted:
    """Read the text of a limit, of which most files have the same again and again."""
    return parse_limit(text)


def limit_text_of(limit: Limit) -> str:
    """A limit of the database as text."""
    return cached_text(limit.shared, limit.definition())


@lru_cache(maxsize=65_536)
def cached_text(shared: bool, limit: LimitDefinition) -> str:
    """A limit as text, of which most objects have the same."""
    return limit_text(limit, shared=shared)


def plain_value(field: Any, value: Any) -> Any:
    """The value of a field as plain data, of a row or of a query."""
    if isinstance(field, models.DateTimeField):
        return "" if value is None else aware(value).astimezone(UTC).isoformat()
    if field.is_relation:
        return "" if value is None else str(value)
    return value.value if isinstance(value, models.Choices) else value

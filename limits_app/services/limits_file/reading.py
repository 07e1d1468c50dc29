"""Reading limits files: YAML without the parts of it that harm, the objects in it, and the lines where they are wrong.

There are no aliases, so that a small file stays small, no repeated keys, and at most 32 levels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db.models import Model

from limits_app.engine.errors import InvalidLimit
from limits_app.models import REGISTRY, Endpoint, Policy, Price, registered
from limits_app.models.base import name_field
from limits_app.models.validators import MAX_DEPTH
from limits_app.services import definitions
from limits_app.services.definitions import Definition, InvalidDefinition, Path, path_text
from limits_app.services.limits_file.content import (
    GROUPS,
    LIMITS,
    MEMBERS,
    SECTIONS,
    Content,
    FileEntry,
    Name,
    Section,
    plain_value,
)

MAX_CHARACTERS: Final = 32_000_000
"""How large a file may be."""

_LONGEST_SCALAR: Final = 400
"""How long a number or a date may be: a long number in base 60 takes minutes to read."""
_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class FileProblem:
    """Something that is wrong in a file: where, and what to write instead; the line is 0 where it is about no line."""

    message: str
    line: int = 0
    path: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, [f"line {self.line}" if self.line else "", self.path, self.message]))


class InvalidFile(InvalidLimit):
    """An invalid limits file; `problems` lists all errors."""

    def __init__(self, name: str, problems: list[FileProblem]) -> None:
        super().__init__(name, problems)
        self.name = name
        self.problems = sorted(problems, key=lambda problem: problem.line)

    def __str__(self) -> str:
        lines = [f"{self.name}: {problem}" for problem in self.problems[:_SHOWN]]
        more = len(self.problems) - _SHOWN
        return "\n".join(lines + ([f"{self.name}: and {more} more"] if more > 0 else []))


@dataclass(frozen=True, slots=True)
class FileDocument:
    """Plain data, and the line of each value by its path."""

    data: Any
    lines: Mapping[Path, int]

    def problem(self, message: str, path: Path) -> FileProblem:
        """Give a problem with the line of its value, or of what the value is in."""
        nearest = next((path[:size] for size in range(len(path), -1, -1) if path[:size] in self.lines), ())
        return FileProblem(message, self.lines.get(nearest, 1), path_text(path))


def read_document(text: str, name: str) -> FileDocument:
    """Read one document; InvalidFile says in which line it is not YAML, or has parts that are not allowed."""
    import yaml

    if len(text) > MAX_CHARACTERS:
        raise InvalidFile(name, [FileProblem(f"a file has at most {MAX_CHARACTERS} characters: split it")])
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builder = _Builder(yaml)
    try:
        builder.check(yaml.parse(text, Loader=loader))
        root = yaml.compose(text, Loader=loader)
        data = {} if root is None else builder.value(root, ())
    except _NotAllowed as error:
        raise InvalidFile(name, [FileProblem(error.message, error.line)]) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise InvalidFile(name, [FileProblem(f"this is not YAML: {error.problem}", line)]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidFile(name, [FileProblem(f"this is not YAML: {error}")]) from None
    return FileDocument(data, builder.lines)


class _NotAllowed(Exception):
    def __init__(self, message: str, where: Any) -> None:
        super().__init__(message)
        self.message = message
        self.line = _line(where)


class _Builder:
    """Builds plain data from the nodes of YAML, and notes the line of each value."""

    def __init__(self, yaml: Any) -> None:
        self.lines: dict[Path, int] = {}
        self._yaml = yaml
        self._scalars = yaml.SafeLoader("")

    def check(self, events: Any) -> None:
        """Refuse aliases, a second document and deep nesting, before a tree is built."""
        depth = documents = 0
        for event in events:
            depth += isinstance(event, self._yaml.CollectionStartEvent)
            depth -= isinstance(event, self._yaml.CollectionEndEvent)
            documents += isinstance(event, self._yaml.DocumentStartEvent)
            if isinstance(event, self._yaml.AliasEvent):
                raise _NotAllowed("YAML anchors and aliases are not supported", event)
            if documents > 1:
                raise _NotAllowed("a limits file must be one YAML document: remove the line of dashes", event)
            if depth > MAX_DEPTH:
                raise _NotAllowed(f"nest at most {MAX_DEPTH} levels deep", event)

    def value(self, node: Any, path: Path) -> Any:
        """Give a node as plain data; a value of a mapping is in the line of its key."""
        self.lines.setdefault(path, _line(node))
        if isinstance(node, self._yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, self._yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, item in node.value:
            if not isinstance(key, self._yaml.ScalarNode):
                raise _NotAllowed("a key is a text: write it in one line", key)
            if key.value in mapping:
                raise _NotAllowed(f"duplicate key {key.value!r}", key)
            self.lines[*path, key.value] = _line(key)
            mapping[key.value] = self.value(item, (*path, key.value))
        return mapping

    def _scalar(self, node: Any) -> Any:
        if node.tag == "tag:yaml.org,2002:str":
            return node.value
        if len(node.value) > _LONGEST_SCALAR:
            raise _NotAllowed(f"{node.value[:80]!r}... is too long for a number or a date: put it in quotes", node)
        try:
            value = self._scalars.construct_object(node)
        except (ValueError, KeyError, OverflowError, self._yaml.constructor.ConstructorError):
            raise _NotAllowed(f"{node.value[:80]!r} cannot be read: put it in quotes", node) from None
        if isinstance(value, str | bool | int | float | datetime | date | None):
            return value
        raise _NotAllowed(f"{node.tag} is not allowed here: write text, numbers, lists and mappings", node)


def _line(where: Any) -> int:
    return int(where.start_mark.line) + 1


_WITHOUT_LIMITS: Final = "Only a rule with limits has this: remove it, or write limits instead of a resource."
_NO_HOUR: Final = "Write “valid_from” too, a full hour, so that applying the file again changes nothing."
_END_ALONE: Final = "Write “valid_from” too, so that applying the file again changes nothing."


def read_content(text: str, *, name: str = "limits.yaml") -> Content:
    """Read the text of a limits file; InvalidFile (a ValueError) has every line that is wrong, and what to write.

    Needs the extra `yaml`; ImportError without it.
    """
    from limits_app.services.limits_file.form import check_form

    document = read_document(text, name)
    reader = _FileReader(document)
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


class _FileReader:
    """Reads well-formed objects, and collects their errors."""

    def __init__(self, document: FileDocument) -> None:
        self.problems: list[FileProblem] = []
        self.entries: dict[Name, FileEntry] = {}
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
        for step, value in data.items() if isinstance(data, dict) else enumerate(data):
            path = (section.name, step)
            if path in self._wrong:
                continue
            fields = _left_out_dropped(value) | ({section.identity[0]: step} if section.named else {})
            entry = self._entry(section, fields, path)
            if entry is None:
                continue
            if section.counted:
                seen[entry.key] += 1
                entry = replace(entry, key=(*entry.key, seen[entry.key] - 1))
            if entry.name in self.entries:
                self.wrong(
                    path,
                    f"duplicate {entry.label}: the first one is in line {self.entries[entry.name].line}; keep one.",
                )
            self.entries[entry.name] = entry

    def _entry(self, section: Section, fields: dict[str, Any], path: Path) -> FileEntry | None:
        row = self.rows.setdefault((section.name, (path[1],)), section.model()) if section.named else section.model()
        if section.model is Policy and "valid_until" in fields and "valid_from" not in fields:
            self.wrong(path, _END_ALONE)
        if section.model is Price and "valid_from" not in fields:
            self.wrong(path, _NO_HOUR)
        for name in section.registered.only_new:
            setattr(row, name, fields.pop(name, ""))
        try:
            definition = definitions.read(row, fields, find=self._find, alone=True)
        except InvalidDefinition as error:
            for inner, messages in error.errors.items():
                for message in messages:
                    self.wrong(_in_file(section, path, fields, inner), message)
            return None
        if isinstance(row, Endpoint) and row.limits_resource and not row.limits:
            self.wrong((*path, "limits_resource"), _WITHOUT_LIMITS)
        key = tuple(plain_value(section.field(name), getattr(row, name)) for name in section.identity)
        return FileEntry(section, key, _state(section, definition), self._document.lines[path], definition)

    def _find(self, model: type[Model], name: str) -> Any:
        """The row of a name, which another part of the file may have, or no part of it."""
        if isinstance(model, str):  # as Django has a model whose app is not installed
            raise ValidationError("This site has no groups of users: django.contrib.auth is not in INSTALLED_APPS.")
        section = registered(model).section if model in REGISTRY else GROUPS
        if (section, (name,)) not in self.rows:
            try:
                column: Any = model._meta.get_field(name_field(model))
                column.clean(name, None)
            except ValidationError as error:
                raise ValidationError(error.messages) from None
            self.rows[section, (name,)] = model(**{name_field(model): name})
        return self.rows[section, (name,)]


def _left_out_dropped(value: Any) -> dict[str, Any]:
    """The fields of an object that have a value; members as a list."""
    fields = {name: value for name, value in (value or {}).items() if value is not None}
    if isinstance(members := fields.get(MEMBERS.name), dict):
        fields[MEMBERS.name] = [_left_out_dropped(member) | {"name": name} for name, member in members.items()]
    return fields


def _in_file(section: Section, path: Path, fields: Mapping[str, Any], inner: Path) -> Path:
    """The path in the file of an error in a definition; names are keys of mappings."""
    if section.parts is not None and len(inner) > 1:
        index: Any = inner[1]
        inner = (*inner[:1], fields[MEMBERS.name][index]["name"], *inner[2:])
    return path if section.named and inner == section.identity else (*path, *inner)


def _state(section: Section, definition: Definition) -> dict[str, Any]:
    """A definition as plain data; its limits are put into the order of their keys."""
    row, parts = definition.row, definition.parts or []
    state = {name: plain_value(section.field(name), getattr(row, name)) for name in section.fields}
    if section.has_limits:
        parts.sort(key=lambda part: str(part.row.key))
        state[LIMITS] = tuple(part.row.notation() for part in parts)
    if section.parts is not None:
        state[section.parts.name] = {part.row.name: _state(section.parts, part) for part in parts}
    return state

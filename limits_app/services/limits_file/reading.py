"""Reading limits files: their objects, and the lines where they are wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from django.core.exceptions import ValidationError

from limits_app.models import Configuration, Policy
from limits_app.services import definitions
from limits_app.services.definitions import Definition, InvalidDefinition, Path
from limits_app.services.limits_file.content import (
    LIMITS,
    MEMBERS,
    SECTIONS,
    Content,
    Entry,
    Name,
    Section,
    limit_text_of,
    plain_value,
)
from limits_app.services.limits_file.document import Document, InvalidFile, Problem, read_document

_END_ALONE: Final = "Write “valid_from” too, so that applying the file again changes nothing."


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

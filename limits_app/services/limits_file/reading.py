"""Reading a limits file: from YAML to entries, or everything that is wrong with it, by line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from limits_app.services.limits_file.checking import Checker
from limits_app.services.limits_file.document import InvalidFile, Node, read_document
from limits_app.services.limits_file.rules import check_entry
from limits_app.services.limits_file.shape import LIMITS, SECTIONS, Entry, Key, Section

__all__ = ["DEFAULT_NAME", "Content", "read_content"]

DEFAULT_NAME: Final = "limits"
"""What a file is called that does not say it."""

_TOP: Final = ("version", "name", *SECTIONS)
_MAX_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class Content:
    """What a limits file says: its own name, and its objects by section and key."""

    name: str
    entries: dict[tuple[str, Key], Entry]

    def of(self, section: str) -> Iterator[Entry]:
        """The objects of one section, in order."""
        return (entry for (name, _), entry in self.entries.items() if name == section)


def read_content(text: str, *, name: str = "limits.yaml") -> Content:
    """Read the text of a limits file; InvalidFile (a ValueError) says of each line that is wrong what to write."""
    reader = _Reader(name)
    content = reader.read(read_document(text, name))
    if reader.problems:
        raise InvalidFile(name, reader.problems)
    return content


class _Reader(Checker):
    def read(self, root: Node) -> Content:
        top = self.mapping(root, "", _TOP)
        version = top.get("version")
        if version is not None and (version.value != 1 or isinstance(version.value, bool)):
            self.wrong("the version of this format is 1", version, "version")
        named = top.get("name")
        name = DEFAULT_NAME if named is None else self.text(named, "name")
        if named is not None and not 0 < len(name) <= _MAX_NAME and not self.is_wrong("name"):
            self.wrong(f"a name has 1 to {_MAX_NAME} characters", named, "name")
        entries: dict[tuple[str, Key], Entry] = {}
        for section in SECTIONS.values():
            node = top.get(section.name)
            for entry, path in self._section(section, node) if node is not None else ():
                if (section.name, entry.key) in entries and not self.is_wrong(path):
                    first = entries[section.name, entry.key].line
                    self.wrong(f"{entry.label} is there already, in line {first}: keep one", entry, path)
                entries[section.name, entry.key] = entry
        return Content(name, entries)

    def _section(self, section: Section, node: Node) -> Iterator[tuple[Entry, str]]:
        if node.value is None:
            return
        seen: Counter[Any] = Counter()
        for name, item, path in self._items(section, node):
            fields = self.mapping(item, path, section.known())
            key = name or self._identity(section, fields, item, path)
            if section.counted:
                seen[key] += 1
            entry = Entry(
                section,
                (*key, seen[key] - 1) if section.counted else key,
                self._state(section, fields, path),
                item.line,
            )
            yield check_entry(self, entry, path), path

    def _items(self, section: Section, node: Node) -> Iterator[tuple[Key, Node, str]]:
        if section.named:
            if not isinstance(node.value, dict):
                self.wrong("write a mapping of names to what they are about", node, section.name)
                return
            for name, item in node.value.items():
                path = f"{section.name}.{name}"
                self.validated(section.field(section.identity[0]), name, item, path)
                yield (name,), item, path
            return
        if not isinstance(node.value, list):
            self.wrong("write a list, each item after a “- ”", node, section.name)
            return
        for index, item in enumerate(node.value):
            yield (), item, f"{section.name}[{index}]"

    def _identity(self, section: Section, fields: dict[str, Node], item: Node, path: str) -> Key:
        key = []
        for name in section.identity:
            node = fields.get(name)
            if node is not None:
                key.append(self.value(section.field(name), node, f"{path}.{name}"))
                continue
            if not (section.field(name).blank or section.field(name).has_default()):
                self.wrong(f"say {name!r}", item, path)
            key.append(section.default(name))
        return tuple(key)

    def _state(self, section: Section, fields: dict[str, Node], path: str) -> dict[str, Any]:
        state = section.defaults()
        for name in section.fields:
            if name in fields:
                state[name] = self.value(section.field(name), fields[name], f"{path}.{name}")
        if section.has_limits and LIMITS in fields:
            state[LIMITS] = self.limits(fields[LIMITS], f"{path}.{LIMITS}")
        parts = section.parts
        if parts is not None and parts.name in fields:
            state[parts.name] = {
                entry.key[0]: entry.state for entry, _ in self._parts(parts, fields[parts.name], f"{path}.{parts.name}")
            }
        return state

    def _parts(self, section: Section, node: Node, path: str) -> Iterator[tuple[Entry, str]]:
        for key, item, inner in self._items(section, node):
            at = f"{path}{inner.removeprefix(section.name)}"
            fields = self.mapping(item, at, section.known())
            entry = Entry(section, key, self._state(section, fields, at), item.line)
            yield check_entry(self, entry, at), at

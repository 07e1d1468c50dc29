"""YAML as plain data and the lines where each value is, read without the parts of YAML that harm.

There are no aliases, so that a small file stays small, no repeated keys, and at most 32 levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

from limits_app.core.errors import InvalidLimit
from limits_app.services.definitions import Path, path_text

MAX_CHARACTERS: Final = 32_000_000
"""How large a file may be."""

_MAX_DEPTH: Final = 32
_LONGEST_SCALAR: Final = 400
"""How long a number or a date may be: a long number in base 60 takes minutes to read."""
_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong in a file: where, and what to write instead; the line is 0 where it is about no line."""

    message: str
    line: int = 0
    path: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, [f"line {self.line}" if self.line else "", self.path, self.message]))


class InvalidFile(InvalidLimit):
    """An invalid limits file; `problems` lists all errors."""

    def __init__(self, name: str, problems: list[Problem]) -> None:
        super().__init__(name, problems)
        self.name = name
        self.problems = sorted(problems, key=lambda problem: problem.line)

    def __str__(self) -> str:
        lines = [f"{self.name}: {problem}" for problem in self.problems[:_SHOWN]]
        more = len(self.problems) - _SHOWN
        return "\n".join(lines + ([f"{self.name}: and {more} more"] if more > 0 else []))


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data, and the line of each value by its path."""

    data: Any
    lines: Mapping[Path, int]

    def problem(self, message: str, path: Path) -> Problem:
        """Give a problem with the line of its value, or of what the value is in."""
        nearest = next((path[:size] for size in range(len(path), -1, -1) if path[:size] in self.lines), ())
        return Problem(message, self.lines.get(nearest, 1), path_text(path))


def read_document(text: str, name: str) -> Document:
    """Read one document; InvalidFile says in which line it is not YAML, or has parts that are not allowed."""
    import yaml

    if len(text) > MAX_CHARACTERS:
        raise InvalidFile(name, [Problem(f"a file has at most {MAX_CHARACTERS} characters: split it")])
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builder = _Builder(yaml)
    try:
        builder.check(yaml.parse(text, Loader=loader))
        root = yaml.compose(text, Loader=loader)
        data = {} if root is None else builder.value(root, ())
    except _NotAllowed as error:
        raise InvalidFile(name, [Problem(error.message, error.line)]) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise InvalidFile(name, [Problem(f"this is not YAML: {error.problem}", line)]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidFile(name, [Problem(f"this is not YAML: {error}")]) from None
    return Document(data, builder.lines)


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
                raise _NotAllowed("write it out: there are no anchors and aliases here", event)
            if documents > 1:
                raise _NotAllowed("one file has one document: remove the line of dashes", event)
            if depth > _MAX_DEPTH:
                raise _NotAllowed(f"nest at most {_MAX_DEPTH} levels deep", event)

    def value(self, node: Any, path: Path) -> Any:
        """Give a node as plain data; a value of a mapping is in the line of its key."""
        self.lines.setdefault(path, _line(node))
        if isinstance(node, self._yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, self._yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, item in node.value:
            if not isinstance(key, self._yaml.ScalarNode):
                raise _NotAllowed("a key is a text: write it in one line", key)
            if key.value in found:
                raise _NotAllowed(f"{key.value!r} is there twice: keep one of them", key)
            self.lines[*path, key.value] = _line(key)
            found[key.value] = self.value(item, (*path, key.value))
        return found

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

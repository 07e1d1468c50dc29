"""YAML as a tree of plain values that know their lines, read without the parts of YAML that harm.

There are no aliases, so that a small file stays small; no key twice; and no nesting without end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

from limits_app.core.errors import InvalidLimit

if TYPE_CHECKING:
    from yaml import Event

__all__ = ["MAX_CHARACTERS", "InvalidFile", "Node", "Problem", "read_document"]

MAX_CHARACTERS: Final = 32_000_000
"""How large a file may be."""

_MAX_DEPTH: Final = 32
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
    """A file that cannot be read as limits; `problems` says everything that is wrong with it."""

    def __init__(self, name: str, problems: list[Problem]) -> None:
        super().__init__(name, problems)
        self.name = name
        self.problems = sorted(problems, key=lambda problem: problem.line)

    def __str__(self) -> str:
        lines = [f"{self.name}: {problem}" for problem in self.problems[:_SHOWN]]
        more = len(self.problems) - _SHOWN
        return "\n".join(lines + ([f"{self.name}: and {more} more"] if more > 0 else []))


@dataclass(slots=True)
class Node:
    """A value and its line: text, a number, a truth, a moment or None; a list of nodes; or nodes by their keys."""

    value: Any
    line: int

    def plain(self) -> Any:
        """The value without lines."""
        match self.value:
            case dict():
                return {key: node.plain() for key, node in self.value.items()}
            case list():
                return [node.plain() for node in self.value]
            case _:
                return self.value


def read_document(text: str, name: str) -> Node:
    """Read one document; InvalidFile says where it is no YAML, or has parts that are not taken."""
    import yaml

    if len(text) > MAX_CHARACTERS:
        raise InvalidFile(name, [Problem(f"a file has at most {MAX_CHARACTERS} characters: split it")])
    try:
        return _Builder(yaml).built(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except _Refused as error:
        raise InvalidFile(name, [Problem(error.message, error.line)]) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise InvalidFile(name, [Problem(f"this is no YAML: {error.problem}", line)]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidFile(name, [Problem(f"this is no YAML: {error}")]) from None


class _Refused(Exception):
    def __init__(self, message: str, event: Event) -> None:
        super().__init__(message)
        self.message = message
        self.line = _line(event)


class _Builder:
    """Builds the tree from events, with a stack of its own, so that nesting cannot exhaust that of the program."""

    def __init__(self, yaml: Any) -> None:
        self._yaml = yaml
        self._scalars = yaml.SafeLoader("")
        self._open: list[tuple[Node, Any]] = []
        self._root: Node | None = None

    def built(self, events: Iterator[Event]) -> Node:
        """Give the root; an empty file is an empty mapping."""
        yaml = self._yaml
        taken = {
            yaml.ScalarEvent: self._scalar,
            yaml.MappingStartEvent: lambda event: self._begin({}, event),
            yaml.SequenceStartEvent: lambda event: self._begin([], event),
            yaml.MappingEndEvent: self._end,
            yaml.SequenceEndEvent: self._end,
            yaml.AliasEvent: self._refuse_alias,
            yaml.DocumentStartEvent: self._refuse_second,
        }
        for event in events:
            if type(event) in taken:
                taken[type(event)](event)
        return self._root or Node({}, 1)

    def _end(self, _: Event) -> None:
        self._open.pop()

    def _refuse_alias(self, event: Event) -> None:
        raise _Refused("write it out: there are no anchors and aliases here", event)

    def _refuse_second(self, event: Event) -> None:
        if self._root is not None:
            raise _Refused("one file has one document: remove the line of dashes", event)

    def _begin(self, value: Any, event: Any) -> None:
        node = Node(value, _line(event))
        if len(self._open) >= _MAX_DEPTH:
            raise _Refused(f"nest at most {_MAX_DEPTH} levels deep", event)
        self._put(node, event)
        self._open.append((node, None))

    def _scalar(self, event: Any) -> None:
        if self._open and isinstance(self._open[-1][0].value, dict) and self._open[-1][1] is None:
            holder, _ = self._open[-1]
            if event.value in holder.value:
                raise _Refused(f"{event.value!r} is there twice: keep one of them", event)
            self._open[-1] = holder, (event.value, _line(event))
        else:
            self._put(Node(self._value(event), _line(event)), event)

    def _put(self, node: Node, event: Any) -> None:
        if not self._open:
            self._root = node
            return
        holder, key = self._open[-1]
        if isinstance(holder.value, list):
            holder.value.append(node)
        elif key is None:
            raise _Refused("a key is a text: write it in one line", event)
        else:
            node.line = key[1]
            holder.value[key[0]] = node
            self._open[-1] = holder, None

    def _value(self, event: Any) -> Any:
        if not event.implicit[0] and event.tag is None:
            return event.value  # in quotes
        tag = event.tag or self._scalars.resolve(self._yaml.ScalarNode, event.value, (True, False))
        if tag == "tag:yaml.org,2002:str":
            return event.value
        try:
            value = self._scalars.construct_object(self._yaml.ScalarNode(tag, event.value, event.start_mark))
        except (ValueError, KeyError, OverflowError, self._yaml.constructor.ConstructorError):
            raise _Refused(f"{event.value[:80]!r} cannot be read: put it in quotes", event) from None
        if isinstance(value, str | bool | int | float | datetime | date | None):
            return value
        raise _Refused(f"{tag} is not taken here: write text, numbers, lists and mappings", event)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1

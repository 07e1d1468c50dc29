"""Checking single values of a limits file by the fields of the models, and gathering what is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any, Final, Protocol

from django.core.exceptions import ValidationError
from django.db import models
from django.utils.dateparse import parse_datetime

from limits_app.core.amounts import shown
from limits_app.core.errors import InvalidLimit
from limits_app.core.notation import Noted, limit_text, parse_limit
from limits_app.services.limits_file.document import InvalidFile, Node, Problem

__all__ = ["Checker", "noted"]

_MOST_PROBLEMS: Final = 100
_WORDS: Final[Mapping[type, str]] = {bool: "true or false", int: "a whole number"}


class HasLine(Protocol):
    """What stands in a line."""

    @property
    def line(self) -> int:
        """Which one; 0 for none."""


@lru_cache(maxsize=65_536)
def noted(text: str) -> Noted:
    """Read the text of a limit, which most files say again and again."""
    return parse_limit(text)


class Checker:
    """Reads values of one file; what is wrong is gathered in `problems`, and read as the field's default."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[Problem] = []

    def wrong(self, message: str, where: HasLine, path: str) -> None:
        """Note a problem; InvalidFile once there are too many."""
        self.problems.append(Problem(message, where.line, path))
        if len(self.problems) >= _MOST_PROBLEMS:
            raise InvalidFile(self.name, self.problems)

    def is_wrong(self, path: str) -> bool:
        """Whether something below a path was noted already."""
        return any(problem.path.startswith(path) for problem in self.problems)

    def mapping(self, node: Node, path: str, known: Collection[str]) -> dict[str, Node]:
        """The fields that an object says, those that are known; saying nothing is saying none."""
        if node.value is None:
            return {}
        if not isinstance(node.value, dict):
            self.wrong(f"write fields, such as {next(iter(known))}: ..., not {shown(node.plain())}", node, path)
            return {}
        fields = {}
        for key, item in node.value.items():
            if key in known:
                fields[key] = item
            else:
                self.wrong(f"{shown(key)} is not known here: {_nearest(key, known)}", item, path)
        return fields

    def text(self, node: Node, path: str) -> str:
        """A text; nothing is the empty one."""
        if isinstance(node.value, str) or node.value is None:
            return node.value or ""
        if isinstance(node.value, bool):
            self.wrong("write it in quotes: without them on, off, yes and no are true or false in YAML", node, path)
        else:
            self.wrong(f"write a text, in quotes where it looks like something else, not {_named(node)}", node, path)
        return ""

    def value(self, field: Any, node: Node, path: str) -> Any:
        """What the field of a model may hold, as plain data."""
        match field:
            case models.BooleanField():
                value = self._of_type(bool, field, node, path)
            case models.IntegerField():
                value = self._of_type(int, field, node, path)
            case models.JSONField():
                value = {} if node.value is None else _json(node.plain())
            case models.DateTimeField():
                return self._moment(node, path)
            case models.ForeignKey():
                related: Any = field.related_model
                name = self.text(node, path)
                return self.validated(related._meta.get_field(related.named_by), name, node, path) if name else ""
            case _:
                value = self.text(node, path)
                if not isinstance(node.value, str | None):
                    return field.get_default()
        return self.validated(field, value, node, path)

    def validated(self, field: Any, value: Any, node: Node, path: str) -> Any:
        """The value, if the model would have it."""
        if field.choices and value and value not in (words := [word for word, _ in field.choices]):
            self.wrong(f"{shown(value)} is no {field.verbose_name}: {_nearest(str(value), words)}", node, path)
            return field.get_default()
        if value == "" and not field.blank:
            self.wrong(f"the {field.verbose_name} cannot be empty", node, path)
            return value
        try:
            field.run_validators(value)
        except ValidationError as error:
            self.wrong(" ".join(error.messages), node, path)
        return value

    def limits(self, node: Node, path: str) -> tuple[str, ...]:
        """Limits as texts in one form, in the order of their keys."""
        if not isinstance(node.value, list):
            self.wrong("write a list of limits, such as [rpm=1000/min, connections=10]", node, path)
            return ()
        texts: dict[str, str] = {}
        for index, item in enumerate(node.value):
            where = f"{path}[{index}]"
            text = self.text(item, where)
            if self.is_wrong(where):
                continue
            try:
                limit, shared = noted(text)
            except InvalidLimit as error:
                self.wrong(str(error), item, where)
                continue
            if limit.key in texts:
                self.wrong(f"{limit.key} is limited by {texts[limit.key]} already: keep one of them", item, where)
            texts[limit.key] = limit_text(limit, shared=shared)
        return tuple(texts[key] for key in sorted(texts))

    def _of_type(self, wanted: type, field: Any, node: Node, path: str) -> Any:
        if type(node.value) is wanted:
            return node.value
        self.wrong(f"write {_WORDS[wanted]}, not {_named(node)}", node, path)
        return field.get_default()

    def _moment(self, node: Node, path: str) -> str:
        if node.value is None:
            return ""
        moment = node.value
        if isinstance(moment, str):
            try:
                moment = parse_datetime(moment)
            except ValueError:
                moment = None
        if not isinstance(moment, datetime) or moment.tzinfo is None:
            self.wrong("write a moment with its time zone, such as 2026-03-01T00:00:00+01:00", node, path)
            return ""
        try:
            return moment.astimezone(UTC).isoformat()
        except OverflowError:
            self.wrong("write a moment from the year 1 to the year 9999 in UTC", node, path)
            return ""


def _nearest(word: str, known: Collection[str]) -> str:
    found = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {found[0]!r}?" if found else f"there are {', '.join(filter(None, known))}"


def _named(node: Node) -> str:
    kinds = {dict: "a mapping", list: "a list", type(None): "nothing", datetime: "a moment", date: "a date"}
    return kinds.get(type(node.value)) or shown(node.value)


def _json(value: Any) -> Any:
    """Plain data as JSON has it: moments as texts."""
    match value:
        case dict():
            return {key: _json(item) for key, item in value.items()}
        case list():
            return [_json(item) for item in value]
        case date():
            return value.isoformat()
        case _:
            return value

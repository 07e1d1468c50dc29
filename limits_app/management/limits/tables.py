"""Tables as values, and the text of their cells."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from limits_app.services.limit_words import limit_name

_LIMITS: Final = ("key", "limit")
"""Columns with keys of limits."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of named columns; `nothing` is the message for an empty table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    nothing: str = "There is nothing to show."

    def as_data(self) -> list[dict[str, object]]:
        """The rows as plain data."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def as_text(self) -> list[list[str]]:
        """The rows as text for people, with the names of limits instead of their keys."""
        return [
            [
                limit_name(cell(value)) if name in _LIMITS else cell(value)
                for name, value in zip(self.columns, row, strict=True)
            ]
            for row in self.rows
        ]


def cell(value: object) -> str:
    """The text of a value in a table."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case date():
            return value.isoformat(" ", "seconds") if hasattr(value, "hour") else value.isoformat()  # type: ignore[call-arg]
        case dict():
            return printable(json.dumps(value, default=str, ensure_ascii=False))
        case list() | tuple():
            return " ".join(map(cell, value))
        case _:
            return printable(str(value))


def printable(text: str) -> str:
    """Escape control characters, because identifiers come from untrusted clients."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def numeric(table: Table) -> list[bool]:
    """For each column, whether it contains only numbers."""
    columns = zip(*table.rows, strict=True)
    return [
        all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in column)
        for column in columns
    ]

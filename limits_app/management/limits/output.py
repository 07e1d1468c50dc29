"""Where commands write: what was asked for on stdout, in the form that was asked for, and the rest on stderr."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from importlib.util import find_spec
from typing import Any, Final, TypeVar, assert_never

from django.core.management.base import CommandError, OutputWrapper

__all__ = ["Format", "Output", "Table", "cell", "printable"]

T = TypeVar("T")

_HAS_RICH: Final = find_spec("rich") is not None
_SHORT: Final = 28
"""Columns of no more are not broken into lines."""


class Format(StrEnum):
    """The forms of data on stdout."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of named columns; `nothing` is what to say to people when there are none."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    nothing: str = "There is nothing to show."

    def as_data(self) -> list[dict[str, object]]:
        """The rows as plain data."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class Output:
    """Data goes to stdout, and nothing else does; what people want to know besides goes to stderr."""

    def __init__(
        self, stdout: OutputWrapper, stderr: OutputWrapper, form: Format = Format.TABLE, *, color: bool = True
    ) -> None:
        self.form = form
        self._stdout = stdout
        self._stderr = stderr
        self.is_terminal = stdout.isatty()
        self.is_rich = _HAS_RICH and self.is_terminal and color

    def show(self, table: Table, *, data: object = None, text: str | None = None) -> None:
        """Write a table; `data` stands for it where the form is JSON or YAML, and `text` where people read it."""
        match self.form:
            case Format.TABLE:
                self._show_to_people(table, text)
            case Format.JSON:
                self.write(json.dumps(table.as_data() if data is None else data, default=_plain, indent=2))
            case Format.YAML:
                self.write(_as_yaml(table.as_data() if data is None else data))
            case Format.CSV:
                self.write(_as_csv(table))
            case _:
                assert_never(self.form)

    def write(self, text: str) -> None:
        """Write text to stdout."""
        self._stdout.write(text)

    def note(self, text: str) -> None:
        """Tell people something on stderr."""
        self._stderr.write(text, style_func=str)

    def track(self, steps: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
        """Go through long work with a bar on stderr, where that is a terminal."""
        if not (_HAS_RICH and self._stderr.isatty()):
            yield from steps
            return
        from rich.console import Console
        from rich.progress import track

        yield from track(steps, what, total, console=Console(stderr=True), transient=True)

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Say that work is going on whose length nobody knows, on stderr, where that is a terminal."""
        if not (_HAS_RICH and self._stderr.isatty()):
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(f"{what} ..."):
            yield

    def confirm(self, question: str, *, yes: bool) -> None:
        """Go on only if somebody says so; CommandError where nobody does."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise CommandError(f"{question} Nobody can be asked here: say --yes.", returncode=2)
        self._stderr.write(f"{question} [y/N] ", style_func=str, ending="")
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise CommandError("Nothing was changed.", returncode=1)

    @contextmanager
    def screen(self) -> Iterator[Screen]:
        """Give a place whose contents are replaced, where stdout is a terminal; elsewhere they follow each other."""
        if not self.is_rich or self.form is not Format.TABLE:
            yield Screen(self, None)
            return
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(), auto_refresh=False, screen=True) as live:
            yield Screen(self, live)

    def _show_to_people(self, table: Table, text: str | None) -> None:
        if text is not None:
            self.write("\n".join(map(printable, text.split("\n"))))
        elif not table.rows:
            self.note(table.nothing)
        elif self.is_rich:
            self.write(_with_rich(table))
        else:
            self.write(_plainly(table))


class Screen:
    """What `top` draws on."""

    def __init__(self, output: Output, live: Any) -> None:
        self._output = output
        self._live = live

    def draw(self, table: Table, head: str) -> None:
        """Show a table below a line instead of what was there."""
        if self._live is None:
            self._output.note(head)
            self._output.show(table)
            return
        from rich.console import Group
        from rich.text import Text

        self._live.update(Group(Text(printable(head)), _rich_table(table)), refresh=True)


def cell(value: object) -> str:
    """A value as people read it in a table."""
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
    """Text without what would move the cursor or colour the screen: identifiers come from strangers."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _plainly(table: Table) -> str:
    lines = [list(table.columns), *([cell(value) for value in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = _numeric(table)
    return "\n".join(
        "  ".join(
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _with_rich(table: Table) -> str:
    from rich.console import Console

    console = Console(force_terminal=True)
    with console.capture() as captured:
        console.print(_rich_table(table))
    return captured.get()


def _rich_table(table: Table) -> Any:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    rows = [[cell(value) for value in row] for row in table.rows]
    for place, (name, is_number) in enumerate(zip(table.columns, _numeric(table), strict=True)):
        is_short = all(len(row[place]) <= _SHORT for row in rows)
        drawn.add_column(name, justify="right" if is_number else "left", overflow="fold", no_wrap=is_short)
    for row in rows:
        drawn.add_row(*map(Text, row))
    return drawn


def _numeric(table: Table) -> list[bool]:
    """Which columns have numbers and nothing else."""
    columns = zip(*table.rows, strict=True)
    return [
        all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in column)
        for column in columns
    ]


def _as_csv(table: Table) -> str:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([_csv_cell(value) for value in row] for row in table.rows)
    return written.getvalue()


def _csv_cell(value: object) -> object:
    """Numbers stay exact; the rest is as in a table, but as it is."""
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return cell(value)


def _as_yaml(data: object) -> str:
    try:
        import yaml
    except ImportError as error:
        raise CommandError("YAML needs a package: pip install 'limits-app[yaml]'") from error
    # By way of JSON, so that both say the same.
    written: str = yaml.safe_dump(json.loads(json.dumps(data, default=_plain)), sort_keys=False, allow_unicode=True)
    return written


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, date) else str(value)

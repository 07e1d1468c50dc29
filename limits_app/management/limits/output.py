"""Output of commands: tables on stdout in the requested format, messages on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar, assert_never

from django.core.management.base import CommandError, OutputWrapper

from limits_app.services.limit_words import limit_name
from limits_app.services.safe_text import csv_text, json_text, printable

if TYPE_CHECKING:
    from rich.status import Status

T = TypeVar("T")

_HAS_RICH: Final = find_spec("rich") is not None
_BAR: Final = 40
"""The length of a bar in characters."""
_PROGRESS_SECONDS: Final = 10.0
_LIMITS: Final = ("key", "limit")
"""Columns with keys of limits."""


class Format(StrEnum):
    """Formats of results on stdout."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    YAML = "yaml"


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

    def numeric(self) -> list[bool]:
        """For each column, whether it contains only numbers."""
        columns = ([row[index] for row in self.rows] for index in range(len(self.columns)))
        return [
            all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in column)
            for column in columns
        ]


class Output:
    """Writes results to stdout, and everything else to stderr."""

    def __init__(
        self,
        stdout: OutputWrapper,
        stderr: OutputWrapper,
        form: Format = Format.TABLE,
        *,
        color: bool = True,
        has_rich: bool = _HAS_RICH,
    ) -> None:
        self.form = form
        self._stdout = stdout
        self._stderr = stderr
        self.is_terminal = stdout.isatty()
        self._has_rich = has_rich
        self.is_rich = has_rich and self.is_terminal and color
        self._status: Status | None = None
        """The counter that is shown now."""

    def show(self, table: Table, *, data: object = None, text: str | None = None) -> None:
        """Write a table; `data` replaces it in JSON and YAML, and `text` replaces it in the table format."""
        match self.form:
            case Format.TABLE:
                self._show_to_people(table, text)
            case Format.JSON:
                self.write(json_text(table.as_data() if data is None else data, default=_plain, ensure_ascii=True))
            case Format.YAML:
                self.write(_as_yaml(table.as_data() if data is None else data))
            case Format.CSV:
                self.write(csv_text(table.columns, [[*map(_csv_cell, row)] for row in table.rows]))
            case _:
                assert_never(self.form)

    def write(self, text: str) -> None:
        """Write text to stdout."""
        self._stdout.write(text)

    def write_pieces(self, pieces: Iterable[str]) -> None:
        """Write a text to stdout that is made while it is written."""
        last = ""
        for piece in pieces:
            self._stdout.write(piece, ending="")
            last = piece
        self._stdout.write("", ending="" if last.endswith("\n") else "\n")

    def show_text(self, text: str) -> None:
        """Write text to people, of one or more lines, also while a counter is shown."""
        if self._status is not None:
            self._status.stop()
        self.write(printable(text, but="\n"))
        if self._status is not None:
            self._status.start()

    def note(self, text: str) -> None:
        """Write a message to stderr, of one or more lines."""
        self._stderr.write(printable(text, but="\n"), style_func=str)

    def track(self, steps: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
        """Iterate over `steps` with a progress bar on stderr, if that is a terminal."""
        if not (self._has_rich and self._stderr.isatty()):
            yield from steps
            return
        from rich.console import Console
        from rich.progress import track

        yield from track(steps, what, total, console=Console(stderr=True), transient=True)

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Show a spinner on stderr during work of unknown length, if that is a terminal."""
        if not (self._has_rich and self._stderr.isatty()):
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(f"{what} ..."):
            yield

    @contextmanager
    def counter(self, what: str, *, clock: Callable[[], float] = monotonic) -> Iterator[Callable[[int], object]]:
        """Provide a function for how much is done of work of unknown length; see `progress`."""
        if not (self._has_rich and self._stderr.isatty()):
            shown_at = clock()

            def show(done: int) -> None:
                nonlocal shown_at
                if (now := clock()) - shown_at >= _PROGRESS_SECONDS:
                    shown_at = now
                    self.note(f"{what}: {done}")

            yield show
            return
        from rich.console import Console

        with Console(stderr=True).status(f"{what} ...") as status:
            self._status = status
            try:
                yield lambda done: status.update(f"{what}: {done} ...")
            finally:
                self._status = None

    @contextmanager
    def progress(self, what: str, *, clock: Callable[[], float] = monotonic) -> Iterator[Callable[[int, int], None]]:
        """Provide a function for how much of a total is done; it shows a bar on stderr, or a line every 10 seconds."""
        if not (self._has_rich and self._stderr.isatty()):
            shown_at = clock()

            def show(done: int, total: int) -> None:
                nonlocal shown_at
                if (now := clock()) - shown_at >= _PROGRESS_SECONDS:
                    shown_at = now
                    self.note(f"{what}: {done} of {total}")

            yield show
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task(what, total=None)
            yield lambda done, total: bars.update(task, completed=done, total=total)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask for confirmation; raises CommandError if it is declined or stdin is not a terminal."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise CommandError(f"{printable(question)} stdin is not a terminal; pass --yes to confirm.", returncode=2)
        self._stderr.write(f"{printable(question)} [y/N] ", style_func=str, ending="")
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise CommandError("Nothing was changed.", returncode=1)

    @contextmanager
    def screen(self) -> Iterator[Callable[[Table, str], None]]:
        """Provide a function that shows a table below a head line: on a terminal, in index of the one before."""
        if not self.is_rich or self.form is not Format.TABLE:
            yield self._append
            return
        from rich.console import Console, Group
        from rich.live import Live
        from rich.text import Text

        from limits_app.management.limits.drawing import Drawn

        with Live(console=Console(), auto_refresh=False, screen=True) as live:

            def draw(table: Table, head: str) -> None:
                drawn = Drawn(table.columns, table.as_text(), table.numeric())
                live.update(Group(Text(printable(head)), drawn), refresh=True)

            yield draw

    def _append(self, table: Table, head: str) -> None:
        self.note(head)
        self.show(table)

    def _show_to_people(self, table: Table, text: str | None) -> None:
        if text is not None:
            self.show_text(text)
        elif not table.rows:
            self.note(table.nothing)
        elif self.is_rich:
            from limits_app.management.limits.drawing import Drawn, rendered

            self.write(rendered(Drawn(table.columns, table.as_text(), table.numeric())))
        else:
            self.write(_plainly(table))


def _plainly(table: Table) -> str:
    lines = [list(table.columns), *table.as_text()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = table.numeric()
    return "\n".join(
        "  ".join(
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _csv_cell(value: object) -> object:
    """Numbers and strings unchanged; other values as in a table."""
    if isinstance(value, str | Decimal) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return cell(value)


def _as_yaml(data: object) -> str:
    try:
        import yaml
    except ImportError as error:
        raise CommandError("YAML requires PyYAML: pip install 'limits-app[yaml]'") from error
    # Through JSON, so that both formats represent values in the same way.
    written: str = yaml.safe_dump(json.loads(json.dumps(data, default=_plain)), sort_keys=False, allow_unicode=True)
    return written


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, date) else str(value)


def cell(value: object) -> str:
    """The text of a value in a table."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case Decimal():
            return f"{value:f}"
        case date():
            return value.isoformat(" ", "seconds") if hasattr(value, "hour") else value.isoformat()  # type: ignore[call-arg]
        case dict():
            return printable(json.dumps(value, default=str, ensure_ascii=False))
        case list() | tuple():
            return " ".join(map(cell, value))
        case _:
            return printable(str(value))


def bar(amount: float, most: float, hatched: float = 0) -> str:
    """A bar for the share of `amount` in `most`; its last part is hatched."""
    whole, last = (round(number / most * _BAR) if most else 0 for number in (amount, hatched))
    return ("█" * (whole - last) + "░" * last).ljust(_BAR, "·")

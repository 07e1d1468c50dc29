"""Tables on a terminal with `rich`: columns if they fit, otherwise one value per line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

_SHORT: Final = 28
"""Width in characters: shorter columns are not wrapped, and longer ones not to less than this."""

_VERY_WIDE: Final = 10_000


class Drawn:
    """A table that adapts to the width of the terminal without truncating values."""

    def __init__(self, columns: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
        self.columns = columns
        self.cells = cells
        self.numeric = numeric

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        side_by_side = self._side_by_side()
        least = console.measure(side_by_side, options=options.update(max_width=_VERY_WIDE)).minimum
        yield side_by_side if least <= options.max_width else self._below_each_other()

    def _side_by_side(self) -> RichTable:
        drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        for index, (name, is_number) in enumerate(zip(self.columns, self.numeric, strict=True)):
            is_short = all(len(row[index]) <= _SHORT for row in self.cells)
            least: dict[str, Any] = {"no_wrap": True} if is_short else {"min_width": _SHORT}
            drawn.add_column(name, justify="right" if is_number else "left", overflow="fold", **least)
        for row in self.cells:
            drawn.add_row(*map(Text, row))
        return drawn

    def _below_each_other(self) -> RichTable:
        drawn = RichTable.grid(padding=(0, 2))
        drawn.add_column(style="bold", no_wrap=True)
        drawn.add_column(overflow="fold")
        for index, row in enumerate(self.cells):
            if index:
                drawn.add_row()
            for name, text in zip(self.columns, row, strict=True):
                if text:
                    drawn.add_row(name, Text(text))
        return drawn


def rendered(drawn: Drawn) -> str:
    """A table as text for the current terminal."""
    console = Console(force_terminal=True)
    with console.capture() as captured:
        console.print(drawn)
    return captured.get()

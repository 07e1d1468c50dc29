"""What a table is made of: rows that measure, the lines that they give, and the bars that lines are held against."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.harness import Effort, Figure

__all__ = ["Bar", "Line", "Row", "Skipped", "at_least", "at_most"]


class Skipped(Exception):
    """The row cannot be measured here; the message says why."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure is to reach."""

    bound: float
    at_least: bool

    def met_by(self, figure: Figure) -> bool:
        """Whether the median reaches it."""
        return figure.median >= self.bound if self.at_least else figure.median <= self.bound

    def __str__(self) -> str:
        return f"at {'least' if self.at_least else 'most'} {self.bound:g}"


def at_most(bound: float) -> Bar:
    """A bar for what should be small."""
    return Bar(bound, at_least=False)


def at_least(bound: float) -> Bar:
    """A bar for what should be large."""
    return Bar(bound, at_least=True)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a table: a figure in a unit (`x ref`, `ms`, ...), ours with its bar or a peer's without."""

    label: str
    figure: Figure
    unit: str
    bar: Bar | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that is measured; its first line is ours, and peers and details follow. May raise Skipped."""

    title: str
    measure: Callable[[Effort], Iterable[Line]]

"""What the demo found, as values that know what is not exact, and as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["BAR_MS", "Changed", "Crowded", "Permits", "Report", "Spent", "table"]

BAR_MS: Final = 1000
"""How soon a killed holder's permit has to be back."""


@dataclass(frozen=True, slots=True)
class Crowded:
    """What came of the requests that a visitor sent all at once."""

    visitor: str
    limit: str
    sent: int
    expected: int
    admitted: int
    refused: int

    def problems(self) -> list[str]:
        """What is not exact."""
        if (self.admitted, self.refused) == (self.expected, self.sent - self.expected):
            return []
        return [
            f"{self.visitor}: {self.expected} of {self.sent} requests should have been admitted and the rest refused, "
            f"but {self.admitted} were admitted and {self.refused} refused"
        ]


@dataclass(frozen=True, slots=True)
class Changed:
    """How one process obeyed a changed limit: its answers to requests sent after the admin had said that it is saved.

    `first_right` counts from 1, 0 when no answer was right; `right` of `answers` were.
    """

    change: str
    process: int
    first_right: int
    after_ms: float
    right: int
    answers: int

    def problems(self) -> list[str]:
        """What is not exact."""
        if self.first_right == 1 and self.right == self.answers:
            return []
        return [f"{self.change}: process {self.process} obeyed in {self.right} of {self.answers} answers, not in all"]


@dataclass(frozen=True, slots=True)
class Permits:
    """What happened to the permits of a process that was killed."""

    permits: int
    killed: int
    refused_before: bool
    back_ms: float
    refused_meanwhile: int
    came_back: int

    def problems(self) -> list[str]:
        """What is not exact."""
        found = []
        if not self.refused_before:
            found.append(f"while {self.permits} of {self.permits} permits were held, another one was given")
        if self.came_back != 1:
            found.append(f"1 permit should have come back from process {self.killed}, not {self.came_back}")
        if self.back_ms > BAR_MS:
            found.append(f"the permit came back after {self.back_ms:.0f} ms, later than {BAR_MS} ms")
        return found


@dataclass(frozen=True, slots=True)
class Spent:
    """How many tokens of a region were used."""

    region: str
    capacity: int
    expected: int
    used: int

    def problems(self) -> list[str]:
        """What is not exact."""
        if self.used == self.expected:
            return []
        return [f"region {self.region}: {self.expected} tokens should have been used, not {self.used}"]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one run found."""

    crowded: Sequence[Crowded]
    served: dict[int, int]
    """Requests of the crowd by the process that answered."""
    changed: Sequence[Changed]
    afterwards: Crowded
    """What came of a crowd after the changes, when the limit was raised to a little more than was used."""
    permits: Permits
    asked: Sequence[Crowded]
    """What came of the calls that tenants made through the gateway."""
    spent: Sequence[Spent]
    processes: int
    seconds: float

    def problems(self) -> list[str]:
        """Every figure that is not exact, as a sentence."""
        parts: list[Crowded | Changed | Permits | Spent] = [*self.crowded, *self.changed, self.afterwards, self.permits]
        parts += [*self.asked, *self.spent]
        found = [problem for part in parts for problem in part.problems()]
        if len(self.served) != self.processes:
            found.append(f"{self.processes} server processes should have answered, not {len(self.served)}")
        return found

    def text(self) -> str:
        """The report for people."""
        return f"{self._crowd_text()}\n\n{self._change_text()}\n\n{self._permit_text()}\n\n{self._gateway_text()}"

    def _crowd_text(self) -> str:
        served = ", ".join(f"process {process} answered {count}" for process, count in sorted(self.served.items()))
        heading = "Everybody comes at once; the limits were set in the admin"
        return f"{heading}\n{_crowd_table(self.crowded)}\n  {served}"

    def _change_text(self) -> str:
        rows = [
            [
                one.change,
                str(one.process),
                f"request {one.first_right}" if one.first_right else "none",
                f"{one.after_ms:.1f}",
                f"{one.right} of {one.answers}",
            ]
            for one in self.changed
        ]
        heading = "A limit is changed in the admin while requests flow; counted from the admin's answer"
        changes = table(["change", "process", "first right answer", "after ms", "right answers"], rows)
        used = "What was used before and between the changes still counts afterwards"
        return f"{heading}\n{changes}\n\n{used}\n{_crowd_table([self.afterwards])}"

    def _permit_text(self) -> str:
        permit = self.permits
        return (
            f"Every permit is held, one in each process, and process {permit.killed} is killed\n"
            f"  another request before: {'refused' if permit.refused_before else 'ADMITTED'} (expected: refused)\n"
            f"  permits that came back: {permit.came_back} (expected: 1)\n"
            f"  after: {permit.back_ms:.0f} ms (at most: {BAR_MS} ms)\n"
            f"  refused until then: {permit.refused_meanwhile} requests"
        )

    def _gateway_text(self) -> str:
        rows = [[one.region, str(one.capacity), str(one.expected), str(one.used)] for one in self.spent]
        return (
            "Tenants ask a language model in two regions, and report what each answer cost\n"
            f"{_crowd_table(self.asked)}\n"
            f"{table(['region', 'tokens', 'expected', 'used'], rows)}"
        )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align text in columns: numbers to the right, words to the left."""
    columns = list(zip(headings, *rows, strict=True))
    aligned = [[_aligned(text, column) for text in column] for column in columns]
    return "\n".join("  " + "  ".join(line).rstrip() for line in zip(*aligned, strict=True))


def _aligned(text: str, column: Sequence[str]) -> str:
    width = max(map(len, column))
    numbers = all(other.replace(".", "", 1).isdecimal() for other in column[1:])
    return text.rjust(width) if numbers else text.ljust(width)


def _crowd_table(crowded: Sequence[Crowded]) -> str:
    rows = [
        [one.visitor, one.limit, str(one.sent), str(one.expected), str(one.admitted), str(one.refused)]
        for one in crowded
    ]
    return table(["visitor", "limit", "sent", "expected", "admitted", "refused"], rows)

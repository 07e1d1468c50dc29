"""The results of the demo, with checks of their figures, and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

__all__ = ["BAR_MS", "Changed", "Crowded", "Permits", "Report", "Spent", "table"]

BAR_MS: Final = 1000
"""Maximum time in which the permit of a killed process is released."""


@dataclass(frozen=True, slots=True)
class Crowded:
    """Results of the simultaneous requests of a visitor."""

    visitor: str
    limit: str
    sent: int
    expected: int
    admitted: int
    refused: int

    def problems(self) -> list[str]:
        """Return a sentence for each wrong figure."""
        if (self.admitted, self.refused) == (self.expected, self.sent - self.expected):
            return []
        return [
            f"{self.visitor}: {self.expected} of {self.sent} requests should have been allowed and the rest rejected, "
            f"but {self.admitted} were allowed and {self.refused} rejected"
        ]


@dataclass(frozen=True, slots=True)
class Changed:
    """How one process applied a changed limit: its responses to requests sent after the admin saved the change.

    `first_right` is the number of the first right response, from 1, or 0 without one; `right` of `answers` were right.
    """

    change: str
    process: int
    first_right: int
    after_ms: float
    right: int
    answers: int

    def problems(self) -> list[str]:
        """Return a sentence for each wrong figure."""
        if self.first_right == 1 and self.right == self.answers:
            return []
        return [
            f"{self.change}: process {self.process} applied it in {self.right} of {self.answers} responses, not in all"
        ]


@dataclass(frozen=True, slots=True)
class Permits:
    """Results for the permits of a killed process."""

    permits: int
    killed: int
    refused_before: bool
    back_ms: float
    refused_meanwhile: int
    came_back: int

    def problems(self) -> list[str]:
        """Return a sentence for each wrong figure."""
        found = []
        if not self.refused_before:
            found.append(f"while {self.permits} of {self.permits} permits were in use, another one was granted")
        if self.came_back != 1:
            found.append(f"1 permit of process {self.killed} should have been released, not {self.came_back}")
        if self.back_ms > BAR_MS:
            found.append(f"the permit was released after {self.back_ms:.0f} ms, later than {BAR_MS} ms")
        return found


@dataclass(frozen=True, slots=True)
class Spent:
    """Used tokens of a region."""

    region: str
    capacity: int
    expected: int
    used: int

    def problems(self) -> list[str]:
        """Return a sentence for each wrong figure."""
        if self.used == self.expected:
            return []
        return [f"region {self.region}: {self.expected} tokens should have been used, not {self.used}"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What the tokens of a client cost in US dollars."""

    client: str
    expected: Decimal | int
    amount: Decimal

    def problems(self) -> list[str]:
        """Return a sentence if the amount is wrong by as little as a millionth."""
        if self.amount == self.expected:
            return []
        return [f"{self.client}: the tokens should cost {self.expected} USD, not {self.amount}"]


@dataclass(frozen=True, slots=True)
class Report:
    """All results of a run."""

    crowded: Sequence[Crowded]
    served: dict[int, int]
    """Number of requests by the process that responded."""
    changed: Sequence[Changed]
    afterwards: Crowded
    """Results after the changes, with the limit slightly above its usage."""
    permits: Permits
    asked: Sequence[Crowded]
    """Results of the calls of tenants through the gateway."""
    spent: Sequence[Spent]
    costs: Sequence[Cost]
    processes: int
    seconds: float

    def problems(self) -> list[str]:
        """Return a sentence for each wrong figure."""
        parts: list[Crowded | Changed | Permits | Spent | Cost] = [
            *self.crowded,
            *self.changed,
            self.afterwards,
            self.permits,
        ]
        parts += [*self.asked, *self.spent, *self.costs]
        found = [problem for part in parts for problem in part.problems()]
        if len(self.served) != self.processes:
            found.append(f"{self.processes} server processes should have responded, not {len(self.served)}")
        return found

    def text(self) -> str:
        """Return the report as text."""
        return f"{self._crowd_text()}\n\n{self._change_text()}\n\n{self._permit_text()}\n\n{self._gateway_text()}"

    def _crowd_text(self) -> str:
        served = ", ".join(f"process {process}: {count} requests" for process, count in sorted(self.served.items()))
        heading = "Simultaneous requests; the limits were set in the admin"
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
        heading = "A limit is changed in the admin during requests; times are from the response of the admin"
        changes = table(["change", "process", "first right response", "after ms", "right responses"], rows)
        used = "Usage before and between the changes still counts afterwards"
        return f"{heading}\n{changes}\n\n{used}\n{_crowd_table([self.afterwards])}"

    def _permit_text(self) -> str:
        permit = self.permits
        return (
            f"Each process has one of the permits, and process {permit.killed} is killed\n"
            f"  another request before: {'rejected' if permit.refused_before else 'ALLOWED'} (expected: rejected)\n"
            f"  permits released: {permit.came_back} (expected: 1)\n"
            f"  after: {permit.back_ms:.0f} ms (at most: {BAR_MS} ms)\n"
            f"  rejected until then: {permit.refused_meanwhile} requests"
        )

    def _gateway_text(self) -> str:
        rows = [[one.region, str(one.capacity), str(one.expected), str(one.used)] for one in self.spent]
        costs = [[cost.client, f"{cost.expected:.2f}", f"{cost.amount:.2f}"] for cost in self.costs]
        return (
            "Keys and tenants call a language model in two regions, and report the tokens of each response\n"
            f"{_crowd_table(self.asked)}\n"
            f"{table(['region', 'tokens', 'expected', 'used'], rows)}\n"
            f"{table(['client', 'expected USD', 'spend USD'], costs)}"
        )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align text in columns: numbers right, words left."""
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
    return table(["visitor", "limit", "sent", "expected", "allowed", "rejected"], rows)

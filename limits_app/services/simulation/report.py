"""What a simulation found: who would be refused, how often, by which limit and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

__all__ = ["Moment", "Refused", "Report", "Subject"]

_MINUTE: Final = 60
_STEPS: Final = (1, 5, 15, 60, 180, 360, 720, 1440, 10_080, 43_200, 525_600)
"""Minutes of one bar of a chart."""


@dataclass(slots=True)
class Refused:
    """How often one limit refused an entity on a resource, and when first and last; `never` admits such an amount."""

    resource: str
    entity: str | None
    key: str
    count: int
    first: datetime
    last: datetime
    never: int = 0


@dataclass(frozen=True, slots=True)
class Subject:
    """How often an entity asked for a resource, and was refused."""

    resource: str
    entity: str | None
    events: int
    refused: int


@dataclass(frozen=True, slots=True)
class Moment:
    """What happened from a moment until the next one."""

    start: datetime
    events: int
    refused: int


@dataclass(slots=True)
class Report:
    """Totals, subjects and refusals; minutes that had events."""

    events: int = 0
    refused_events: int = 0
    minutes: list[tuple[int, int, int]] = field(default_factory=list)
    subjects: list[Subject] = field(default_factory=list)
    _refused: dict[tuple[str, str | None, str], list[int]] = field(default_factory=dict)

    def add(self, minute: int, events: int, refused: int) -> None:
        """Count what happened in a minute since 1970."""
        if events:
            self.minutes.append((minute, events, refused))
            self.events += events
            self.refused_events += refused

    def refused(self, resource: str, entity: str | None, key: str, now_us: int, *, never: bool = False) -> None:
        """Count a refusal by one limit."""
        found = self._refused.get((resource, entity, key))
        if found is None:
            found = self._refused[resource, entity, key] = [0, now_us, now_us, 0]
        found[0] += 1
        found[2] = now_us
        found[3] += never

    def told(self, resource: str, entity: str | None, *, events: int, refused: int) -> None:
        """Count an entity on a resource."""
        self.subjects.append(Subject(resource, entity, events, refused))

    def refusals(self) -> list[Refused]:
        """Who was refused by what, most often first."""
        found = [
            Refused(*whose, count, _moment(first), _moment(last), never)
            for whose, (count, first, last, never) in self._refused.items()
        ]
        return sorted(found, key=lambda one: (-one.count, one.resource, one.entity or "", one.key))

    def chart(self, most: int = 40) -> Iterator[Moment]:
        """Give at most as many stretches of equal length, from the first event to the last."""
        if not self.minutes:
            return
        first, last = self.minutes[0][0], self.minutes[-1][0]
        step = next((step for step in _STEPS if last // step - first // step < most), (last - first) // most + 1)
        bars: dict[int, list[int]] = {bar: [0, 0] for bar in range(first // step, last // step + 1)}
        for minute, events, refused in self.minutes:
            bar = bars[minute // step]
            bar[0] += events
            bar[1] += refused
        for number, (events, refused) in bars.items():
            yield Moment(_moment(number * step * _MINUTE * 1_000_000), events, refused)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "events": self.events,
            "refused": self.refused_events,
            "entities": len(self.subjects),
            "entities_refused": sum(1 for one in self.subjects if one.refused),
            "refusals": [asdict(one) for one in self.refusals()],
            "chart": [asdict(one) for one in self.chart()],
        }


def _moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC)

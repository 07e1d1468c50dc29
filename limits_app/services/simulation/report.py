"""What a simulation found: how much would be refused, to which entities, by which limits and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from limits_app.core.amounts import Amount, from_milli

EVENTS: Final = "events"
"""What a file of events is counted in; recorded usage is counted in the units of each limit key."""
_MINUTE: Final = 60
_STEPS: Final = (1, 5, 15, 60, 180, 360, 720, 1440, 10_080, 43_200, 525_600)
"""Minutes of one bar of a chart."""


@dataclass(slots=True)
class Refused:
    """How much one limit refused an entity on a resource, and when first and last; `never` admits such an amount."""

    resource: str
    entity: str | None
    key: str
    count: Amount
    first: datetime
    last: datetime
    never: Amount = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """What happened from a moment until the next one."""

    start: datetime
    asked: Amount
    refused: Amount


@dataclass(slots=True)
class Total:
    """How much was asked for and refused; `minutes` has both in thousandths, by minutes since 1970."""

    minutes: dict[int, list[int]] = field(default_factory=dict)

    @property
    def asked(self) -> Amount:
        """How much was asked for, in units."""
        return from_milli(sum(asked for asked, _ in self.minutes.values()))

    @property
    def refused(self) -> Amount:
        """How much of that was refused, in units."""
        return from_milli(sum(refused for _, refused in self.minutes.values()))

    @property
    def share(self) -> float:
        """The refused share, from 0 to 1."""
        return self.refused / self.asked if self.refused else 0.0

    def as_dict(self) -> dict[str, Amount]:
        """The total as plain data."""
        return {"asked": self.asked, "refused": self.refused, "share": self.share}


@dataclass(slots=True)
class Report:
    """Totals of events, or of each limit key where usage was recorded; refusals; numbers of entities on resources."""

    totals: dict[str, Total] = field(default_factory=dict)
    entities: int = 0
    entities_refused: int = 0
    _refused: dict[tuple[str, str | None, str], list[int]] = field(default_factory=dict)

    def add(self, unit: str, minute: int, asked_milli: int, refused_milli: int) -> None:
        """Count the requested amount in a minute since 1970."""
        total = self.totals.get(unit)
        if total is None:
            total = self.totals[unit] = Total()
        found = total.minutes.get(minute)
        if found is None:
            found = total.minutes[minute] = [0, 0]
        found[0] += asked_milli
        found[1] += refused_milli

    def refused(
        self, resource: str, entity: str | None, key: str, now_us: int, *, milli: int, never: bool = False
    ) -> None:
        """Count what one limit refused."""
        found = self._refused.get((resource, entity, key))
        if found is None:
            found = self._refused[resource, entity, key] = [0, now_us, now_us, 0]
        found[0] += milli
        found[2] = now_us
        found[3] += milli if never else 0

    @property
    def refuses(self) -> bool:
        """Whether anything would be refused."""
        return bool(self._refused)

    def refusals(self) -> list[Refused]:
        """Rejections by entity and limit, the most frequent first."""
        found = [
            Refused(*whose, from_milli(milli), _moment(first), _moment(last), from_milli(never))
            for whose, (milli, first, last, never) in self._refused.items()
        ]
        return sorted(found, key=lambda one: (-one.count, one.resource, one.entity or "", one.key))

    @property
    def charted(self) -> str:
        """The unit of the chart: the one of which the largest share was refused."""
        return max(self.totals, key=lambda unit: self.totals[unit].share, default=EVENTS)

    def chart(self, most: int = 40) -> Iterator[Moment]:
        """Give at most as many stretches of equal length, from the first minute of `charted` to the last."""
        if not self.totals:
            return
        minutes = self.totals[self.charted].minutes
        first, last = min(minutes), max(minutes)
        step = next((step for step in _STEPS if last // step - first // step < most), (last - first) // most + 1)
        bars: dict[int, list[int]] = {bar: [0, 0] for bar in range(first // step, last // step + 1)}
        for minute, (asked, refused) in minutes.items():
            bar = bars[minute // step]
            bar[0] += asked
            bar[1] += refused
        for number, (asked, refused) in bars.items():
            yield Moment(_moment(number * step * _MINUTE * 1_000_000), from_milli(asked), from_milli(refused))

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "totals": {unit: total.as_dict() for unit, total in self.totals.items()},
            "entities": self.entities,
            "entities_refused": self.entities_refused,
            "refusals": [asdict(one) for one in self.refusals()],
            "charted": self.charted,
            "chart": [asdict(one) for one in self.chart()],
        }


def _moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC)

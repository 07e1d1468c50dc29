"""What a replay reports: totals, rejections by entity and limit, costs, and a chart over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from limits_app.engine import (
    CALL_KEYS,
    MICRO,
    MILLI,
    MINUTE,
    SECOND_US,
    Amount,
    Prices,
    cost_of,
    exact_decimal,
    units_of_usage,
)
from limits_app.services.simulation.events import RequestedMilli

EVENTS: Final = "events"
"""What a file of events is counted in; recorded usage is counted in the units of each limit key."""
_STEPS: Final = (1, 5, 15, 60, 180, 360, 720, 1440, 10_080, 43_200, 525_600)
"""Minutes of one bar of a chart."""


@dataclass(slots=True)
class RefusedLimit:
    """How much one limit refused an entity on a resource, and when first and last; `never` admits such an amount."""

    resource: str
    entity: str | None
    key: str
    count: Amount
    first: datetime
    last: datetime
    never: Amount = 0


@dataclass(frozen=True, slots=True)
class ReplayedMoment:
    """What happened from a moment until the next one."""

    start: datetime
    asked: Amount
    refused: Amount


@dataclass(slots=True)
class Total:
    """How much was asked for and refused of a unit; `minutes` has both as usage has them, by minutes since 1970."""

    unit: str
    minutes: dict[int, list[int]] = field(default_factory=dict)

    @property
    def asked(self) -> Amount:
        """How much was asked for, in units."""
        return units_of_usage(self.unit, sum(asked for asked, _ in self.minutes.values()))

    @property
    def refused(self) -> Amount:
        """How much of that was refused, in units."""
        return units_of_usage(self.unit, sum(refused for _, refused in self.minutes.values()))

    @property
    def share(self) -> float:
        """The refused share, from 0 to 1."""
        return self.refused / self.asked if self.refused else 0.0

    def as_dict(self) -> dict[str, Amount]:
        """The total as plain data."""
        return {"asked": self.asked, "rejected": self.refused, "share": self.share}


@dataclass(slots=True)
class SimulationReport:
    """Totals of events, or of each limit key where usage was recorded; refusals; numbers of entities on resources."""

    totals: dict[str, Total] = field(default_factory=dict)
    entities: int = 0
    entities_refused: int = 0
    _refused: dict[tuple[str, str | None, str], list[int]] = field(default_factory=dict)
    _costs: dict[str, list[Fraction]] = field(default_factory=dict)

    def cost(self, prices: Prices, asked: RequestedMilli, refused: RequestedMilli, *, calls: int = 0) -> None:
        """Count what the requested amounts cost, and the rejected ones; `calls` are made without naming them."""
        for index, amounts in enumerate((asked, refused)):
            for currency, amount in costs_of(prices, amounts, calls=calls if amounts or not index else 0).items():
                self._costs.setdefault(currency, [Fraction(0), Fraction(0)])[index] += amount

    @property
    def costs(self) -> dict[str, tuple[Decimal, Decimal]]:
        """What everything would have cost, and the rejected part of it, by currency."""
        return {
            currency: (exact_decimal(asked), exact_decimal(refused))
            for currency, (asked, refused) in sorted(self._costs.items())
        }

    def add(self, unit: str, minute: int, asked_milli: int, refused_milli: int) -> None:
        """Count the requested amount in a minute since 1970."""
        total = self.totals.get(unit)
        if total is None:
            total = self.totals[unit] = Total(unit)
        point = total.minutes.get(minute)
        if point is None:
            point = total.minutes[minute] = [0, 0]
        point[0] += asked_milli
        point[1] += refused_milli

    def refused(
        self, resource: str, entity: str | None, key: str, now_us: int, *, milli: int, never: bool = False
    ) -> None:
        """Count what one limit refused."""
        refusal = self._refused.get((resource, entity, key))
        if refusal is None:
            refusal = self._refused[resource, entity, key] = [0, now_us, now_us, 0]
        refusal[0] += milli
        refusal[2] = now_us
        refusal[3] += milli if never else 0

    @property
    def refuses(self) -> bool:
        """Whether anything would be refused."""
        return bool(self._refused)

    def refusals(self) -> list[RefusedLimit]:
        """Rejections by entity and limit, the most frequent first."""
        refusals = [
            RefusedLimit(*whose, self._units(whose, milli), _moment(first), _moment(last), self._units(whose, never))
            for whose, (milli, first, last, never) in self._refused.items()
        ]
        return sorted(
            refusals, key=lambda refusal: (-refusal.count, refusal.resource, refusal.entity or "", refusal.key)
        )

    def _units(self, whose: tuple[str, str | None, str], milli: int) -> Amount:
        """Rejected usage in units; of events, their number."""
        return units_of_usage(EVENTS if EVENTS in self.totals else whose[2], milli)

    @property
    def charted(self) -> str:
        """The unit of the chart: the one of which the largest share was refused."""
        return max(self.totals, key=lambda unit: self.totals[unit].share, default=EVENTS)

    def chart(self, most: int = 40) -> Iterator[ReplayedMoment]:
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
            amounts = units_of_usage(self.charted, asked), units_of_usage(self.charted, refused)
            yield ReplayedMoment(_moment(number * step * MINUTE * SECOND_US), *amounts)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "totals": {unit: total.as_dict() for unit, total in self.totals.items()},
            "entities": self.entities,
            "entities_rejected": self.entities_refused,
            "rejections": [asdict(refusal) for refusal in self.refusals()],
            "costs": {
                currency: {"asked": f"{asked:f}", "rejected": f"{refused:f}"}
                for currency, (asked, refused) in self.costs.items()
            },
            "charted": self.charted,
            "chart": [
                {"start": point.start, "asked": point.asked, "rejected": point.refused} for point in self.chart()
            ],
        }


def costs_of(prices: Prices, requested: RequestedMilli, *, calls: int = 0) -> dict[str, Fraction]:
    """What amounts cost by currency, with those under the currencies themselves."""
    amounts = dict(requested)
    costs: dict[str, Fraction] = {}
    for price in prices:
        milli = amounts.get(price.unit, calls if price.unit in CALL_KEYS else 0)
        costs[price.currency] = costs.get(price.currency, Fraction(0)) + cost_of(milli, price)
    for currency in costs:
        costs[currency] += Fraction(amounts.get(currency, 0), MICRO * MILLI)
    return costs


def _moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds // SECOND_US, UTC)

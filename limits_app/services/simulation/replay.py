"""Replay: events in their order and time against proposed limits, decided by the engine, and the report."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Any, Final

from limits_app import engine
from limits_app.engine import (
    CALL_KEYS,
    MICRO,
    MILLI,
    Amount,
    Claim,
    PlanShape,
    Prices,
    Record,
    Scope,
    ScopedLimits,
    cost_of,
    exact_decimal,
    given_currency,
    new_record,
    plan_for,
    units_of_usage,
)
from limits_app.services.simulation.events import SimulatedRequest, Wanted
from limits_app.services.simulation.proposal import Proposal, Tried

EVENTS: Final = "events"
"""What a file of events is counted in; recorded usage is counted in the units of each limit key."""
_MINUTE: Final = 60
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

    def cost(self, prices: Prices, asked: Wanted, refused: Wanted, *, calls: int = 0) -> None:
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
            yield ReplayedMoment(_moment(number * step * _MINUTE * 1_000_000), *amounts)

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


def costs_of(prices: Prices, requested: Wanted, *, calls: int = 0) -> dict[str, Fraction]:
    """What amounts cost by currency, with those under the currencies themselves."""
    amounts = dict(requested)
    costs: dict[str, Fraction] = {}
    for price in prices:
        milli = amounts.get(price.unit, calls if price.unit in CALL_KEYS else 0)
        costs[price.currency] = costs.get(price.currency, Fraction(0)) + cost_of(milli, price)
    for currency in costs:
        costs[currency] += Fraction(amounts.get(currency, 0), MICRO * MILLI)
    return costs


def _as_requested(recorded: Wanted, tried: Tried) -> Wanted:
    """Recorded usage by the keys of requests: without money that was charged for units, which is charged again."""
    amounts = dict(recorded)
    for price in tried.prices:
        amounts.pop(price.currency, None)
    for key, milli in recorded:
        name = given_currency(key) or tried.requested_as.get(key, key)
        if name != key:
            del amounts[key]
            amounts[name] = milli if given_currency(key) else amounts.get(name, milli)
    return tuple(amounts.items())


def _moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC)


RefusalKey = tuple[Any, ...]
"""A scope: a resource and an entity, or a resource, None and the key of a limit that all share."""

_MOST_AMOUNTS: Final = 65_536
_MINUTE_US: Final = 60_000_000


class RequestForm:
    """One form of request under the limits of an entity: its plan, and the scope of each record.

    A scope is None for the requesting entity.
    """

    def __init__(self, tried: Tried, requested: Wanted, *, implied: bool, holds: bool) -> None:
        named = {key for key, _ in requested}
        left_out = set()
        scoped = []
        for number, (_, schema, prices) in enumerate(tried.parts):
            part = ScopedLimits(Scope(f"simulation:{number}"), schema, prices=prices)
            scoped.append(part)
            for rule in schema.rules:
                key = part.keys_of(rule)[0]
                if (rule.is_permit and not holds) or (key not in named and not implied):
                    left_out.add(key)
        self.plan = plan_for(scoped, named, left_out=left_out)
        self.keys = [tried.parts[position][0] for position in self.plan.shape.positions]
        self._amounts: dict[Wanted, tuple[list[int], tuple[str, ...]]] = {}

    def amounts(self, key_amounts: Wanted) -> tuple[list[int], tuple[str, ...]]:
        """Return the amounts of a request in parts, and the keys that can never admit as much."""
        amounts = self._amounts.get(key_amounts)
        if amounts is None:
            requested = dict(key_amounts)
            parts = []
            for limit in self.plan.shape.limits:
                milli = requested.get(limit.key, MILLI) if limit.keys else 0
                parts.append(milli * limit.rule.parts_per_unit // MILLI)
            parts, _ = self.plan.shape.charged(parts)
            limits = zip(self.plan.shape.limits, parts, strict=True)
            never = [limit.rule.key for limit, amount in limits if amount > limit.rule.most_parts]
            amounts = parts, tuple(dict.fromkeys(never))
            if len(self._amounts) < _MOST_AMOUNTS:
                self._amounts[key_amounts] = amounts
        return amounts


class Road:
    """One entity on one resource: its limits, and whether anything was rejected."""

    __slots__ = ("forms", "refused", "tried")

    def __init__(self, tried: Tried, forms: dict[object, RequestForm]) -> None:
        self.tried = tried
        self.forms = forms
        self.refused = False


def replay(
    events: Iterable[SimulatedRequest],
    proposal: Proposal,
    *,
    decided: Callable[[SimulatedRequest, bool], object] | None = None,
) -> SimulationReport:
    """Decide on every event, in order, and report the rejections by entity, limit and time.

    The requested amounts count as used, and rejected requests are not repeated. `decided` is called for each decision.
    Recorded usage is many requests at once: as much as fits is admitted, and the report counts the rest by limit key.
    """
    machine = _Machine(proposal)
    for event in events:
        admitted = machine.decide(event)
        if decided is not None:
            decided(event, admitted)
    return machine.finish()


class _Machine:
    """The records of all scopes, and the permits that are held."""

    def __init__(self, proposal: Proposal) -> None:
        self.report = SimulationReport()
        self._proposal = proposal
        self._records: dict[RefusalKey, Record] = {}
        self._roads: dict[tuple[str, str | None], Road] = {}
        self._forms: dict[int, tuple[Tried, dict[object, RequestForm]]] = {}
        self._held: list[tuple[int, int, Claim, list[RefusalKey]]] = []
        self._grants = 0
        self._rest = Counter[str]()
        """The rejected part of recorded usage."""

    def decide(self, event: SimulatedRequest) -> bool:
        """Charge an event, recorded usage as far as it fits; return whether all of it was admitted."""
        minute, report = event.now_us // _MINUTE_US, self.report
        tried = self._road_at(event).tried
        if not event.implied:
            event = event._replace(wanted=_as_requested(event.wanted, tried))
        if event.implied:
            keys, never = self._charge(event)
            refused = dict.fromkeys(keys, MILLI)
            report.add(EVENTS, minute, MILLI, MILLI if refused else 0)
            report.cost(tried.prices, event.wanted, event.wanted if refused else (), calls=MILLI)
        else:
            refused, never, self._rest = Counter(), False, Counter()
            self._charge_parts(event, refused)
            for key, milli in event.wanted:
                report.add(key, minute, milli, refused[key])
            report.cost(tried.prices, event.wanted, tuple(self._rest.items()))
        road = self._roads[event.resource, event.entity]
        for key, milli in refused.items():
            road.refused = True
            report.refused(event.resource, event.entity, key, event.now_us, milli=milli, never=never)
        return not refused

    def _charge_parts(self, event: SimulatedRequest, refused: Counter[str]) -> Sequence[str]:
        """Charge as much of an event as fits, add the rest to `refused`, and return the keys that reject it.

        An event is halved until its smallest amount is one unit, which may be one request.
        """
        keys, _ = self._charge(event)
        if not keys:
            return ()
        halves = {key: milli // MILLI // 2 * MILLI for key, milli in event.wanted}
        rest = event.wanted
        if all(halves.values()):
            keys = self._charge_parts(event._replace(wanted=tuple(halves.items())), refused)
            rest = tuple((key, milli - halves[key]) for key, milli in event.wanted)
            if not keys:
                return self._charge_parts(event._replace(wanted=rest), refused)
        refused.update({key: milli for key, milli in rest if key in keys})
        prices = self._road_at(event).tried.prices
        for currency in {price.currency for price in prices}.intersection(keys):
            cost = costs_of(prices, rest)[currency]
            refused[currency] += ceil(cost * MICRO) * MILLI - dict(rest).get(currency, 0)
        self._rest.update(dict(rest))
        return keys

    def _charge(self, event: SimulatedRequest) -> tuple[Sequence[str], bool]:
        """Charge an event to all scopes, or nothing; return the keys that reject it, and whether always."""
        now, resource, entity, requested, hold_us, implied = event
        while self._held and self._held[0][0] <= now:
            self._release_first()
        pair, road = (resource, entity), self._road_at(event)
        shape = (tuple([key for key, _ in requested]), implied, hold_us > 0)
        form = road.forms.get(shape)
        if form is None:
            form = road.forms[shape] = RequestForm(road.tried, requested, implied=implied, holds=hold_us > 0)
        amounts, never = form.amounts(requested)
        claim = Claim(form.plan, amounts)
        keys = [pair if key is None else key for key in form.keys]
        if never:
            return never, True
        if not self._admits(claim, keys, now):
            return tuple(dict.fromkeys([key for _, key in claim.refusal()[0]])), False
        if claim.shape.permits:
            ends = now + min([hold_us, *[limit.rule.hold_us for limit in claim.shape.permits]])
            heapq.heappush(self._held, (ends, self._grants, claim, keys))
        return (), False

    def finish(self) -> SimulationReport:
        """Count the entities, and return the report."""
        self.report.entities = len(self._roads)
        self.report.entities_refused = sum(road.refused for road in self._roads.values())
        return self.report

    def _admits(self, claim: Claim, keys: list[RefusalKey], now: int) -> bool:
        records = self._load(claim.shape, keys, now)
        self._grants += 1
        admitted = engine.charge(claim, records, now)
        if admitted:
            self._records.update(zip(keys, records, strict=True))
        return admitted

    def _release_first(self) -> None:
        """Return the permits that are due first."""
        now, _, claim, keys = heapq.heappop(self._held)
        records = [self._records[key] for key in keys]
        engine.settle(claim, records, now, claim.shape.changes({}, claim.amounts))

    def _load(self, shape: PlanShape, keys: list[RefusalKey], now: int) -> list[Record]:
        """Return the records of scopes; changed limits keep their recorded use."""
        records = []
        for key, schema in zip(keys, shape.schemas, strict=True):
            record = self._records.get(key)
            if record is None:
                record = new_record(schema)
            elif record.schema is not schema:
                record = engine.carry_over(record, schema, now)
            records.append(record)
        return records

    def _road_at(self, event: SimulatedRequest) -> Road:
        """The limits of an event at its time."""
        pair = (event.resource, event.entity)
        road = self._roads.get(pair)
        return self._road(pair, event.now_us) if road is None or event.now_us >= road.tried.until_us else road

    def _road(self, pair: tuple[str, str | None], now: int) -> Road:
        """Find the limits from now on; entities with the same limits share their forms of requests."""
        tried = self._proposal.tried(*pair, now)
        _, forms = self._forms.setdefault(id(tried), (tried, {}))
        road = self._roads.get(pair)
        if road is None:
            road = self._roads[pair] = Road(tried, forms)
        road.tried, road.forms = tried, forms
        return road

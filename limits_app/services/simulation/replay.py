"""Replay: events in their order and time against proposed limits, decided by the engine."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from typing import Any, Final

from limits_app import engine
from limits_app.engine import (
    MICRO,
    MILLI,
    Claim,
    PlanShape,
    Record,
    Scope,
    ScopedLimits,
    given_currency,
    new_record,
    plan_for,
)
from limits_app.services.simulation.events import RequestedMilli, SimulatedRequest
from limits_app.services.simulation.proposal import Proposal, Tried
from limits_app.services.simulation.simulation_report import EVENTS, SimulationReport, costs_of


def _as_requested(recorded: RequestedMilli, tried: Tried) -> RequestedMilli:
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


RefusalKey = tuple[Any, ...]
"""A scope: a resource and an entity, or a resource, None and the key of a limit that all share."""

_MOST_AMOUNTS: Final = 65_536
_MINUTE_US: Final = 60_000_000


class RequestForm:
    """One form of request under the limits of an entity: its plan, and the scope of each record.

    A scope is None for the requesting entity.
    """

    def __init__(self, tried: Tried, requested: RequestedMilli, *, implied: bool, holds: bool) -> None:
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
        self._amounts: dict[RequestedMilli, tuple[list[int], tuple[str, ...]]] = {}

    def amounts(self, key_amounts: RequestedMilli) -> tuple[list[int], tuple[str, ...]]:
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
            event = event._replace(requested=_as_requested(event.requested, tried))
        if event.implied:
            keys, never = self._charge(event)
            refused = dict.fromkeys(keys, MILLI)
            report.add(EVENTS, minute, MILLI, MILLI if refused else 0)
            report.cost(tried.prices, event.requested, event.requested if refused else (), calls=MILLI)
        else:
            refused, never, self._rest = Counter(), False, Counter()
            self._charge_parts(event, refused)
            for key, milli in event.requested:
                report.add(key, minute, milli, refused[key])
            report.cost(tried.prices, event.requested, tuple(self._rest.items()))
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
        halves = {key: milli // MILLI // 2 * MILLI for key, milli in event.requested}
        rest = event.requested
        if all(halves.values()):
            keys = self._charge_parts(event._replace(requested=tuple(halves.items())), refused)
            rest = tuple((key, milli - halves[key]) for key, milli in event.requested)
            if not keys:
                return self._charge_parts(event._replace(requested=rest), refused)
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

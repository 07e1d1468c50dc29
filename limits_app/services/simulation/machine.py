"""Replaying: events, one after the other in their own time, against proposed limits, as a store would decide."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from limits_app.core.algorithms import Rule
from limits_app.core.amounts import MILLI
from limits_app.core.record import Schema
from limits_app.core.limits import MeteredLimit
from limits_app.core.unrolled import Record, Take, taker
from limits_app.services.simulation.events import Event, Wanted
from limits_app.services.simulation.proposal import Proposal, Tried
from limits_app.services.simulation.report import Report

__all__ = ["replay"]

Key = tuple[Any, ...]
"""A scope: a resource and an entity, or a resource, None and the key of a limit that all share."""

Amounts = tuple[tuple[int, ...], tuple[str, ...]]

_MOST_AMOUNTS: Final = 65_536
_MINUTE_US: Final = 60_000_000


class Ask(NamedTuple):
    """One limit that a request takes from, in a scope (None: that of the entity which asks)."""

    whose: Key | None
    layout: Schema
    place: int
    rule: Rule


class Way:
    """One shape of request to what holds for an entity: what it takes from, and how."""

    def __init__(self, tried: Tried, wanted: Wanted, *, implied: bool, held: bool) -> None:
        named = {key for key, _ in wanted}
        self.asks = [
            Ask(whose, layout, index, rule)
            for whose, layout in tried.parts
            for index, rule in enumerate(layout.rules)
            if (rule.key in named or (implied and not isinstance(rule.limit, MeteredLimit)))
            and (held or not rule.is_permit)
        ]
        self.parts: list[tuple[Key | None, Schema, Take]] = []
        for whose, layout in tried.parts:
            asked = {ask.place: place for place, ask in enumerate(self.asks) if ask.whose == whose}
            if asked:
                self.parts.append((whose, layout, taker(layout.rules, asked, len(self.asks))))
        self.permits = [(place, ask) for place, ask in enumerate(self.asks) if ask.rule.is_permit]
        self._read: dict[Wanted, Amounts] = {}

    def amounts(self, wanted: Wanted) -> Amounts:
        """The amounts of a request in parts of each limit, and the keys that can never admit as much."""
        found = self._read.get(wanted)
        if found is None:
            asked = dict(wanted)
            parts = tuple([asked.get(ask.rule.key, MILLI) * ask.rule.parts_per_unit // MILLI for ask in self.asks])
            never = [ask.rule.key for ask, part in zip(self.asks, parts, strict=True) if part > ask.rule.most_parts]
            found = parts, tuple(dict.fromkeys(never))
            if len(self._read) < _MOST_AMOUNTS:
                self._read[wanted] = found
        return found


class Road:
    """One entity on one resource: what holds for it, and how often it came and was refused."""

    __slots__ = ("events", "refused", "tried", "ways")

    def __init__(self, tried: Tried, ways: dict[object, Way]) -> None:
        self.tried = tried
        self.ways = ways
        self.events = 0
        self.refused = 0


def replay(
    events: Iterable[Event], proposal: Proposal, *, decided: Callable[[Event, bool], object] | None = None
) -> Report:
    """Decide about every event, in order, and report who would be refused, how often, by what and when.

    What is requested counts as used, and what is refused is not asked for again.
    `decided` is told of each decision.
    """
    machine = _Machine(proposal)
    minute, seen, refused = -1, 0, 0
    for event in events:
        if event.now_us // _MINUTE_US != minute:
            machine.report.add(minute, seen, refused)
            minute, seen, refused = event.now_us // _MINUTE_US, 0, 0
        admitted = machine.decide(event)
        seen += 1
        refused += not admitted
        if decided is not None:
            decided(event, admitted)
    machine.report.add(minute, seen, refused)
    machine.finish()
    return machine.report


class _Machine:
    """The states of all scopes, and the permits that are held."""

    def __init__(self, proposal: Proposal) -> None:
        self.report = Report()
        self._proposal = proposal
        self._records: dict[Key, Record] = {}
        self._roads: dict[tuple[str, str | None], Road] = {}
        self._ways: dict[int, tuple[Tried, dict[object, Way]]] = {}
        self._held: list[tuple[int, int, Key, str, int]] = []
        self._grants = 0

    def decide(self, event: Event) -> bool:
        """Admit an event, and charge it to all scopes, or refuse it and charge nothing."""
        now, resource, entity, wanted, hold_us, implied = event
        while self._held and self._held[0][0] <= now:
            self._give_back()
        pair = (resource, entity)
        road = self._roads.get(pair)
        if road is None or now >= road.tried.until_us:
            road = self._road(pair, now)
        road.events += 1
        shape = (tuple([key for key, _ in wanted]), implied, hold_us > 0)
        way = road.ways.get(shape)
        if way is None:
            way = road.ways[shape] = Way(road.tried, wanted, implied=implied, held=hold_us > 0)
        amounts, never = way.amounts(wanted)
        if never or not self._charge(way, amounts, pair, now):
            road.refused += 1
            for key in never or self._violated(way, amounts, pair, now):
                self.report.refused(resource, entity, key, now, never=bool(never))
            return False
        if way.permits:
            self._lend(way, amounts, pair, now, hold_us=hold_us)
        return True

    def finish(self) -> None:
        """Bring together what was counted by entity."""
        for (resource, entity), road in self._roads.items():
            self.report.told(resource, entity, events=road.events, refused=road.refused)

    def _charge(self, way: Way, amounts: tuple[int, ...], pair: Key, now: int) -> bool:
        after = []
        for whose, layout, take in way.parts:
            key = pair if whose is None else whose
            charged = take(self._record(key, layout, now), now, amounts)
            if charged is None:
                return False
            after.append((key, charged))
        self._records.update(after)
        return True

    def _record(self, key: Key, layout: Schema, now: int) -> Record:
        """The states of a scope; limits that changed keep what was used."""
        record = self._records.get(key)
        if record is None:
            return (*layout.start, schema)
        return record if record[-1] is layout else (*layout.carried(record[-1], record, now), schema)

    def _violated(self, way: Way, amounts: tuple[int, ...], pair: Key, now: int) -> list[str]:
        """The keys of the limits that do not admit their amounts."""
        found = []
        for ask, amount in zip(way.asks, amounts, strict=True):
            record = self._record(pair if ask.whose is None else ask.whose, ask.layout, now)
            if ask.rule.take(record[ask.place], now, amount) is None:
                found.append(ask.rule.key)
        return list(dict.fromkeys(found))

    def _lend(self, way: Way, amounts: tuple[int, ...], pair: Key, now: int, *, hold_us: int) -> None:
        """Note when permits come back."""
        for place, ask in way.permits:
            most_us = ask.rule.hold_us
            ends = now + (hold_us if most_us is None else min(hold_us, most_us))
            self._grants += 1
            whose = pair if ask.whose is None else ask.whose
            heapq.heappush(self._held, (ends, self._grants, whose, ask.rule.key, amounts[place]))

    def _give_back(self) -> None:
        now, _, key, permit, amount = heapq.heappop(self._held)
        record = self._records[key]
        layout = record[-1]
        index = layout.index.get(permit)
        if index is not None and layout.rules[index].is_permit:
            settled = layout.rules[index].settle(record[index], now, -amount)
            self._records[key] = (*record[:index], settled, *record[index + 1 :])

    def _road(self, pair: tuple[str, str | None], now: int) -> Road:
        """Find out what holds from now on; those for whom the same holds share the ways to it."""
        tried = self._proposal.tried(*pair, now)
        _, ways = self._ways.setdefault(id(tried), (tried, {}))
        road = self._roads.get(pair)
        if road is None:
            road = self._roads[pair] = Road(tried, ways)
        road.tried, road.ways = tried, ways
        return road

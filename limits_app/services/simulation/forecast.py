"""Forecasts: the consumers that a policy would have rejected, replayed from the recorded usage by the hour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from itertools import islice
from math import ceil
from typing import Any, Final

from django.db import router

from limits_app.engine import (
    EPOCH,
    HOUR,
    HOUR_US,
    MAX_AMOUNT,
    MICRO,
    MILLI,
    SECOND_US,
    Noted,
    Rule,
    compile_rule,
    counts_money,
    from_milli,
    is_currency,
    to_milli,
    units_of_usage,
    usage_of_units,
)
from limits_app.engine.limits import CallLimit, LimitDefinition, RateLimit, ResourceLimit
from limits_app.models import BucketKind, Counted, Policy, PolicyEffect, UsagePeriod, UsageSnapshot
from limits_app.models.fields import ONE_HOUR, aware, in_site_time
from limits_app.models.usage import CappedSum
from limits_app.services.costs import spends
from limits_app.services.simulation.events import share_of
from limits_app.services.simulation.proposal import ProposedPlaces
from limits_app.services.usage_sums import Chosen
from limits_app.usage.reading import By, without_members

STEP_SECONDS: Final = 300
"""The use of an hour is taken as even: so much time at once."""

_STEP_US: Final = STEP_SECONDS * SECOND_US
_STEPS: Final = HOUR_US // _STEP_US


def can_be_replayed(limit: LimitDefinition) -> bool:
    """Whether hourly usage is enough to replay a limit; it is not for concurrency limits."""
    return not isinstance(limit, ResourceLimit)


def in_steps(limit: LimitDefinition) -> LimitDefinition:
    """The limit with a window of at least one step, since shorter bursts are not recorded."""
    if not isinstance(limit, RateLimit | CallLimit) or limit.window_seconds >= STEP_SECONDS:
        return limit
    window_milli = to_milli(limit.window_seconds, decimals=True)
    windows = -(-STEP_SECONDS * MILLI // window_milli)
    key = limit.key
    capacity = units_of_usage(key, min(usage_of_units(key, limit.capacity) * windows, MAX_AMOUNT * MILLI))
    burst = None if limit.burst is None else max(limit.burst, capacity)
    return replace(limit, capacity=capacity, window_seconds=from_milli(window_milli * windows), burst=burst)


def replay_hours(limit: LimitDefinition, recorded: Mapping[int, int]) -> dict[int, int]:
    """The amounts of hourly usage (hours since 1970) that a limit would have rejected, by hour, in thousandths.

    The limit is unused at the beginning. The part that fits is charged and the rest rejected, as for small requests.
    """
    if limit.soft or not can_be_replayed(limit):
        return {}
    rule = compile_rule(in_steps(limit), _STEP_US)
    state, refused = rule.start, {}
    for hour in sorted(recorded):
        left_out = 0
        for now, parts in _even(rule, hour, recorded[hour]):
            fits = min(parts, max(rule.ceiling_parts - rule.used(state, now), 0))
            state = rule.settle(state, now, fits)
            left_out += parts - fits
        if left_out:
            refused[hour] = left_out * MILLI // rule.parts_per_unit
    return refused


def _even(rule: Rule, hour: int, milli: int) -> Iterator[tuple[int, int]]:
    """The use of an hour in equal steps, at the end of each."""
    parts = max(milli, 0) * rule.parts_per_unit // MILLI
    for step in range(_STEPS):
        yield hour * HOUR_US + (step + 1) * _STEP_US - 1, share_of(parts, step, _STEPS)


DAYS: Final = 7
MOST: Final = 50
"""How many consumers are looked at for each limit, those with the most use."""
_FIRST_PART: Final = 200
_FURTHER_PARTS: Final = 2_000  # a query has a value for each

_FIELDS: Final = ("resource", "entity", "key")

Whose = tuple[str, ...]
"""Fields of usage, or their values."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """The usage of one consumer and its rejected part, in thousandths, by hours since 1970.

    `entity` is empty for the site itself, and None for all entities together.
    """

    resource: str
    entity: str | None
    key: str
    recorded: dict[int, int]
    refused: dict[int, int]

    @property
    def used(self) -> float:
        """The usage in units."""
        return units_of_usage(self.key, sum(self.recorded.values()))

    @property
    def lost(self) -> float:
        """The rejected part of the usage in units."""
        return units_of_usage(self.key, sum(self.refused.values()))

    @property
    def share(self) -> float:
        """The rejected share of the usage, from 0 to 1."""
        return self.lost / self.used if self.used else 0.0

    @property
    def first(self) -> datetime:
        """The first hour with a rejection."""
        return EPOCH + min(self.refused) * ONE_HOUR


@dataclass(frozen=True, slots=True)
class Forecast:
    """The consumers that a policy would have rejected, by limit, the largest loss first.

    `untold` are the keys that cannot be replayed from hourly usage; `looked_at` is the number of consumers that were
    replayed, and `is_cut` is True where there are more. `is_recorded` is False where no usage was recorded to replay,
    so that nothing is known.
    """

    since: datetime
    consumers: tuple[Consumer, ...]
    looked_at: int
    is_cut: bool
    untold: tuple[str, ...]
    is_recorded: bool = True

    def by_hour(self, key: str) -> dict[int, tuple[int, int]]:
        """The admitted and rejected amounts of the rejected consumers, by hour, in thousandths."""
        recorded: Counter[int] = Counter()
        refused: Counter[int] = Counter()
        for consumer in self.consumers:
            if consumer.key == key:
                recorded.update(consumer.recorded)
                refused.update(consumer.refused)
        return {hour: (recorded[hour] - refused[hour], refused[hour]) for hour in sorted(recorded)}


def forecast(policy: Policy, proposed: Sequence[Noted], *, now: datetime) -> Forecast:
    """Replay the usage of the last days against the proposed limits of a policy; nothing is saved.

    The policy is treated as enforced for all its entities, all the time, whatever its dates are.
    Only admitted amounts are replayed, since rejected ones were not recorded as usage.
    """
    since = now - timedelta(days=DAYS)
    if policy.effect == PolicyEffect.UNLIMITED:
        return Forecast(since, (), 0, is_cut=False, untold=())
    usage = _UsageSince(policy, since)
    untold: tuple[str, ...] = ()
    keys: list[str] = [""]
    if policy.effect == PolicyEffect.BLOCKED:
        replays = [list(_blocked(usage))]
    else:
        told = [noted for noted in proposed if can_be_replayed(noted.limit) and not noted.limit.soft]
        untold = tuple(noted.limit.key for noted in proposed if not can_be_replayed(noted.limit))
        whole = policy.counted == Counted.TOTAL
        keys = [noted.limit.key for noted in told]
        replays = [list(_replayed(noted, usage, over_all_resources=whole)) for noted in told]
    refused = [consumer for some in replays for consumer in some[:MOST] if consumer.refused]
    refused.sort(key=lambda consumer: (consumer.key, -consumer.lost, consumer.resource, consumer.entity or ""))
    looked_at = sum(len(some[:MOST]) for some in replays)
    is_cut = any(len(some) > MOST for some in replays)
    is_recorded = looked_at > 0 or any(usage.is_recorded(key) for key in keys)
    return Forecast(since, tuple(refused), looked_at, is_cut, untold, is_recorded)


class _UsageSince:
    """The usage since a time to which a policy applies; not that of entities for which another one replaces it."""

    def __init__(self, policy: Policy, since: datetime) -> None:
        self._places = ProposedPlaces(policy)
        self._has_exceptions = False
        self._chosen = Chosen(
            resource=None if policy.resource is None else policy.resource.name,
            entity=None if policy.entity is None or policy.entity.is_pattern else policy.entity.identifier,
            key=None,
            plan=None,
            period=UsagePeriod.HOUR,
            since=since,
            until=None,
        )
        snapshots = without_members(UsageSnapshot.objects.using(router.db_for_read(UsageSnapshot)).order_by())
        own = {"period": UsagePeriod.HOUR, "bucket__in": (BucketKind.ENTITY, BucketKind.SHARED)}
        if policy.resource is not None:
            own["resource"] = policy.resource.name
        if policy.entity is not None and not policy.entity.is_pattern:
            own["entity"] = policy.entity.identifier
        self._rows = snapshots.filter(**own, start__gte=in_site_time(since))

    def heaviest(self, whose: Whose, *, key: str = "", above: int = 0) -> Iterator[tuple[Whose, dict[int, int]]]:
        """The usage by the hour of consumers with more than `above` thousandths in total, the heaviest first.

        All usage with the same values of the fields `whose` is that of one consumer. Without a key, it is that of all.
        """
        rows = self._rows.filter(key=key) if key else self._rows
        totals = self._totals(rows, whose, above)
        by_consumer = {consumer: Counter[int]() for consumer, _total in totals.most_common(MOST + 1)}
        filters = {f"{field}__in": {consumer[index] for consumer in by_consumer} for index, field in enumerate(whose)}
        by_hour = self._rows.filter(**filters)
        hour_of = cache(_hour_since_1970)  # there are many rows of each
        for consumer, (start, milli) in self._hourly(by_hour, whose):
            if consumer in by_consumer:
                by_consumer[consumer][hour_of(start)] += milli
        yield from by_consumer.items()

    def _hourly(self, rows: Any, whose: Whose) -> Iterator[tuple[Whose, Sequence[Any]]]:
        """The consumer, the hour and the amount of rows to which the policy applies.

        The database adds up the rows of all entities, unless the totals had some to which it does not apply.
        """
        if "entity" in whose or self._has_exceptions:
            yield from self._by_consumer(rows.values_list(*_FIELDS, "start", "admitted_milli"), whose)
            return
        for *consumer, start, milli in rows.values_list(*whose, "start").annotate(sum=CappedSum("admitted_milli")):
            yield tuple(consumer), (start, milli)

    def is_recorded(self, key: str) -> bool:
        """Whether anything was used of a key (empty: of any), or spent in a currency."""
        if is_currency(key):
            return next(self.spent(_FIELDS, key, above=0), None) is not None
        return next(self.heaviest(_FIELDS, key=key), None) is not None

    def spent(self, whose: Whose, currency: str, *, above: int) -> Iterator[tuple[Whose, dict[int, int]]]:
        """What consumers have spent by the hour, as `heaviest`: amounts of units cost what they cost in their hour."""
        totals = Counter[Whose]()
        for consumer, _, milli in self._spends(self._chosen, (By.RESOURCE, By.ENTITY), whose, currency):
            totals[consumer] += milli
        for consumer, total in totals.most_common(MOST + 1):
            about, hours = dict(zip(whose, consumer, strict=True)), Counter[int]()
            chosen = self._chosen._replace(
                resource=about.get("resource") or self._chosen.resource,
                entity=about.get("entity") or self._chosen.entity,
            )
            if total > above:
                for other, hour, milli in self._spends(chosen, (By.RESOURCE, By.ENTITY, By.PERIOD), whose, currency):
                    hours[hour] += milli if other == consumer else 0
                yield consumer, {hour: milli for hour, milli in hours.items() if milli}

    def _spends(
        self, chosen: Chosen, by: Sequence[By], whose: Whose, currency: str
    ) -> Iterator[tuple[Whose, int, int]]:
        """The consumer, the hour and the amount of each cost in a currency, where the policy applies."""
        spent = [spend for spend in spends(chosen, by) if spend.currency == currency]
        applying = self._places.among({(spend.resource or "", spend.entity or "") for spend in spent})
        for spend in spent:
            if (spend.resource or "", spend.entity or "") in applying:
                names = {"resource": spend.resource or "", "entity": spend.entity or "", "key": currency}
                hour = 0 if spend.start is None else _hour_since_1970(spend.start)
                yield tuple([names[field] for field in whose]), hour, ceil(spend.amount * MICRO) * MILLI

    def _totals(self, rows: Any, whose: Whose, above: int) -> Counter[Whose]:
        """The totals of the consumers with more than `above`, of which the heaviest ones are among them.

        Their usage without regard to where the policy applies is known to the database, and never less. So it is asked
        for the heaviest consumers first, until the next ones cannot be among the heaviest.
        """
        bounds = rows.values_list(*whose).annotate(bound=CappedSum("admitted_milli")).filter(bound__gt=above)
        bounds = bounds.order_by("-bound", *whose)
        totals, size, first = Counter[Whose](), _FIRST_PART, 0
        if whose == _FIELDS:  # their usage is either all or nothing
            applying = islice(self._by_consumer(bounds, whose), MOST + 1)
            return Counter({consumer: total for consumer, (total,) in applying})
        while part := [*bounds[first : first + size]]:
            of_part = Counter[Whose]()
            filters = {f"{field}__in": {row[index] for row in part} for index, field in enumerate(whose)}
            by_entity = rows.filter(**filters).values_list(*_FIELDS).annotate(total=CappedSum("admitted_milli"))
            for consumer, (total,) in self._by_consumer(by_entity, whose):
                of_part[consumer] += total
            totals.update({row[:-1]: total for row in part if (total := of_part[row[:-1]]) > above})
            is_last = len(part) < size
            if is_last or (len(heaviest := totals.most_common(MOST + 1)) > MOST and heaviest[-1][1] >= part[-1][-1]):
                break
            first, size = first + size, _FURTHER_PARTS
        return totals

    def _by_consumer(self, rows: Any, whose: Whose) -> Iterator[tuple[Whose, Sequence[Any]]]:
        """The consumer, and the columns after its fields, of each row to which the policy applies."""
        indexes = [_FIELDS.index(field) for field in whose]
        rest, size = rows.iterator(), _FIRST_PART
        while part := [*islice(rest, size)]:
            applying, size = self._places.among({row[:2] for row in part}), _FURTHER_PARTS
            for row in part:
                if row[:2] in applying:
                    yield tuple(row[index] for index in indexes), row[len(_FIELDS) :]
                else:
                    self._has_exceptions = True


def _hour_since_1970(start: datetime) -> int:
    return int(aware(start).timestamp()) // HOUR


def _blocked(usage: _UsageSince) -> Iterator[Consumer]:
    """All consumers with usage."""
    for (resource, entity, key), hours in usage.heaviest(_FIELDS):
        yield Consumer(resource, entity, key, hours, {hour: milli for hour, milli in hours.items() if milli > 0})


def _replayed(proposed: Noted, usage: _UsageSince, *, over_all_resources: bool) -> Iterator[Consumer]:
    """The consumers with more usage in total than the capacity; the limit cannot reject any others."""
    limit, key = proposed.limit, proposed.limit.key
    whose = (*([] if over_all_resources else ["resource"]), *([] if proposed.shared else ["entity"]), "key")
    above = usage_of_units(key, in_steps(limit).ceiling)
    is_money = counts_money(limit)
    consumers = usage.spent(whose, key, above=above) if is_money else usage.heaviest(whose, key=key, above=above)
    for consumer, hours in consumers:
        about = dict(zip(whose, consumer, strict=True))
        yield Consumer(about.get("resource", ""), about.get("entity"), key, hours, replay_hours(limit, hours))

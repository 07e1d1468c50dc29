"""Costs: what usage costs, at the price that each unit had in the hour of its use.

The amounts of a day cost what its hours cost where a price changed within the day, and are summed up otherwise.
What a member of a pool served at a price of its own is counted for the unit, at the price of the resource, and under a
key of that member, at the difference of both prices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import compress
from operator import not_
from typing import Any, Final, NamedTuple

from django.db.models import Exists, Max, Min, Q, QuerySet
from django.utils import timezone

from limits_app.engine import (
    EPOCH,
    MEMBER_MARK,
    PricePeriod,
    UnitPrice,
    cost_of,
    exact_decimal,
    given_cost,
    given_currency,
    member_key,
)
from limits_app.models import Price, UsagePeriod, UsageSnapshot, write_alias
from limits_app.models.fields import aware
from limits_app.models.price import hour_us
from limits_app.models.snapshots import MOST_NAMES
from limits_app.policies import PriceLists, price_lists
from limits_app.services.usage_sums import (
    COSTED,
    DAY_US,
    Chosen,
    days_together,
    hours_of,
    moment_of,
    sums_by,
    sums_of_parts,
)
from limits_app.usage.reading import By, Cost, Use, Uses, columns_of, read, snapshots, sums

_MOST_ENTITIES: Final = 500
_FIELDS: Final = ("resource", "entity", "plan", "below", "start")
_ALL: Final = Q()

Group = tuple[Any, ...]
"""The bucket, the key and the columns by which usage is grouped."""
_Cost = Mapping[str, Fraction]
Costs = dict[Group, dict[str, Fraction]]
"""The costs of groups, by currency."""


@dataclass(frozen=True, slots=True)
class Spend:
    """What the usage of a client, a resource, a plan or a period costs in a currency; see `Use` for the fields."""

    currency: str
    resource: str | None
    entity: str | None
    plan: str | None
    below: bool | None
    start: datetime | None
    amount: Decimal

    def as_dict(self) -> dict[str, object]:
        """The spend as plain data, for JSON; the amount is text, so that it stays exact."""
        start = None if self.start is None else self.start.isoformat()
        return {
            "currency": self.currency,
            "resource": self.resource,
            "entity": self.entity,
            "plan": self.plan,
            "below": self.below,
            "start": start,
            "amount": f"{self.amount:f}",
        }


def cost_cells(cost: Cost | None) -> list[tuple[Decimal | None, str]]:
    """The cells of a cost in a table, an amount and its currency: a row for each currency, or one of empty cells."""
    return [*((amount, currency) for currency, amount in (cost or {}).items())] or [(None, "")]


class ClientSums(NamedTuple):
    """The sums of the usage of a client by day, and of the hours of the days in which a price changes, where read."""

    days: Sequence[Mapping[str, Any]]
    hours: Sequence[Mapping[str, Any]] | None


def sums_of_client(chosen: Chosen, by: Collection[By]) -> ClientSums:
    """The sums of the days of a client from a time up to now, and of the hours of those in which any price changes.

    It is one query, and one more for each day where prices are in another database.
    """
    days = snapshots(**chosen._asdict())
    hours = snapshots(**chosen._replace(period=UsagePeriod.HOUR)._asdict())
    prices, is_apart = Price.objects.using(write_alias()).order_by(), days.db != write_alias()
    of_changes, now = Q(pk__in=[]), timezone.now()
    for day_us in range(-(-hour_us(chosen.since or now) // DAY_US) * DAY_US, hour_us(now), DAY_US):
        start, end = moment_of(day_us), moment_of(day_us + DAY_US)
        changes = prices.filter(valid_from__gt=start, valid_from__lt=end)
        if not is_apart:
            of_changes |= Q(Exists(changes), start__gte=start, start__lt=end)
        elif changes.exists():
            of_changes |= Q(start__gte=start, start__lt=end)
    rows = [*sums(days | hours.filter(of_changes), by, "period")]
    of_hours = [row["period"] == UsagePeriod.HOUR for row in rows]
    return ClientSums([*compress(rows, map(not_, of_hours))], [*compress(rows, of_hours)])


def uses_with_costs(chosen: Chosen, by: Collection[By]) -> Uses:
    """The usage with the cost of each row."""
    return read(**chosen._asdict(), by=by).costed(partial(with_costs, chosen, by))


def with_costs(
    chosen: Chosen,
    by: Collection[By],
    uses: list[Use],
    *,
    prices: PriceLists | None = None,
    read_before: ClientSums | None = None,
) -> list[Use]:
    """Uses that were chosen and grouped by some fields, each with its cost.

    `prices`, and the sums of one client by resource and period, may have been read before.
    """
    if not uses:
        return uses
    entities = {use.entity for use in uses}
    is_few = By.ENTITY in by and len(entities) <= _MOST_ENTITIES
    only, columns = Q(entity__in=entities) if is_few else Q(), columns_of(by)
    costs = _costs(chosen, by, only, prices=prices, read_before=read_before)
    return [
        replace(use, cost=_decimals(costs.get((use.bucket.value, use.key, *[getattr(use, name) for name in columns]))))
        for use in uses
    ]


def _decimals(cost: Mapping[str, Fraction] | None) -> dict[str, Decimal]:
    return {currency: exact_decimal(amount) for currency, amount in sorted((cost or {}).items())}


def has_costs(keys: Iterable[str]) -> bool:
    """Whether usage of these limits may cost something: some are money themselves, or the site has prices."""
    return any(map(given_currency, keys)) or Price.objects.using(write_alias()).exists()


def spends(chosen: Chosen, by: Collection[By]) -> list[Spend]:
    """What the usage costs, summed up over limits: the latest period first, and in it the highest amount."""
    columns = columns_of(by)
    amounts = _added(columns, ((group, cost) for (_, _, *group), cost in _costs(chosen, by).items()))
    return sorted(amounts, key=lambda spend: aware(spend.start or EPOCH), reverse=True) if By.PERIOD in by else amounts


def spends_of_clients(chosen: Chosen) -> tuple[list[Spend], list[Spend]]:
    """`spends` by entity, and those of all entities together."""
    of_clients, of_all = list[tuple[Sequence[Any], _Cost]](), list[tuple[Sequence[Any], _Cost]]()
    for (_, _, entity, below), cost in _costs(chosen, (By.ENTITY, By.BELOW)).items():
        of_clients.append(([entity], cost))
        if not below or chosen.is_of_one:
            of_all.append(([], cost))
    return _added(columns_of([By.ENTITY]), of_clients), _added([], of_all)


def _added(columns: Sequence[str], costs: Iterable[tuple[Sequence[Any], _Cost]]) -> list[Spend]:
    """The sums of costs by the values of columns, the highest amount first."""
    sums: defaultdict[Group, Fraction] = defaultdict(Fraction)
    for group, cost in costs:
        for currency, amount in cost.items():
            sums[currency, *group] += amount
    amounts = []
    for (currency, *group), amount in sums.items():
        fields = dict.fromkeys(_FIELDS) | dict(zip(columns, group, strict=True))
        amounts.append(Spend(currency=currency, amount=exact_decimal(amount), **fields))
    return sorted(amounts, key=lambda spend: (-spend.amount, spend.currency, spend.entity or "", spend.resource or ""))


def _costs(
    chosen: Chosen,
    by: Collection[By],
    only: Q = _ALL,
    *,
    prices: PriceLists | None = None,
    read_before: ClientSums | None = None,
) -> Costs:
    """What usage costs, by group; of some rows `only`. The sums of one client by period may have been read before.

    These have a price each but for the days in which it changes, whose hours are read.
    """
    rows, columns = chosen.rows(by).filter(only), columns_of(by)
    sums = None if read_before is None else _costed(read_before)
    if sums is None and By.PERIOD in by and chosen.is_of_one:
        sums = ClientSums([*sums_by(rows, columns)], None)
    used = _used_keys(rows) if sums is None else _summed_keys(sums.days)
    costs: Costs = defaultdict(lambda: defaultdict(Fraction))
    currencies = {row.key: currency for row in used if (currency := given_currency(row.key)) is not None}
    if currencies:
        for row in sums_by(rows.filter(key__in=currencies), columns) if sums is None else sums.days:
            if row["key"] in currencies:
                costs[_group(row, columns)][currencies[row["key"]]] += given_cost(int(row["milli"]))
    history = _PriceHistory(used, prices or {})
    for row, start_us, day in history.priced(chosen, by, only, sums):
        cost, milli = costs[_group({**row, "key": history.unit_of(row["key"])}, columns, day)], int(row["milli"])
        for price in history.prices(row["resource"], row["key"], start_us):
            cost[price.currency] += cost_of(milli, price)
    return costs


def _costed(sums: ClientSums) -> ClientSums:
    """Those of the buckets of clients, with amounts as other sums have them."""
    days, hours = (
        [{**row, "milli": row["admitted"]} for row in rows or () if row["bucket"] in COSTED] for rows in sums
    )
    return ClientSums(days, hours)


def _hours_of_keys(
    hours: Iterable[Mapping[str, Any]], days: Mapping[int, Iterable[tuple[str, str]]]
) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Those sums of hours that are of some days, each for some keys of resources, with their time."""
    for row in hours:
        start_us = hour_us(row["start"])
        if (row["resource"], row["key"]) in days.get(start_us // DAY_US * DAY_US, ()):
            yield row, start_us


def _used_keys(rows: QuerySet[UsageSnapshot]) -> list[_UsedKey]:
    first_and_last = rows.order_by().values_list("resource", "key").annotate(first=Min("start"), last=Max("start"))
    return [_UsedKey(resource, key, hour_us(first), hour_us(last)) for resource, key, first, last in first_and_last]


def _summed_keys(sums: Iterable[Mapping[str, Any]]) -> list[_UsedKey]:
    """The used keys of sums that are grouped by period."""
    times: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for row in sums:
        times[row["resource"], row["key"]].append(hour_us(row["start"]))
    return [_UsedKey(resource, key, min(starts), max(starts)) for (resource, key), starts in times.items()]


def _group(row: Mapping[str, Any], columns: Sequence[str], day: datetime | None = None) -> Group:
    values = [day if name == "start" and day is not None else row[name] for name in columns]
    return (row["bucket"], row["key"], *values)


class _UsedKey(NamedTuple):
    """A key of a resource, and the first and last start of its rows, in microseconds."""

    resource: str
    key: str
    first_us: int
    last_us: int


class _MemberKey(NamedTuple):
    """The unit of a key of usage, and the member of a pool that served it; None and empty for no single member."""

    unit: str
    pool: str | None
    member: str


def _keys_of_members() -> dict[str, _MemberKey]:
    """What the keys of amounts mean that members served at prices of their own."""
    rows = Price.objects.using(write_alias()).exclude(member="").order_by()
    return {
        member_key(unit, pool, member): _MemberKey(unit, pool, member)
        for unit, pool, member in rows.values_list("unit", "resource", "member").distinct()
    }


def _negative(period: PricePeriod) -> PricePeriod:
    return period._replace(price=replace(period.price, numerator=-period.price.numerator))


class _PriceHistory:
    """The prices of used units, and the parts of the time in which none of them changes."""

    def __init__(self, used: Sequence[_UsedKey], read_before: PriceLists) -> None:
        self._of_members = _keys_of_members() if any(MEMBER_MARK in row.key for row in used) else {}
        members = {row: self._of_members.get(row.key, _MemberKey(row.key, None, "")) for row in used}
        places = {(row.resource, of_member.pool) for row, of_member in members.items()}
        unread = places - read_before.keys()
        lists = read_before | (price_lists(unread) if unread else {})
        self._periods: dict[tuple[str, str], list[PricePeriod]] = {}
        self._first_us = min((row.first_us for row in used), default=0) // DAY_US * DAY_US
        self._last_us = max((row.last_us for row in used), default=0) + DAY_US
        for row, of_member in members.items():
            prices = lists[row.resource, of_member.pool]
            periods = [*prices.periods(self._first_us, of_member.member)]
            if of_member.member:
                periods += map(_negative, prices.periods(self._first_us))
            of_unit = [period for period in periods if period.price.unit == of_member.unit]
            if of_unit:
                self._periods[row.resource, row.key] = of_unit

    def unit_of(self, key: str) -> str:
        """The unit of a key of usage."""
        return self._of_members[key].unit if key in self._of_members else key

    def prices(self, resource: str, key: str, at_us: int) -> Iterator[UnitPrice]:
        """The prices of a key in its currencies at a time."""
        for period in self._periods.get((resource, key), ()):
            if period.valid_from_us <= at_us and (period.valid_until_us is None or at_us < period.valid_until_us):
                yield period.price

    def priced(
        self, chosen: Chosen, by: Collection[By], only: Q, sums: ClientSums | None
    ) -> Iterator[tuple[Mapping[str, Any], int, datetime | None]]:
        """The sums of the chosen usage that may cost something, with the time whose price they have.

        Those of hours, for the days in which a price changes, have their day.
        """
        if not self._periods:
            return
        only &= Q(key__in={key for _, key in self._periods})
        resources = {resource for resource, _ in self._periods}
        only &= Q(resource__in=resources) if len(resources) <= MOST_NAMES else Q()
        columns, counted = columns_of(by), defaultdict[int, set[tuple[str, str]]](set)
        days = {} if chosen.period == UsagePeriod.HOUR else self._changed_days()
        for some in days_together(days):
            cuts = sorted({*some, *[change for change in self._changes() if change // DAY_US * DAY_US in some]})
            hours = (
                sums_of_parts(hours_of(chosen, by, some).filter(only), columns, cuts)
                if sums is None or sums.hours is None
                else _hours_of_keys(sums.hours, some)
            )
            for row, start_us in hours:
                day_us = start_us // DAY_US * DAY_US
                counted[day_us].add((row["resource"], row["key"]))
                yield row, start_us, moment_of(day_us)
        if sums is None:
            whole = sums_of_parts(chosen.rows(by).filter(only), columns, self._whole_parts(chosen.period, counted))
        else:
            whole = ((row, hour_us(row["start"])) for row in sums.days)
        for row, start_us in whole:
            if (row["resource"], row["key"]) not in counted.get(start_us, ()):
                yield row, start_us, None

    def _whole_parts(self, period: UsagePeriod, counted: Iterable[int]) -> list[int]:
        """The starts of the parts between changes of prices, where days that were counted by hours are parts too."""
        changes = self._changes()
        if period == UsagePeriod.DAY:
            changes = [-(-change // DAY_US) * DAY_US for change in changes]
        return sorted({self._first_us, *changes, *counted, *[day_us + DAY_US for day_us in counted]})

    def _changes(self) -> list[int]:
        """When prices change in the time of the used keys."""
        begins = {period.valid_from_us for periods in self._periods.values() for period in periods}
        return sorted(begun for begun in begins if self._first_us < begun < self._last_us)

    def _changed_days(self) -> dict[int, set[tuple[str, str]]]:
        """The days in which a price changes, with the keys of resources that it is for.

        Pruning keeps the hours of these units alone.
        """
        days: dict[int, set[tuple[str, str]]] = {}
        for resource_key, periods in self._periods.items():
            for begun in {period.valid_from_us for period in periods}:
                if begun % DAY_US and self._first_us < begun < self._last_us:
                    days.setdefault(begun // DAY_US * DAY_US, set()).add(resource_key)
        return days

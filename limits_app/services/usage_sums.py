"""Sums of usage: of chosen rows, by hours or days, and in parts of the time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any, Final, NamedTuple

from django.db.models import BigIntegerField, Case, Q, QuerySet, Value, When

from limits_app.engine import EPOCH, MICROSECOND, EntityName, unit_with_mark
from limits_app.models import BucketKind, UsagePeriod, UsageSnapshot
from limits_app.models.fields import in_site_time
from limits_app.models.patterns import begins, is_pattern
from limits_app.models.usage import CappedSum
from limits_app.models.users import entity_name
from limits_app.usage.reading import By, LimitKeys, snapshots

COSTED: Final = (BucketKind.ENTITY, BucketKind.OTHERS)
"""The buckets of clients: amounts in shared ones, and those of members, are counted for clients too."""
DAY_US: Final = timedelta(days=1) // MICROSECOND
_PARTS_TOGETHER: Final = 100
"""Of how many parts of a time, between changes of prices, the sums are read in one query.

SQLite computes at most 1,000 conditions in one expression.
"""


class Chosen(NamedTuple):
    """Which usage is read; see `services.usage.usage`."""

    resource: str | None
    entity: EntityName
    key: LimitKeys
    plan: str | None
    period: UsagePeriod
    since: datetime | None
    until: datetime | None

    def rows(self, by: Collection[By]) -> QuerySet[UsageSnapshot]:
        """The rows of clients. Counts for entities above them too is left out where it would add up."""
        rows = snapshots(**self._replace(key=None)._asdict()).filter(bucket__in=COSTED)
        if self.key is not None:
            keys = [self.key] if isinstance(self.key, str) else [*self.key]
            of_members = [begins("key", unit_with_mark(key), rows.db) for key in keys]
            rows = rows.filter(reduce(or_, of_members, Q(key__in=keys)))
        return rows if By.ENTITY in by or By.BELOW in by or self.is_of_one else rows.filter(below=False)

    @property
    def is_of_one(self) -> bool:
        """Whether it is the usage of one entity."""
        name = entity_name(self.entity)
        return name is not None and not is_pattern(name)


def sums_by(rows: QuerySet[UsageSnapshot], columns: Sequence[str]) -> QuerySet[Any, dict[str, Any]]:
    names = dict.fromkeys(("bucket", "resource", "key", *columns))
    sums: QuerySet[Any, dict[str, Any]] = rows.order_by().values(*names).annotate(milli=CappedSum("admitted_milli"))
    return sums


def _of_places(places: Iterable[tuple[str, str]]) -> Q:
    """The condition for rows of some keys of resources; most resources have the same ones."""
    keys: dict[str, set[str]] = defaultdict(set)
    for resource, key in places:
        keys[resource].add(key)
    resources: dict[frozenset[str], list[str]] = defaultdict(list)
    for resource in sorted(keys):
        resources[frozenset(keys[resource])].append(resource)
    return reduce(or_, [Q(resource__in=names, key__in=sorted(some)) for some, names in resources.items()])


def days_together(
    days: Mapping[int, Iterable[tuple[str, str]]],
) -> Iterator[dict[int, Iterable[tuple[str, str]]]]:
    """The days in parts, each small enough for one query, in order."""
    starts = sorted(days)
    for first in range(0, len(starts), _PARTS_TOGETHER):
        yield {day_us: days[day_us] for day_us in starts[first : first + _PARTS_TOGETHER]}


def hours_of(
    chosen: Chosen, by: Collection[By], days: Mapping[int, Iterable[tuple[str, str]]]
) -> QuerySet[UsageSnapshot]:
    """The rows of the hours of some days, each for some keys of resources."""
    since, until = moment_of(min(days)), moment_of(max(days) + DAY_US)
    of_days = [
        Q(_of_places(places), start__gte=moment_of(day_us), start__lt=moment_of(day_us + DAY_US))
        for day_us, places in days.items()
    ]
    hours = chosen._replace(period=UsagePeriod.HOUR, since=since, until=until)
    return hours.rows(by).filter(reduce(or_, of_days))


def sums_of_parts(
    rows: QuerySet[UsageSnapshot], columns: Sequence[str], starts: Sequence[int]
) -> Iterator[tuple[Mapping[str, Any], int]]:
    """The sums of rows in the parts of the time that begin at some times, each with that time; one query for many."""
    for first in range(0, len(starts), _PARTS_TOGETHER):
        together, later = starts[first : first + _PARTS_TOGETHER], starts[first + _PARTS_TOGETHER :]
        of_parts = rows.filter(start__gte=moment_of(together[0]))
        if later:
            of_parts = of_parts.filter(start__lt=moment_of(later[0]))
        begins_at = [When(start__gte=moment_of(start_us), then=Value(start_us)) for start_us in together[:0:-1]]
        part = Case(*begins_at, default=Value(together[0]), output_field=BigIntegerField())
        for row in sums_by(of_parts.annotate(part=part), [*columns, "part"]):
            yield row, row["part"]


def moment_of(time_us: int) -> datetime:
    return in_site_time(EPOCH + time_us * MICROSECOND)

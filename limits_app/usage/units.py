"""Usage in units as people know them: requests are one unit, whatever limits have counted them.

A request is counted once under the key of each limit that counts requests. Of the rows that one client has under these
keys for the same time, the largest has all its requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, Sum, Value, When

from limits_app.engine import KEYS_OF_REQUESTS, MEMBER_MARK, EntityName
from limits_app.engine.limits import CallLimit
from limits_app.models import UsagePeriod, UsageSnapshot
from limits_app.models.snapshots import MOST_NAMES
from limits_app.models.usage import CappedSum
from limits_app.usage.reading import By, Use, columns_of, snapshots, use_of, without_members

_REQUESTS: Final = Q(key__in=sorted(KEYS_OF_REQUESTS))
_IS_OTHER_KEY: Final = Q(key__in=sorted(KEYS_OF_REQUESTS - {CallLimit.key}))
_UNIT: Final = Case(When(_REQUESTS, then=Value(CallLimit.key)), default=F("key"))
_SAME_CLIENT: Final = ("namespace", "period", "start", "resource", "bucket", "entity", "plan", "below")


def unit_of(key: str) -> str:
    """The unit of a limit: all keys of requests are one."""
    return CallLimit.key if key in KEYS_OF_REQUESTS else key


def requests_once(uses: Iterable[Use]) -> list[Use]:
    """Usage by unit in place of limit, of uses that are grouped by all fields of a row; their order is kept."""
    merged: dict[tuple[Any, ...], Use] = {}
    for use in uses:
        unit = replace(use, key=unit_of(use.key))
        group = (unit.bucket, unit.key, unit.resource, unit.entity, unit.plan, unit.below, unit.start)
        before = merged.get(group)
        merged[group] = unit if before is None else _joined(before, unit)
    return [*merged.values()]


def _joined(use: Use, other: Use) -> Use:
    """Requests that two limits have counted: each allowed one is in the larger number, a rejected one in one number."""
    costs = [use.cost or {}, other.cost or {}]
    cost = {
        currency: sum((part.get(currency, Decimal(0)) for part in costs), Decimal(0))
        for currency in {**costs[0], **costs[1]}
    }
    return replace(use, admitted=max(use.admitted, other.admitted), refused=use.refused + other.refused, cost=cost)


def read_units(
    resource: str | None,
    entity: EntityName,
    unit: str | None,
    *,
    period: UsagePeriod,
    since: datetime | None,
    until: datetime | None,
    by: Collection[By],
    most: int | None,
) -> list[Use]:
    """Sum up usage as `reading.read` does, by unit in place of limit; `most` is the number of rows."""
    keys = None if unit is None else sorted(KEYS_OF_REQUESTS) if unit_of(unit) == CallLimit.key else [unit]
    rows = snapshots(resource, entity, keys, plan=None, period=period, since=since, until=until)
    if keys is None or any(MEMBER_MARK in key for key in keys):
        rows = without_members(rows)
    uses = _counted_once(rows, by, most)
    return _each_once(rows, by, most) if uses is None else uses


def _counted_once(rows: QuerySet[UsageSnapshot], by: Collection[By], most: int | None) -> list[Use] | None:
    """The sums, if one key has counted all requests of each of them; else None.

    Their rows are grouped by the stored key: to compute the unit of each row takes longer than to sum them up.
    """
    if most is not None and rows.filter(_IS_OTHER_KEY).exists():  # a smaller sum may be one of the same requests
        return None
    stored = [use_of(row) for row in _sums(rows, "key", by)[:most]]
    uses = [replace(use, key=unit_of(use.key)) for use in stored]
    groups = {(use.bucket, use.key, *[getattr(use, name) for name in columns_of(by)]) for use in uses}
    return uses if len(groups) == len(uses) else None


def _each_once(rows: QuerySet[UsageSnapshot], by: Collection[By], most: int | None) -> list[Use]:
    """The sums of the larger ones of rows that have counted the same requests, with the rejections of all."""
    of_units, columns = rows.annotate(unit=_UNIT), columns_of(by)
    uses = [use_of({**row, "key": row["unit"]}) for row in _sums(_once(of_units), "unit", by)[:most]]
    rejected = {_group(row, columns): row["denied"] for row in _sums(_of_groups(of_units, uses, by), "unit", by)}
    return [
        replace(use, refused=rejected[use.bucket.value, use.key, *[getattr(use, name) for name in columns]])
        for use in uses
    ]


def _once(rows: QuerySet[UsageSnapshot]) -> QuerySet[UsageSnapshot]:
    """The rows without those of requests that a larger row of the same client has too."""
    others = UsageSnapshot._base_manager.using(rows.db).filter(_REQUESTS)
    same = others.filter(**{name: OuterRef(name) for name in _SAME_CLIENT})
    larger = Q(admitted_milli__gt=OuterRef("admitted_milli"))
    first_of_equal = Q(admitted_milli=OuterRef("admitted_milli"), key__lt=OuterRef("key"))
    return rows.exclude(_REQUESTS & Exists(same.filter(larger | first_of_equal)))


def _sums(rows: QuerySet[UsageSnapshot], column: str, by: Collection[By]) -> QuerySet[UsageSnapshot, dict[str, Any]]:
    """The sums of rows by some fields and by a column that is the key or the unit."""
    columns = columns_of(by)
    order = ["-start"] if By.PERIOD in by else []
    sums: QuerySet[UsageSnapshot, dict[str, Any]] = (
        rows.values("bucket", column, *columns)
        .annotate(admitted=CappedSum("admitted_milli"), denied=Sum("refused"))
        .order_by(*order, "-admitted", "-denied", column, "bucket", *columns)
    )
    return sums


def _of_groups(rows: QuerySet[UsageSnapshot], uses: Collection[Use], by: Collection[By]) -> QuerySet[UsageSnapshot]:
    """The rows of the entities of some uses, where they are grouped by entity and few."""
    names = {use.entity for use in uses}
    return rows.filter(entity__in=names) if By.ENTITY in by and len(names) <= MOST_NAMES else rows


def _group(row: dict[str, Any], columns: Collection[str]) -> tuple[Any, ...]:
    return (row["bucket"], row["unit"], *[row[name] for name in columns])

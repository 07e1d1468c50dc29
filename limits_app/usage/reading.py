"""Reads usage: sums of admitted amounts, and denials by minute."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, TypeVar

from django.core.exceptions import ValidationError
from django.db import connections, router
from django.db.models import QuerySet, Sum, Value
from django.db.models.functions import StrIndex

from limits_app.engine import EPOCH, MEMBER_MARK, Amount, EntityName, shown, units_of_usage
from limits_app.engine.errors import InvalidRequest
from limits_app.engine.limits import CallLimit
from limits_app.models import BucketKind, Denial, UsagePeriod, UsageSnapshot
from limits_app.models.fields import aware, in_site_time
from limits_app.models.patterns import Patterns, begins, check_pattern, is_pattern, stem_of
from limits_app.models.snapshots import batches
from limits_app.models.usage import REQUEST_ID_LENGTH, CappedSum, UsageRow
from limits_app.models.users import entity_name

LimitKeys = str | Collection[str] | None
"""One limit key, several, or all."""

Cost = Mapping[str, Decimal]
"""What usage costs, by currency."""


def storable(entity: str | None) -> str:
    """An entity identifier that every database can store, truncated to the column."""
    text = (entity or "").encode("utf-8", "backslashreplace").decode()
    return text.replace("\0", "\\x00")[: UsageSnapshot._meta.get_field("entity").max_length]


def bucket_of(*, shared: bool, member: str | None) -> BucketKind:
    """The kind of a bucket."""
    if member is not None:
        return BucketKind.MEMBER
    return BucketKind.SHARED if shared else BucketKind.ENTITY


def counted_for(*, entity: str | None, member: str | None) -> str | None:
    """The name under which a bucket is counted: the member of a pool, whoever used it, or else the entity."""
    return entity if member is None else member


def since_1970(**lapse: float) -> datetime:
    """A timestamp in the site's time zone."""
    return in_site_time(EPOCH + timedelta(**lapse))


R = TypeVar("R", bound=UsageRow)

USUAL: Final = {UsagePeriod.HOUR: timedelta(hours=48), UsagePeriod.DAY: timedelta(days=30)}
"""The default time span."""


class By(StrEnum):
    """Fields to group usage by. It is always grouped by limit, because limits have different units."""

    RESOURCE = "resource"
    ENTITY = "entity"
    LIMIT = "limit"
    PLAN = "plan"
    BELOW = "below"
    PERIOD = "period"


@dataclass(frozen=True, slots=True)
class Use:
    """The allowed amount of a limit, in its units, and the number of rejections.

    `resource`, `entity`, `plan` and `start` (of the period) are None if usage is not grouped by them.
    `entity` is empty for the site itself and for shared limits, and a member name for pools; see `bucket`. `plan`
    is the one by which the client was served, empty without one; rejections are counted without it. What is
    `below` was used by clients below the entity, and is among their usage too.
    `cost` is what the amount costs, at the prices of the hours of its use, by currency; None if it was not requested.
    """

    bucket: BucketKind
    key: str
    resource: str | None
    entity: str | None
    plan: str | None
    below: bool | None
    start: datetime | None
    admitted: Amount
    refused: int
    cost: Cost | None = None

    @property
    def refused_share(self) -> float | None:
        """The fraction of rejected requests; None for limits that do not count requests."""
        requests = self.admitted + self.refused
        return self.refused / requests if self.key == CallLimit.key and requests > 0 else None

    def as_dict(self) -> dict[str, object]:
        """The use as plain data, for JSON."""
        start = None if self.start is None else self.start.isoformat()
        cost = None if self.cost is None else {currency: f"{amount:f}" for currency, amount in self.cost.items()}
        fields = asdict(self) | {"bucket": str(self.bucket), "start": start, "cost": cost}
        del fields["refused"]
        return fields | {"rejected": self.refused, "rejected_share": self.refused_share}


class Uses:
    """A lazy sequence of usage: it queries the database for its length and for each slice.

    `with_costs` adds the costs to the uses of a slice.
    """

    def __init__(
        self,
        rows: QuerySet[UsageSnapshot, dict[str, Any]],
        with_costs: Callable[[list[Use]], list[Use]] | None = None,
    ) -> None:
        self._rows = rows
        self._with_costs = with_costs

    def __len__(self) -> int:
        return self._rows.count()

    def __getitem__(self, part: slice) -> list[Use]:
        uses = [use_of(row) for row in self._rows[part]]
        return uses if self._with_costs is None else self._with_costs(uses)

    def costed(self, with_costs: Callable[[list[Use]], list[Use]]) -> Uses:
        """The same usage with its costs."""
        return Uses(self._rows, with_costs)


def read(
    resource: str | None,
    entity: EntityName,
    key: LimitKeys,
    *,
    plan: str | None = None,
    period: UsagePeriod,
    since: datetime | None,
    until: datetime | None,
    by: Collection[By],
) -> Uses:
    """Sum up the snapshots of one period length that begin in a time range; the largest usage first in each period.

    Raises InvalidRequest for a time range outside the calendar.
    """
    rows = snapshots(resource, entity, key, plan=plan, period=period, since=since, until=until)
    return Uses(sums(without_members(rows), by))


def sums(rows: QuerySet[UsageSnapshot], by: Collection[By], *more: str) -> QuerySet[UsageSnapshot, dict[str, Any]]:
    """The sums of snapshots by limit, by some fields and by `more` columns, in the order of `read`; see `use_of`."""
    columns = [*columns_of(by), *more]
    order = ["-start"] if By.PERIOD in by else []
    summed: QuerySet[UsageSnapshot, dict[str, Any]] = (
        rows.values("bucket", "key", *columns)
        .annotate(admitted=CappedSum("admitted_milli"), denied=Sum("refused"))
        .order_by(*order, "-admitted", "-denied", "key", "bucket", *columns)
    )
    return summed


def snapshots(
    resource: str | None,
    entity: EntityName,
    key: LimitKeys,
    *,
    plan: str | None,
    period: UsagePeriod,
    since: datetime | None,
    until: datetime | None,
) -> QuerySet[UsageSnapshot]:
    """The snapshots of one period length that begin in a time range; see `read`."""
    rows = UsageSnapshot.objects.using(router.db_for_read(UsageSnapshot)).filter(period=period)
    rows = chosen(begun(rows, "start", since, until, usual=USUAL[period]), resource, entity, key)
    return rows if plan is None else rows.filter(plan=plan)


def without_members(rows: QuerySet[UsageSnapshot]) -> QuerySet[UsageSnapshot]:
    """The rows without the amounts that members of pools served at prices of their own, which others have too."""
    return rows.exclude(key__contains=MEMBER_MARK)


def columns_of(by: Collection[By]) -> list[str]:
    """The columns of the fields to group by."""
    return [column for grouping, column in _COLUMNS.items() if grouping in by]


_COLUMNS: Final = {By.RESOURCE: "resource", By.ENTITY: "entity", By.PLAN: "plan", By.BELOW: "below", By.PERIOD: "start"}


def begun(
    rows: QuerySet[R], column: str, since: datetime | None, until: datetime | None, *, usual: timedelta
) -> QuerySet[R]:
    """Filter rows by `since` <= column < `until`; without `since`, it is the time `usual` before the end.

    Raises InvalidRequest for a value that is not a datetime, and for a time range outside the calendar.
    """
    for name, moment in (("since", since), ("until", until)):
        if not isinstance(moment, datetime | None):
            raise InvalidRequest(f"{name} must be a datetime or None, not {shown(moment)}")
    if since is None:
        since = _before(datetime.now(UTC) if until is None else aware(until), usual)
    rows = rows.filter(**{f"{column}__gte": in_site_time(since)})
    return rows if until is None else rows.filter(**{f"{column}__lt": in_site_time(until)})


def _before(moment: datetime, lapse: timedelta) -> datetime:
    try:
        return moment - lapse
    except OverflowError:
        raise InvalidRequest(
            f"until must be later than the start of the calendar plus the time span, not {moment.isoformat()}"
        ) from None


def chosen(rows: QuerySet[R], resource: str | None, entity: EntityName, key: LimitKeys) -> QuerySet[R]:
    """Filter rows by resource, entity and limit keys; None matches all. An entity may be a pattern.

    Raises InvalidRequest for an entity that looks like a pattern and is not a valid one, which would match nothing.
    """
    keys = [key] if isinstance(key, str) else key
    name = entity_name(entity)
    conditions = {"resource": resource, "key__in": keys}
    rows = rows.filter(**{column: value for column, value in conditions.items() if value is not None})
    if name is None:
        return rows
    try:
        check_pattern(name)
    except ValidationError as error:
        raise InvalidRequest("; ".join(error.messages)) from error
    return of_entity(rows, storable(name))


def of_entity(rows: QuerySet[R], name: str) -> QuerySet[R]:
    """Filter rows by an entity, or by all entities that match a pattern."""
    if not is_pattern(name):
        return rows.filter(entity=name)
    matching, patterns = rows.filter(begins("entity", stem_of(name), rows.db)), Patterns([name])
    if name.endswith("*"):
        return matching
    names = matching.order_by().values_list("entity", flat=True).distinct()
    return rows.filter(entity__in=[entity for entity in names if entity in patterns])


def use_of(row: Mapping[str, Any]) -> Use:
    """Create a use from the sums of a group."""
    admitted = units_of_usage(row["key"], row["admitted"])
    group = (row.get("resource"), row.get("entity"), row.get("plan"), row.get("below"), row.get("start"))
    return Use(BucketKind(row["bucket"]), row["key"], *group, admitted, row["denied"])


@dataclass(frozen=True, slots=True)
class DenialCount:
    """Number of rejections by a limit in the minute that begins at `minute`, with the times of the first and last.

    `entity` is empty for the site itself and for shared limits, and a member name for pools; see `bucket`.
    """

    minute: datetime
    resource: str
    bucket: BucketKind
    entity: str
    key: str
    count: int
    first: datetime
    last: datetime

    @classmethod
    def of(cls, row: Denial) -> DenialCount:
        """Create it from a row."""
        bucket = BucketKind(row.bucket)
        return cls(row.minute, row.resource, bucket, row.entity, row.key, row.count, row.first, row.last)

    def as_dict(self) -> dict[str, object]:
        """The count as plain data, for JSON."""
        moments = {name: getattr(self, name).isoformat() for name in ("minute", "first", "last")}
        return asdict(self) | {"bucket": str(self.bucket)} | moments


def denied(
    resource: str | None,
    entity: EntityName,
    key: LimitKeys,
    *,
    since: datetime | None,
    until: datetime | None,
    request_id: str | None = None,
) -> QuerySet[Denial]:
    """The rows of the minutes that begin in a time range: the latest minute first, then the highest count.

    With `request_id`, those that rejected this request at any time, if it was one of the last in its minute.
    Raises InvalidRequest for a time range outside the calendar.
    """
    rows = Denial.objects.using(router.db_for_read(Denial)).all()
    if request_id is None or since or until:
        rows = begun(rows, "minute", since, until, usual=USUAL[UsagePeriod.HOUR])
    rows = chosen(rows, resource, entity, key)
    if request_id is None:
        return rows.order_by("-minute", "-count", "pk")
    index = StrIndex("request_ids", Value(request_id[:REQUEST_ID_LENGTH]))
    return rows.alias(index=index).filter(index__gt=0).order_by("-pk")  # in this order a scan needs no index


def most_rejected(*by: str, since: datetime, most: int) -> list[dict[str, Any]]:
    """The number of `rejections` since a time, by bucket and these columns; the highest numbers first."""
    rows = UsageSnapshot.objects.using(router.db_for_read(UsageSnapshot)).filter(period=UsagePeriod.HOUR, refused__gt=0)
    sums = rows.filter(start__gte=in_site_time(since)).values("bucket", *by).annotate(rejections=Sum("refused"))
    return list(sums.order_by("-rejections", *by)[:most])


def never_used(names: Iterable[str]) -> list[str]:
    """Return which of these entities have no recorded usage, sorted; none before any usage was rolled up."""
    unused = {storable(name): name for name in names}
    for batch in batches([*unused]):
        for used in _used().order_by().filter(entity__in=batch).values_list("entity", flat=True).distinct():
            del unused[used]
    return sorted(unused.values()) if unused and _used().exists() else []


def was_used(name: str) -> bool:
    """Whether an entity has recorded usage, as of the last roll-up."""
    return _used().filter(entity=storable(name)).exists()


def _used() -> QuerySet[UsageSnapshot]:
    rows = UsageSnapshot.objects.using(router.db_for_read(UsageSnapshot))
    return rows.filter(bucket=BucketKind.ENTITY).exclude(entity="")


def used_resources(most: int) -> list[str]:
    """The first resources with usage by day, in the order of their names."""
    # One look into the index for each: DISTINCT would read every row of usage.
    with connections[router.db_for_read(UsageSnapshot)].cursor() as cursor:
        cursor.execute(_USED_RESOURCES, [UsagePeriod.DAY, UsagePeriod.DAY, most])
        return [resource for (resource,) in cursor.fetchall()]


_USED_RESOURCES: Final = """
WITH RECURSIVE used (resource, number) AS (
    SELECT MIN(resource), 1 FROM limits_app_usagesnapshot WHERE period = %s AND resource > ''
    UNION ALL
    SELECT (SELECT MIN(later.resource) FROM limits_app_usagesnapshot later
            WHERE later.period = %s AND later.resource > used.resource), number + 1
    FROM used WHERE resource IS NOT NULL AND number < %s
)
SELECT resource FROM used WHERE resource IS NOT NULL ORDER BY resource
"""

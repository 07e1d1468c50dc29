"""Folding: of one-time clients only the heaviest keep their own rows, and the others are added up by kind.

One-time clients have a prefix in `prefixes.OF_REQUESTS`, such as that of addresses, API keys and sessions, and no row
in the table of entities. Their rows are exact until their hour has ended. Then those beyond the heaviest are added to
one row for each prefix, limit and period, in the bucket `others`, with the prefix as its entity. Totals stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import itemgetter, or_
from typing import Any, Final

from django.db import connections, router, transaction
from django.db.models import Case, DateTimeField, Exists, F, OuterRef, QuerySet, Value, When, Window
from django.db.models.functions import Least, RowNumber

from limits_app import conf
from limits_app.conf import ALL_USAGE
from limits_app.engine import Times
from limits_app.models import BucketKind, CollectedBatch, Denial, Entity, UsagePeriod, UsageSnapshot
from limits_app.models.fields import ONE_HOUR, aware, in_site_time
from limits_app.models.patterns import begins
from limits_app.models.prefixes import OF_REQUESTS, prefix_of
from limits_app.models.snapshots import batches
from limits_app.models.usage import ADD, EARLIEST, LATEST, PREPEND, upsert

HOUR_KEPT: Final = 1_000
"""How many rows of one-time clients an hour keeps, of usage and of rejections each."""
DAY_KEPT: Final = 3_000
"""How many rows of one-time clients a day keeps."""
_GRACE: Final = timedelta(minutes=5)
"""How long after its end an hour is folded: until then, nearly all of its counts were rolled up."""
_ROWS_AT_A_TIME: Final = 5_000

CountedRow = Mapping[str, Any]


def is_one_time(entity: str) -> bool:
    """Whether an identifier is of a kind that is folded, unless it has a row."""
    return entity.startswith(OF_REQUESTS)


def fold(*, now: datetime | None = None, hour_kept: int = HOUR_KEPT, day_kept: int = DAY_KEPT) -> int:
    """Fold the hours that have ended since the last call, and their days; returns how many rows were folded.

    `hour_kept` and `day_kept` are how many rows stay. Counts that come later make their hour be folded again. A call
    that is interrupted leaves correct totals, and the next one continues. Nothing is folded with
    `LIMITS["USAGE"] = "all"`, and where entities are in another database than usage. The rows of all namespaces in
    its tables are folded, each with those of its namespace.
    """
    using = router.db_for_write(UsageSnapshot)
    if conf.get(conf.USAGE) == ALL_USAGE or router.db_for_write(Entity) != using:
        return 0
    moment = (datetime.now(UTC) if now is None else now) - _GRACE
    ended = moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    collected = CollectedBatch.objects.using(using).filter(unfolded_since__lt=in_site_time(ended))
    unfolded = dict(collected.values_list("pk", "unfolded_since"))
    if not unfolded:
        return 0
    hours = _hours(min(filter(None, unfolded.values())), in_site_time(ended), using)
    folded = 0
    for hour in hours:
        folded += _fold(_USAGE, {"period": UsagePeriod.HOUR, "start": in_site_time(hour)}, hour_kept, using)
        minutes = {"minute__gte": in_site_time(hour), "minute__lt": in_site_time(hour + ONE_HOUR)}
        folded += _fold(_REJECTIONS, minutes, hour_kept, using)
    for day in dict.fromkeys(hour.replace(hour=0) for hour in hours):
        folded += _fold(_USAGE, {"period": UsagePeriod.DAY, "start": in_site_time(day)}, day_kept, using)
    # A batch that was collected since then may have counts of the next hour, too.
    is_later = When(collected_at__gte=in_site_time(ended), then=Value(in_site_time(ended), DateTimeField()))
    for batch in batches(unfolded):
        left = Case(is_later, default=None, output_field=DateTimeField(null=True))
        CollectedBatch.objects.using(using).filter(pk__in=batch).update(unfolded_since=left)
    return folded


def _hours(since: datetime, until: datetime, using: str) -> list[datetime]:
    """The hours in this time of which there are rows, in order: there may be a long time without any."""
    of_usage = UsageSnapshot._base_manager.using(using).filter(
        period=UsagePeriod.HOUR, start__gte=since, start__lt=until
    )
    of_rejections = Denial._base_manager.using(using).filter(minute__gte=since, minute__lt=until)
    moments = {
        *of_usage.order_by().values_list("start", flat=True).distinct(),
        *of_rejections.order_by().values_list("minute", flat=True).distinct(),
    }
    return sorted({aware(moment).astimezone(UTC).replace(minute=0) for moment in moments})


@dataclass(frozen=True, slots=True)
class _Table:
    """A table whose rows are folded: what identifies a row beside the limit and the kind of the client, and how its
    other columns are added to another row.

    `rank` is the place of a row among those of the same limit, the heaviest first.
    """

    model: type[UsageSnapshot | Denial]
    same: tuple[str, ...]
    merge: Mapping[str, str]
    add: Callable[[CountedRow, CountedRow], CountedRow]
    rank: Any

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.same, "resource", "key", "entity", *self.merge)


def _place_by(column: str) -> Window:
    return Window(RowNumber(), partition_by=[F("resource"), F("key")], order_by=[F(column).desc(), F("pk").asc()])


def _add_usage(row: CountedRow, other: CountedRow) -> CountedRow:
    return {name: row[name] + other[name] for name in ("admitted_milli", "refused")}


def _add_rejections(row: CountedRow, other: CountedRow) -> CountedRow:
    """Add the earlier row `other`."""
    merged = Times(*(row[name] for name in _TIMES)).merged(Times(*(other[name] for name in _TIMES)))
    return dict(zip(_TIMES, merged, strict=True))


_TIMES: Final = ("count", "first", "last", "request_ids")
_USAGE: Final = _Table(
    UsageSnapshot,
    ("period", "start", "plan", "below", "namespace"),
    {"admitted_milli": ADD, "refused": ADD},
    _add_usage,
    Least(_place_by("admitted_milli"), Case(When(refused__gt=0, then=_place_by("refused")), default=2**31 - 1)),
)
_REJECTIONS: Final = _Table(
    Denial,
    ("minute", "namespace"),
    {"count": ADD, "first": EARLIEST, "last": LATEST, "request_ids": PREPEND},
    _add_rejections,
    _place_by("count"),
)


def _fold(table: _Table, period: Mapping[str, Any], most: int, using: str) -> int:
    """Fold the rows of a period except for the heaviest, a few thousand in each transaction."""
    rows = _one_time(table.model._base_manager.using(using).filter(**period), using)
    if rows.count() <= most:
        return 0
    kept = {*rows.annotate(rank=table.rank).order_by("rank", "pk").values_list("pk", flat=True)[:most]}
    folded, last = 0, 0
    while keys := [*rows.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:_ROWS_AT_A_TIME]]:
        last = keys[-1]
        with transaction.atomic(using=using):
            for some in batches([key for key in keys if key not in kept]):
                folded += _fold_rows(table, some, using)
    return folded


def _one_time(rows: QuerySet[Any], using: str) -> QuerySet[Any]:
    """The rows of one-time clients."""
    rows_of_clients = Entity._base_manager.using(using).filter(identifier=OuterRef("entity"))
    kinds = reduce(or_, (begins("entity", prefix, using) for prefix in OF_REQUESTS))
    return rows.filter(kinds, ~Exists(rows_of_clients), bucket=BucketKind.ENTITY).order_by()


def _fold_rows(table: _Table, keys: Collection[Any], using: str) -> int:
    """Fold the rows of some keys; a roll-up that changes one at the same time makes its hour be folded again."""
    can_skip = connections[using].features.has_select_for_update_skip_locked
    locked = table.model._base_manager.using(using).filter(pk__in=keys).order_by("pk")
    taken = [*locked.select_for_update(skip_locked=can_skip).values("pk", *table.columns)]
    same = itemgetter(*table.same, "resource", "key")
    sums: dict[tuple[Any, ...], CountedRow] = {}
    for row in taken:
        target = (*same(row), prefix_of(row["entity"]))
        sums[target] = table.add(sums[target], row) if target in sums else row
    names = (*table.same, "resource", "key", "entity")
    added = [
        {
            **dict(zip(names, target, strict=True)),
            "bucket": BucketKind.OTHERS,
            **{name: row[name] for name in table.merge},
        }
        for target, row in sums.items()
    ]
    upsert(table.model, added, table.merge, using=using)
    folded, _ = table.model._base_manager.using(using).filter(pk__in=[row["pk"] for row in taken]).delete()
    return folded

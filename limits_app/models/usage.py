"""Tables of admitted and rejected amounts, and how rows are added to them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from django.db import connections, models
from django.utils.translation import gettext_lazy as _

from limits_app.engine import IDS_LENGTH, units_of_usage
from limits_app.models.namespaces import current_digest
from limits_app.models.plan import MAX_PLAN_LENGTH

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.sql.compiler import SQLCompiler

logger = logging.getLogger("limits_app")

REQUEST_ID_LENGTH: Final = 64

MAX_SUM: Final = models.BigIntegerField.MAX_BIGINT
"""The largest sum that is stored; a larger one is stored as this."""


class BucketKind(models.TextChoices):
    """Kinds of buckets."""

    ENTITY = "entity", _("client")
    SHARED = "shared", _("shared by all clients")
    MEMBER = "member", _("member of the pool")
    OTHERS = "others", _("all others")


class UsagePeriod(models.TextChoices):
    """Length of the period of a snapshot; days begin at midnight UTC."""

    HOUR = "hour", _("hour")
    DAY = "day", _("day")


Row = TypeVar("Row", bound=models.Model)


class CurrentNamespace(models.Expression):
    """The namespace of the request, command or task in which a query runs, as `UsageRow.namespace` has it."""

    def __init__(self) -> None:
        super().__init__(output_field=models.CharField())

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[str | int, ...]]:
        """The SQL, with its parameter."""
        return "%s", (current_digest(),)


class InNamespace(models.Manager[Row]):
    """The rows of the present namespace; `_base_manager` has all."""

    def get_queryset(self) -> models.QuerySet[Row]:
        """A query that is evaluated in the namespace in which it runs."""
        return super().get_queryset().filter(namespace=CurrentNamespace())


class UsageRow(models.Model):
    """Fields that identify a bucket; the entity is empty for the site itself and for shared limits.

    `namespace` is the digest of the namespace of its counters, so that tenants that share a table do not add up.
    """

    namespace = models.CharField(_("namespace"), max_length=32, blank=True, default=current_digest, editable=False)
    resource = models.CharField(_("resource"), max_length=64)
    bucket = models.CharField(_("bucket"), max_length=8, choices=BucketKind.choices, default=BucketKind.ENTITY)
    entity = models.CharField(_("client or member"), max_length=255, blank=True)
    key = models.CharField(_("limit"), max_length=64)

    objects = InNamespace()

    class Meta:
        abstract = True

    @property
    def whose(self) -> str:
        """The bucket in words."""
        who = self.entity or ("" if self.bucket == BucketKind.ENTITY else str(BucketKind(self.bucket).label))
        scope = f"of {self.resource}" if self.resource else "over all resources"
        return f"{self.key} {scope}" + (f" for {who}" if who else "")


class UsageSnapshot(UsageRow):
    """Allowed amount in an hour or a day, and number of rejections.

    `plan` is the name of the plan by which the client was served, empty for none; rejections are counted without it.
    What is `below` was used by clients below the entity, and is counted for these too.
    The amount is in thousandths of the unit of the limit, and of money in thousandths of a millionth. Both end at
    `MAX_SUM`.
    """

    plan = models.CharField(_("plan"), max_length=MAX_PLAN_LENGTH, blank=True)
    below = models.BooleanField(_("used by clients below it"), default=False)
    period = models.CharField(_("period"), max_length=4, choices=UsagePeriod.choices)
    start = models.DateTimeField(_("start"))
    admitted_milli = models.BigIntegerField(_("allowed, in thousandths"), default=0)
    refused = models.BigIntegerField(_("rejections"), default=0)

    class Meta(UsageRow.Meta):
        default_permissions = ("view",)
        verbose_name = _("usage")
        verbose_name_plural = _("usage")
        ordering = ["-start", "resource", "entity", "key"]
        constraints = [
            models.UniqueConstraint(
                fields=["period", "start", "resource", "key", "bucket", "entity", "plan", "below", "namespace"],
                name="limits_app_usage_once",
            ),
            models.CheckConstraint(name="limits_app_usage_period", condition=models.Q(period__in=UsagePeriod.values)),
        ]
        indexes = [
            models.Index(fields=["period", "resource", "start"], name="limits_app_usage_resource"),
            models.Index(fields=["entity", "period", "start"], name="limits_app_usage_entity"),
        ]

    def __str__(self) -> str:
        return f"{self.whose} in the {self.period} from {self.start:%Y-%m-%d %H:%M}"

    @property
    def admitted(self) -> float | int:
        """The admitted amount, in units."""
        return units_of_usage(self.key, self.admitted_milli)


class Denial(UsageRow):
    """Number of rejections by a limit in a minute, with the times of the first and last."""

    minute = models.DateTimeField(_("minute"))
    count = models.BigIntegerField(_("rejections"), default=0)
    first = models.DateTimeField(_("first"))
    last = models.DateTimeField(_("last"))
    request_ids = models.CharField(_("ids of the last requests"), max_length=IDS_LENGTH, blank=True)

    class Meta(UsageRow.Meta):
        default_permissions = ()  # the permission to view usage covers denials
        verbose_name = _("rejection")
        verbose_name_plural = _("rejections")
        ordering = ["-minute", "-count"]
        constraints = [
            models.UniqueConstraint(
                fields=["minute", "resource", "key", "bucket", "entity", "namespace"], name="limits_app_denial_once"
            )
        ]
        indexes = [
            models.Index(fields=["resource", "minute"], name="limits_app_denial_resource"),
            models.Index(fields=["entity", "minute"], name="limits_app_denial_entity"),
        ]

    def __str__(self) -> str:
        return f"{self.count} x {self.whose} in the minute {self.minute:%Y-%m-%d %H:%M}"


class EvaluationKind(models.TextChoices):
    """Why the limits of a policy are counted: in shadow mode, as a candidate, or after a promotion."""

    SHADOW = "shadow", _("shadow mode")
    CANDIDATE = "candidate", _("trial")
    PROMOTED = "promoted", _("enforced trial")


class EvaluationCount(models.Model):
    """How many requests of an hour a limit of a policy has evaluated, and how many it rejected or would have rejected.

    An empty `key` is for all limits of the policy together, where a request counts once. `candidate_id` is 0 for a
    policy in shadow mode. Policies and candidates may have been deleted.
    """

    hour = models.DateTimeField(_("hour"))
    policy_id = models.BigIntegerField(_("policy"))
    candidate_id = models.BigIntegerField(_("candidate"), default=0)
    kind = models.CharField(_("kind"), max_length=9, choices=EvaluationKind.choices)
    key = models.CharField(_("limit"), max_length=64, blank=True)
    evaluated = models.BigIntegerField(_("evaluated"), default=0)
    rejected = models.BigIntegerField(_("rejected"), default=0)

    class Meta:
        default_permissions = ()  # the permissions of policies and candidates apply
        verbose_name = _("evaluation count")
        verbose_name_plural = _("evaluation counts")
        ordering = ["-hour", "policy_id", "key"]
        constraints = [
            models.UniqueConstraint(
                fields=["candidate_id", "policy_id", "kind", "hour", "key"], name="limits_app_evaluation_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.rejected} of {self.evaluated} in the hour {self.hour:%Y-%m-%d %H:%M}"


class EvaluatedEntity(models.Model):
    """How many requests of an entity a promoted candidate has evaluated while it is watched, and how many it rejected.

    `entity` is a digest. At most 1,000 entities of a candidate are counted in each process.
    """

    candidate_id = models.BigIntegerField(_("candidate"))
    entity = models.CharField(_("entity"), max_length=32)
    evaluated = models.BigIntegerField(_("evaluated"), default=0)
    rejected = models.BigIntegerField(_("rejected"), default=0)

    class Meta:
        default_permissions = ()  # as above
        verbose_name = _("evaluated entity")
        verbose_name_plural = _("evaluated entities")
        constraints = [
            models.UniqueConstraint(fields=["candidate_id", "entity"], name="limits_app_evaluated_entity_once")
        ]

    def __str__(self) -> str:
        return f"{self.rejected} of {self.evaluated} for {self.entity}"


class CollectedBatch(models.Model):
    """The name of a batch of counts that has been added to the snapshots, so that it is not added again.

    `unfolded_since` is the earliest of its hours whose one-time clients were not folded yet.
    """

    name = models.CharField(max_length=64, primary_key=True)
    collected_at = models.DateTimeField(auto_now_add=True, db_index=True)
    unfolded_since = models.DateTimeField(null=True, db_index=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.name


_PARAMETERS: Final = {"sqlite": 900, "mysql": 16_000}
"""How many parameters a statement has at most; PostgreSQL takes all rows as one."""
_MOST_ROWS: Final = 10_000
"""How many rows a statement has at most on PostgreSQL."""

ADD: Final = (
    f"CASE WHEN {{new}} < 0 THEN CASE WHEN {{old}} < -{MAX_SUM} - {{new}} THEN -{MAX_SUM} ELSE {{old}} + {{new}} END "
    f"WHEN {{old}} > {MAX_SUM} - {{new}} THEN {MAX_SUM} ELSE {{old}} + {{new}} END"
)
"""It adds only what fits, because a database would raise an error, or go on with a fraction, and compares before."""
EARLIEST: Final = "CASE WHEN {new} < {old} THEN {new} ELSE {old} END"
LATEST: Final = "CASE WHEN {new} > {old} THEN {new} ELSE {old} END"
PREPEND: Final = f"TRIM(SUBSTR(TRIM({{joined}}), 1, {IDS_LENGTH}))"


def upsert(
    model: type[models.Model], rows: Sequence[Mapping[str, Any]], merge: Mapping[str, str], *, using: str
) -> None:
    """Insert rows, which all have the same fields; `merge` has the SQL that updates fields of rows that exist.

    The other fields identify the row: together they are a unique constraint of the model, and no two rows have the
    same. Rows are written in the order of these fields, so that concurrent writers do not deadlock. What is added ends
    at `MAX_SUM`, also where it is new.
    """
    if not rows:
        return
    names = list(rows[0])
    fields = [cast("models.Field[Any, Any]", model._meta.get_field(name)) for name in names]
    unique = [name for name in names if name not in merge]
    rows = sorted(rows, key=itemgetter(*unique))
    connection = connections[using]
    values_of = {name: [row[name] for row in rows] for name in names}
    for name in names:
        if merge.get(name) == ADD:
            values_of[name] = _capped(values_of[name], model)
    columns = [_prepared(field, values_of[field.name], connection) for field in fields]
    quote = connection.ops.quote_name
    statement = _Statement(quote(model._meta.db_table), [quote(name) for name in names], connection.vendor)
    conflict = statement.conflict([quote(name) for name in unique], {quote(name): how for name, how in merge.items()})
    types = [field.db_type(connection) or "" for field in fields]
    parameters = _PARAMETERS.get(connection.vendor)
    step = _MOST_ROWS if parameters is None else parameters // len(names)
    with connection.cursor() as cursor:
        for start in range(0, len(rows), step):
            parts = [column[start : start + step] for column in columns]
            if parameters is None:
                records = [dict(zip(names, values, strict=True)) for values in zip(*parts, strict=True)]
                cursor.execute(f"{statement.insert_records(types)} {conflict}", [json.dumps(records, default=str)])
            else:
                values = list(chain.from_iterable(zip(*parts, strict=True)))
                cursor.execute(f"{statement.insert(len(parts[0]))} {conflict}", values)


def _capped(sums: Sequence[int], model: type[models.Model]) -> list[int]:
    capped = [max(-MAX_SUM, min(number, MAX_SUM)) for number in sums]
    if capped != sums:
        logger.warning("%s: sums beyond %d, the largest that is stored, are stored as this", model.__name__, MAX_SUM)
    return capped


class CappedSum(models.Sum):
    """The sum of a column of integers; on SQLite, which raises an error for a larger one, it ends at `MAX_SUM`.

    There the upper and the lower 32 bits are summed up apart.
    """

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> tuple[str, Any]:
        high = "SUM(%(expressions)s >> 32) + (SUM(%(expressions)s & 4294967295) >> 32)"
        low = "(SUM(%(expressions)s & 4294967295) & 4294967295)"
        template = (
            f"CASE WHEN {high} >= 2147483648 THEN {MAX_SUM} WHEN {high} < -2147483648 THEN -{MAX_SUM} "
            f"ELSE (({high}) << 32) + {low} END"
        )
        return self.as_sql(compiler, connection, template=template, **context)


def _prepared(field: models.Field[Any, Any], values: Sequence[Any], connection: Any) -> list[Any]:
    """The values of a column as the database takes them; equal values, of which there are many, are prepared once."""
    prepared = {value: field.get_db_prep_save(value, connection) for value in set(values)}
    return [prepared[value] for value in values]


class _Statement:
    """The SQL of an upsert for each database; names are already quoted."""

    def __init__(self, table: str, names: Sequence[str], vendor: str) -> None:
        self._table, self._names, self._is_mysql = table, names, vendor == "mysql"

    def insert(self, rows: int) -> str:
        """The INSERT clause for a number of rows."""
        row = f"({', '.join(['%s'] * len(self._names))})"
        return f"{self._into()} VALUES {', '.join([row] * rows)}"

    def insert_records(self, types: Sequence[str]) -> str:
        """The INSERT clause for rows as JSON, whose columns have these types."""
        columns = ", ".join(f"{name} {kind}" for name, kind in zip(self._names, types, strict=True))
        return f"{self._into()} SELECT * FROM json_to_recordset(%s) AS row({columns})"  # noqa: S608 - as above

    def _into(self) -> str:
        return f"INSERT INTO {self._table} ({', '.join(self._names)})"

    def conflict(self, unique: Sequence[str], merge: Mapping[str, str]) -> str:
        """The clause for conflicts."""
        new = "VALUES({})" if self._is_mysql else "excluded.{}"
        joined = "CONCAT({new}, ' ', {old})" if self._is_mysql else "{new} || ' ' || {old}"
        merged = [
            f"{name} = {how.replace('{joined}', joined).format(old=f'{self._table}.{name}', new=new.format(name))}"
            for name, how in merge.items()
        ]
        start = "ON DUPLICATE KEY UPDATE" if self._is_mysql else f"ON CONFLICT ({', '.join(unique)}) DO UPDATE SET"
        return f"{start} {', '.join(merged)}"

"""Reading refusals: which limit refused whom in a minute, and how often."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

from django.db import router
from django.db.models import QuerySet

from limits_app.models import Bucket, Denial, Period
from limits_app.usage.reading import USUAL, begun, chosen

__all__ = ["DenialCount", "denied"]


@dataclass(frozen=True, slots=True)
class DenialCount:
    """How often one limit refused in the minute that begins at `minute`, and when `first` and `last`.

    An `entity` is empty where it is the site itself or everybody, as `bucket` says, and is the member of a pool.
    """

    minute: datetime
    resource: str
    bucket: Bucket
    entity: str
    key: str
    count: int
    first: datetime
    last: datetime

    @classmethod
    def of(cls, row: Denial) -> DenialCount:
        """What a row says."""
        bucket = Bucket(row.bucket)
        return cls(row.minute, row.resource, bucket, row.entity, row.key, row.count, row.first, row.last)

    def as_dict(self) -> dict[str, object]:
        """The count as plain data, for JSON."""
        moments = {name: getattr(self, name).isoformat() for name in ("minute", "first", "last")}
        return asdict(self) | {"bucket": str(self.bucket)} | moments


def denied(
    resource: str | None, entity: str | None, key: str | None, *, since: datetime | None, until: datetime | None
) -> QuerySet[Denial]:
    """The rows of the minutes that begin in a time, the latest minute first, and in it who was refused most.

    Raises InvalidRequest for a time that no calendar has.
    """
    rows = Denial.objects.using(router.db_for_read(Denial))
    rows = chosen(begun(rows, "minute", since, until, usual=USUAL[Period.HOUR]), resource, entity, key)
    return rows.order_by("-minute", "-count", "pk")

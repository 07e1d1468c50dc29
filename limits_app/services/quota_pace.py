"""When a client will have used up a quota, at the pace of its last 7 days."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from limits_app.engine import is_currency
from limits_app.engine.limits import QuotaLimit
from limits_app.models import TOTALS, BucketKind
from limits_app.services.clients import RECENT, spent_on
from limits_app.services.explain import ExplainedLimit
from limits_app.usage.reading import Use
from limits_app.usage.units import unit_of


def used_up_at(limit: ExplainedLimit, resource: str, uses: Iterable[Use], now: datetime) -> datetime | None:
    """The time at which a quota of a client is used up; None where its period ends before, and for other limits.

    `uses` are those of the client in the last 7 days, by day and resource; the quota is its own on a resource, or a
    total over all. A total in money is used up by what the usage costs, since totals count nothing themselves.
    """
    quota, status = limit.effective.limit, limit.status
    if not isinstance(quota, QuotaLimit) or limit.effective.shared or status is None or not status.remaining:
        return None
    in_total = limit.effective.policy.level in TOTALS
    if in_total and is_currency(quota.key):
        used = float(spent_on(uses).get(quota.key, 0))
    else:
        used = sum(
            use.admitted
            for use in uses
            if use.key == unit_of(quota.key)
            and use.bucket == BucketKind.ENTITY
            and (in_total or use.resource == resource)
        )
    # Usage of days counts from the first midnight within the 7 days on.
    since = (now - RECENT).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    if used <= 0:
        return None
    seconds = status.remaining / used * (now - since).total_seconds()
    return now + timedelta(seconds=seconds) if seconds < status.reset_after else None

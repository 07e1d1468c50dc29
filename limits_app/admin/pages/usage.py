"""The page “Usage”: allowed amounts and rejections of a limit, over time and by consumer."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib.admin import AdminSite
from django.db.models import Max
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.dateparse import parse_date
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.admin.formatting import FORMULA, Bar, amount, bar, moment, percent
from limits_app.admin.pages.common import USAGE, bring_up_to_date, check, entity_or_none, page, problem_with
from limits_app.core.errors import InvalidRequest
from limits_app.models import Bucket, CollectedBatch, Entity, Period
from limits_app.models.fields import aware
from limits_app.services.limit_words import limit_name
from limits_app.services.usage import usage
from limits_app.usage.reading import Use

_MOST_RESOURCES: Final = 50
_MOST_CONSUMERS: Final = 15


@dataclass(frozen=True, slots=True)
class Time:
    """A time to look at, in periods that are short enough to see something and few enough to draw."""

    period: Period
    since: datetime
    until: datetime

    @property
    def starts(self) -> list[datetime]:
        """When its periods begin."""
        step = timedelta(hours=1) if self.period == Period.HOUR else timedelta(days=1)
        return [self.since + number * step for number in range(-((self.since - self.until) // step))]


_SPANS: Final[dict[str, tuple[Any, int]]] = {
    "today": (_("Today"), 0),
    "yesterday": (_("Yesterday"), 1),
    "day": (_("24 hours"), 1),
    "week": (_("7 days"), 7),
    "month": (_("30 days"), 30),
    "year": (_("12 months"), 365),
}
"""Labels and numbers of days."""
_MOST_DAYS: Final = 366
_DAY: Final = timedelta(days=1)


def _time(span: str, first: str, last: str) -> Time:
    """The chosen time: dates if there are any, in UTC as days are counted; raises InvalidRequest for invalid dates.

    Today and yesterday are those of the site's time zone, by the hour.
    """
    now = datetime.now(UTC)
    hour = now.replace(minute=0, second=0, microsecond=0)
    midnight = hour.replace(hour=0)
    if first or last:
        until = (_date(last) if last else midnight) + _DAY
        since = _date(first) if first else until - _DAY
        if not _DAY <= until - since <= _MOST_DAYS * _DAY:
            said = gettext("Choose a first day that is before the last one, and at most %(most)s days.")
            raise InvalidRequest(said % {"most": _MOST_DAYS})
        return Time(Period.DAY, since, until)
    days = _SPANS[span][1]
    if span in ("today", "yesterday"):
        today = timezone.localtime(now).replace(hour=0, minute=0, second=0, microsecond=0)
        since, until = ((today - back * _DAY).astimezone(UTC).replace(minute=0) for back in (days, days - 1))
        return Time(Period.HOUR, since, hour + timedelta(hours=1) if span == "today" else until)
    if span == "day":
        return Time(Period.HOUR, hour - timedelta(hours=23), hour + timedelta(hours=1))
    return Time(Period.DAY, midnight - (days - 1) * _DAY, midnight + _DAY)


def _date(text: str) -> datetime:
    try:
        found = parse_date(text)
    except ValueError:
        found = None
    if found is None or not 1 < found.year < 9999:
        raise InvalidRequest(gettext("“%(text)s” is not a date: enter one such as 2026-01-31.") % {"text": text})
    return datetime(found.year, found.month, found.day, tzinfo=UTC)


def usage_page(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Show one limit at a time, because limits have different units; with `format=csv`, the table as a file."""
    check(request, USAGE)
    resource, entity, key = request.GET.get("resource") or None, entity_or_none(request), request.GET.get("key", "")
    first, last = request.GET.get("from", ""), request.GET.get("to", "")
    span = request.GET.get("span", "") if request.GET.get("span") in _SPANS else "day"
    context: dict[str, Any] = {
        "resource": resource or "",
        "entity": entity or "",
        "key": key,
        "span": span,
        "first": first,
        "last": last,
        "spans": [{"name": name, "label": label, "here": name == span} for name, (label, _days) in _SPANS.items()],
        "problem": problem_with(resource, entity, key, first, last),
    }
    if not context["problem"]:
        try:
            time = _time(span, first, last)
        except InvalidRequest as error:
            context["problem"] = str(error)
        else:
            bring_up_to_date()  # rejections are written immediately; allowed amounts only by a roll-up
            here = {name: context[name] for name in ("resource", "entity", "span")} | {"from": first, "to": last}
            context |= _used(resource, entity, key, time=time, here=here)
    if request.GET.get("format") == "csv" and not context["problem"]:
        return _csv(context)
    return page(site, request, "usage", title=gettext("Usage"), context=context)


def _csv(context: dict[str, Any]) -> HttpResponse:
    """The clients, or the resources of one client, as a file; no cell can be read as a formula."""
    file = HttpResponse(content_type="text/csv; charset=utf-8")
    file["Content-Disposition"] = 'attachment; filename="usage.csv"'
    rows = csv.writer(file)
    rows.writerow(["resource" if context["entity"] else "client", "name", "limit", "allowed", "rejections"])
    for use, name in context["table"]:
        label = use.resource if context["entity"] else use.entity
        cells = [label or "", name, use.key, use.admitted, use.refused]
        rows.writerow([f"'{cell}" if str(cell).startswith(FORMULA) else cell for cell in cells])
    return file


def _used(resource: str | None, entity: str | None, key: str, *, time: Time, here: dict[str, str]) -> dict[str, Any]:
    """The usage of a limit, by default of the one with the most rejections."""
    ask: dict[str, Any] = {"entity": entity, "period": time.period, "since": time.since, "until": time.until}
    of_resources = usage(by="resource", **ask)
    keys = _keys(use for use in of_resources if resource in (None, use.resource))
    key = key or next(iter(keys), "")
    chosen = {"resource": resource, "key": key, **ask}
    here = {**here, "key": key}
    clients = usage(by="entity", most=_MOST_CONSUMERS, **chosen)
    names = _names({use.entity or "" for use in clients} | {entity or ""})
    of_limit = _by_resource(use for use in of_resources if use.key == key)
    return {
        "key": key,
        "keys": keys,
        "resources": sorted(
            {use.resource for use in of_resources if use.resource} | ({resource} if resource else set())
        ),
        "chart": _chart(time, usage(by="period", **chosen), key),
        "totals": _totals(use for use in of_limit if resource in (None, use.resource)),
        "consumers": _rows(clients, lambda use: _whose(use, here, names)),
        "by_resource": _rows(of_limit, lambda use: _of_resource(use, here))[:_MOST_RESOURCES],
        "table": [(use, names.get(entity or use.entity or "", "")) for use in (of_limit if entity else clients)],
        "name": names.get(entity or "", ""),
        "csv": urlencode({**here, "format": "csv"}),
        "rolled_up_at": moment(CollectedBatch.objects.aggregate(at=Max("collected_at"))["at"]),
    }


def _names(identifiers: set[str]) -> dict[str, str]:
    """Display names of entities, by identifier."""
    found = Entity.objects.filter(identifier__in=identifiers).exclude(name="")
    return dict(found.values_list("identifier", "name"))


def _keys(uses: Iterable[Use]) -> list[str]:
    """The used limits, the one with the most rejections first; limits without allowed amounts, such as blocks, last."""
    totals: dict[str, tuple[float, int]] = {}
    for use in uses:
        admitted, refused = totals.get(use.key, (0.0, 0))
        totals[use.key] = (admitted + use.admitted, refused + use.refused)
    return sorted(totals, key=lambda key: (totals[key][0] <= 0, -totals[key][1], key))


def _chart(time: Time, uses: Iterable[Use], key: str) -> dict[str, Any]:
    """What the chart draws: a period where nothing happened is one with nothing."""
    starts = time.starts
    admitted = dict.fromkeys(starts, 0.0)
    refused = dict.fromkeys(starts, 0)
    for use in uses:
        start = _in_utc(use.start)
        admitted[start] = admitted.get(start, 0) + use.admitted
        refused[start] = refused.get(start, 0) + use.refused
    return {
        "starts": [start.isoformat() for start in admitted],
        "moments": "hours" if time.period == Period.HOUR else "days",
        "admitted": list(admitted.values()),
        "refused": list(refused.values()),
        "labels": {
            "admitted": gettext("allowed %(key)s") % {"key": limit_name(key)},
            "refused": gettext("rejections"),
        },
    }


def _in_utc(start: datetime | None) -> datetime:
    moment = start or datetime.min.replace(tzinfo=UTC)
    return aware(moment).astimezone(UTC)


def _totals(uses: Iterable[Use]) -> dict[str, str]:
    found = list(uses)
    admitted, refused = sum(use.admitted for use in found), sum(use.refused for use in found)
    is_told = any(use.refused_share is not None for use in found)
    share = refused / (admitted + refused) if is_told else None
    return {"admitted": amount(admitted), "refused": amount(refused), "share": percent(share)}


def _by_resource(uses: Iterable[Use]) -> list[Use]:
    """Buckets of one resource are separate rows only among consumers."""
    return sorted(uses, key=lambda use: (-use.admitted, -use.refused, use.resource or ""))


def _rows(uses: list[Use], told: Callable[[Use], dict[str, Any]]) -> list[dict[str, Any]]:
    most = max((use.admitted for use in uses), default=0)
    return [told(use) | _figures(use, most) for use in uses]


def _figures(use: Use, most: float) -> dict[str, Any]:
    drawn: Bar = bar("", use.admitted, most or 1)
    return {
        "admitted": amount(use.admitted),
        "refused": amount(use.refused),
        "share": percent(use.refused_share),
        "width": drawn.width,
    }


def _whose(use: Use, here: dict[str, str], names: dict[str, str]) -> dict[str, Any]:
    """A client, with a link to its resources."""
    entity = use.entity or ""
    is_client = use.bucket == Bucket.ENTITY and entity
    return {
        "name": names.get(entity, "") if is_client else "",
        "label": _name(use.bucket, entity),
        "entity": entity if is_client else "",
        "query": urlencode({**here, "entity": entity}) if is_client else "",
        "why": urlencode({"entity": entity}) if is_client and use.refused else "",
    }


def _name(bucket: Bucket, entity: str) -> str:
    """The label of a bucket."""
    if bucket == Bucket.ENTITY:
        return entity or gettext("No user (whole site)")
    return f"{entity} ({bucket.label})" if entity else str(bucket.label)


def _of_resource(use: Use, here: dict[str, str]) -> dict[str, Any]:
    name = use.resource or ""
    if use.bucket in {Bucket.SHARED, Bucket.MEMBER, Bucket.OTHERS}:
        name = f"{name} ({use.bucket.label})"
    return {"label": name, "query": urlencode({**here, "resource": use.resource or ""})}

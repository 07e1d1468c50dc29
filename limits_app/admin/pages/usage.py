"""The page “Usage”: allowed amounts and rejections of a limit, over time and by consumer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.contrib.admin import AdminSite
from django.db.models import Max
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.dateparse import parse_date
from django.utils.translation import gettext, override
from django.utils.translation import gettext_lazy as _

from limits_app.admin.formatting import bar
from limits_app.admin.pages.common import (
    bring_up_to_date,
    check,
    client_name,
    entity_or_none,
    page,
    problem_with,
)
from limits_app.engine.errors import InvalidRequest
from limits_app.models import BucketKind, CollectedBatch, UsagePeriod
from limits_app.models.fields import aware
from limits_app.services.clients import client_names, client_of, with_name
from limits_app.services.costs import Spend, cost_cells
from limits_app.services.display import amount, clock, day, moment, money, percent
from limits_app.services.limit_words import limit_name
from limits_app.services.rights import Action
from limits_app.services.rule_labels import resource_labels
from limits_app.services.safe_text import csv_text
from limits_app.services.usage import spend, spend_by_client, usage_by_unit
from limits_app.usage.reading import Use
from limits_app.usage.units import unit_of

_MOST_RESOURCES: Final = 50
_MOST_CONSUMERS: Final = 15


Time = tuple[UsagePeriod, datetime, datetime]
"""Periods that are short enough to see something and few enough to draw, the start and the end."""

_SPANS: Final[dict[str, tuple[Any, int]]] = {
    "today": (_("Today"), 0),
    "yesterday": (_("Yesterday"), 1),
    "day": (_("24 hours"), 1),
    "week": (_("7 days"), 7),
    "month": (_("30 days"), 30),
    "last_month": (_("Last month"), 31),
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
            message = gettext("Choose a first day that is before the last one, and at most %(most)s days.")
            raise InvalidRequest(message % {"most": _MOST_DAYS})
        return (UsagePeriod.DAY, since, until)
    if span == "last_month":
        until = midnight.replace(day=1)
        return (UsagePeriod.DAY, (until - _DAY).replace(day=1), until)
    days = _SPANS[span][1]
    if span in ("today", "yesterday"):
        today = timezone.localtime(now).replace(hour=0, minute=0, second=0, microsecond=0)
        since, until = ((today - back * _DAY).astimezone(UTC).replace(minute=0) for back in (days, days - 1))
        return (UsagePeriod.HOUR, since, hour + timedelta(hours=1) if span == "today" else until)
    if span == "day":
        return (UsagePeriod.HOUR, hour - timedelta(hours=23), hour + timedelta(hours=1))
    return (UsagePeriod.DAY, midnight - (days - 1) * _DAY, midnight + _DAY)


def _date(text: str) -> datetime:
    try:
        day = parse_date(text)
    except ValueError:
        day = None
    if day is None or not 1 < day.year < 9999:
        raise InvalidRequest(gettext("“%(text)s” is not a date: enter one such as 2026-01-31.") % {"text": text})
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def usage_page(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Show one limit at a time, because limits have different units; with `format=csv`, the table as a file."""
    check(request, Action.VIEW_USAGE)
    resource, entity, key = request.GET.get("resource") or None, entity_or_none(request), request.GET.get("key", "")
    if entity and not problem_with(entity=entity):
        entity = client_of(entity)
    first, last = request.GET.get("from", ""), request.GET.get("to", "")
    span = request.GET.get("span", "") if request.GET.get("span") in _SPANS else "week"
    context: dict[str, Any] = {
        "resource": resource or "",
        "entity": entity or "",
        "key": key,
        "span": span,
        "first": first,
        "last": last,
        "spans": [{"name": name, "label": label, "here": name == span} for name, (label, _days) in _SPANS.items()],
        "problem": problem_with(resource, key, first, last, entity=entity),
    }
    if not context["problem"]:
        try:
            time = _time(span, first, last)
        except InvalidRequest as error:
            context["problem"] = str(error)
        else:
            bring_up_to_date()
            if request.GET.get("format") in _FILES:
                return _FILES[request.GET["format"]](resource, entity, key, time=time)
            context |= _used(resource, entity, key, time=time)
    return page(site, request, "usage", title=gettext("Usage"), context=context)


_TIME: Final = ("from", "to")
_LIMIT: Final = ("client", "name", "plan", "resource", "limit")
_AMOUNTS: Final = (*_LIMIT, "allowed", "rejections", "by_members", "cost", "currency")
_SPENDS: Final = ("client", "name", "by_members", "cost", "currency")
_CSV_BATCH: Final = 1000
_BELOW: Final = "yes"
"""Of amounts that clients below this one used: they are among the rows of these too."""


def _csv(resource: str | None, entity: str | None, key: str, *, time: Time) -> HttpResponse:
    """What every client used of each limit of each resource in this time, as a file; with a `key`, of this limit."""
    period, since, until = time
    by = ("entity", "resource", "plan", "below")
    chosen: dict[str, Any] = {"period": period, "since": since, "until": until}
    uses = usage_by_unit(resource, entity=entity, unit=key or None, by=by, cost=True, **chosen)
    return _file("usage", (*_TIME, *_AMOUNTS), _csv_rows(_with_rejections(uses)), time)


def _with_rejections(uses: Iterable[Use]) -> list[Use]:
    """The usage with the rejections, which are counted without a plan, in the first row of the same limit."""
    merged: dict[tuple[object, ...], list[Use]] = {}
    for use in uses:
        rows = merged.setdefault((use.bucket, use.key, use.resource, use.entity), [])
        if rows and not use.admitted:
            rows[0] = replace(rows[0], refused=rows[0].refused + use.refused)
        else:
            rows.append(use)
    return [use for rows in merged.values() for use in rows]


def _csv_rows(uses: list[Use]) -> Iterator[list[object]]:
    """Rows in the words of the pages; like the names of the columns, they are in English."""
    urls = resource_labels({use.resource for use in uses if use.resource})
    with override("en"):
        limits = {key: str(limit_name(key)) for key in {use.key for use in uses}}
    for first in range(0, len(uses), _CSV_BATCH):
        some = uses[first : first + _CSV_BATCH]
        names = client_names({use.entity for use in some if use.entity and use.bucket == BucketKind.ENTITY})
        for use in some:
            who = client_name(use.bucket, use.entity or "", {}) if use.bucket != BucketKind.ENTITY else use.entity or ""
            resource = urls.get(use.resource or "", use.resource or "")
            amounts = [resource, limits[use.key], use.admitted, use.refused, _BELOW if use.below else ""]
            for cells in cost_cells(use.cost):
                yield [who, names.get(who, ""), use.plan or "", *amounts, *cells]


def _spend_csv(resource: str | None, entity: str | None, _key: str, *, time: Time) -> HttpResponse:
    """What the usage of every client cost in this time, as a file."""
    period, since, until = time
    spends = spend(resource, entity=entity, period=period, since=since, until=until, by=("entity", "below"))
    return _file("spend", (*_TIME, *_SPENDS), _spend_rows(spends), time)


def _spend_rows(spends: list[Spend]) -> Iterator[list[object]]:
    for first in range(0, len(spends), _CSV_BATCH):
        some = spends[first : first + _CSV_BATCH]
        names = client_names({spending.entity for spending in some if spending.entity})
        for spending in some:
            who = spending.entity or ""
            yield [who, names.get(who, ""), _BELOW if spending.below else "", spending.amount, spending.currency]


def _days_in_name(since: datetime, until: datetime) -> str:
    """The time of a file for its name: “2026-10” for a month, else its first and its last day."""
    last = until - timedelta(microseconds=1)
    is_month = since.day == 1 and until.day == 1 and (since.year, since.month) == (last.year, last.month)
    return f"{since:%Y-%m}" if is_month else f"{since:%Y-%m-%d}-to-{last:%Y-%m-%d}"


_FILES: Final = {"csv": _csv, "spend": _spend_csv}


def _file(name: str, columns: tuple[str, ...], rows: Iterable[list[object]], time: Time) -> HttpResponse:
    _period, since, until = time
    begin_and_end = (f"{since:%Y-%m-%dT%H:%MZ}", f"{until:%Y-%m-%dT%H:%MZ}")
    file = HttpResponse(csv_text(columns, ([*begin_and_end, *row] for row in rows)))
    file["Content-Type"] = "text/csv; charset=utf-8"
    file["Content-Disposition"] = f'attachment; filename="{name}-{_days_in_name(since, until)}.csv"'
    return file


def _used(resource: str | None, entity: str | None, key: str, *, time: Time) -> dict[str, Any]:
    """The usage of a limit, by default of the one with the most rejections."""
    ask: dict[str, Any] = dict(zip(("period", "since", "until"), time, strict=True)) | {"entity": entity}
    of_resources = usage_by_unit(by="resource", **ask)
    keys = _keys(use for use in of_resources if resource in (None, use.resource))
    key = unit_of(key) or next(iter(keys), "")
    chosen = {"resource": resource, "unit": key, **ask}
    clients = usage_by_unit(by="entity", most=_MOST_CONSUMERS, **chosen)
    spends, spent = spend_by_client(keys, resource, **ask)
    spends = spends[:_MOST_CONSUMERS]
    shown = {use.entity for use in clients} | {spending.entity for spending in spends} | {entity}
    names = client_names({name or "" for name in shown})
    resources = sorted({use.resource for use in of_resources if use.resource} | {resource or ""} - {""})
    urls = resource_labels(resources)
    of_limit = [use for use in of_resources if use.key == key]
    of_limit.sort(key=lambda use: (-use.admitted, -use.refused, use.resource or ""))
    return {
        "key": key,
        "keys": keys,
        "resources": [(name, urls.get(name, name)) for name in resources],
        "chart": chart_of(time, usage_by_unit(by="period", **chosen), key),
        "totals": _totals([use for use in of_limit if resource in (None, use.resource)]),
        "consumers": _rows(clients, names),
        "by_resource": _rows(of_limit, urls=urls)[:_MOST_RESOURCES],
        "spends": _spends(spends, names),
        "spent": [money(spending.amount, spending.currency) for spending in spent],
        "name": with_name(entity or "", names),
        "rolled_up_at": moment(CollectedBatch.objects.aggregate(at=Max("collected_at"))["at"]),
    }


def _keys(uses: Iterable[Use]) -> list[str]:
    """The used limits, the one with the most rejections first; limits without allowed amounts, such as blocks, last."""
    totals: dict[str, tuple[float, int]] = {}
    for use in uses:
        admitted, refused = totals.get(use.key, (0.0, 0))
        totals[use.key] = (admitted + use.admitted, refused + use.refused)
    return sorted(totals, key=lambda key: (totals[key][0] <= 0, -totals[key][1], key))


def chart_of(time: Time, uses: Iterable[Use], key: str) -> dict[str, Any]:
    """What the chart draws: a period where nothing happened is one with nothing."""
    period, since, until = time
    step = timedelta(hours=1) if period == UsagePeriod.HOUR else _DAY
    starts = [since + number * step for number in range(-((since - until) // step))]
    admitted = dict.fromkeys(starts, 0.0)
    refused = dict.fromkeys(starts, 0)
    for use in uses:
        start = _in_utc(use.start)
        admitted[start] = admitted.get(start, 0) + use.admitted
        refused[start] = refused.get(start, 0) + use.refused
    return {
        "times": [clock(start) if period == UsagePeriod.HOUR else day(start) for start in admitted],
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


def _totals(uses: list[Use]) -> dict[str, str]:
    admitted, refused = sum(use.admitted for use in uses), sum(use.refused for use in uses)
    counts_requests = any(use.refused_share is not None for use in uses)
    share = refused / (admitted + refused) if counts_requests else None
    return {"admitted": amount(admitted), "refused": amount(refused), "share": percent(share)}


def _rows(
    uses: list[Use], names: dict[str, str] | None = None, urls: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """The clients, of which some have names, or without names the resources."""
    most = max((use.admitted for use in uses), default=0)
    clients = [use.entity or "" if use.bucket == BucketKind.ENTITY else "" for use in uses]
    return [
        {
            "use": use,
            "client": client,
            "label": _resource_name(use, urls or {})
            if names is None
            else client_name(use.bucket, use.entity or "", names),
            "admitted": amount(use.admitted),
            "refused": amount(use.refused),
            "share": percent(use.refused_share),
            "width": bar("", use.admitted, most or 1).width,
        }
        for use, client in zip(uses, clients, strict=True)
    ]


def _spends(spends: list[Spend], names: dict[str, str]) -> list[dict[str, str]]:
    """The clients that cost most, and what they cost."""
    return [
        {
            "client": spending.entity or "",
            "label": client_name(BucketKind.ENTITY, spending.entity or "", names),
            "amount": money(spending.amount, spending.currency),
        }
        for spending in spends
    ]


def _resource_name(use: Use, urls: Mapping[str, str]) -> str:
    name = urls.get(use.resource or "", use.resource or "")
    if use.bucket in {BucketKind.SHARED, BucketKind.MEMBER, BucketKind.OTHERS}:
        return f"{name} ({use.bucket.label})"
    return name

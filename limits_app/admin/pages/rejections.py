"""The page “Rejections”: which limit rejected whom, when and why."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext

from limits_app.admin.pages.common import bring_up_to_date, check, page, problem_with
from limits_app.admin.pages.summary import recent_changes, recent_events
from limits_app.engine.errors import InvalidRequest
from limits_app.models import BucketKind
from limits_app.models.fields import aware
from limits_app.services.clients import client_of
from limits_app.services.display import amount, moment
from limits_app.services.limit_words import limit_keys, limit_name
from limits_app.services.rejections import Rejection, rejections
from limits_app.services.rights import Action, may

_PER_PAGE: Final = 100
_LAST_PAGE: Final = 100
"""The maximum number of pages; users filter by time for earlier rows."""

_FIELDS: Final = ("entity", "resource", "key")
_MINUTE: Final = timedelta(minutes=1)


def rejections_page(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Show the rejections of a time, the latest first; without a choice, also the recent changes."""
    check(request, Action.VIEW_USAGE)
    asked = {name: request.GET.get(name, "").strip() for name in (*_FIELDS, "request_id", "from", "to")}
    number = _page_number(request.GET.get("p", ""))
    context: dict[str, Any] = {**asked, "since": asked["from"], "until": asked["to"], "spans": _spans()}
    context["key"] = limit_name(asked["key"])
    context["problem"] = problem_with(*asked.values(), entity=asked["entity"])
    if not any(asked.values()) and may(request.user, Action.VIEW_HISTORY):
        context["changes"] = recent_changes(site, recent_events())
    if not context["problem"]:
        context["entity"] = asked["entity"] = client_of(asked["entity"])
        bring_up_to_date()
        try:
            context |= _found(asked, number)
        except (InvalidRequest, OverflowError, ValueError):
            context["problem"] = gettext("Enter a date and a time, such as 2026-01-31T10:03.")
    return page(site, request, "rejections", title=gettext("Rejections"), context=context)


def _page_number(text: str) -> int:
    return min(int(text), _LAST_PAGE) if text.isascii() and text.isdigit() and len(text) < 5 and int(text) else 1


def _found(asked: dict[str, str], number: int) -> dict[str, Any]:
    """A page of rows; one row more is read, to know whether there is another page."""
    since, until = _time(asked["from"]), _time(asked["to"])
    filters: dict[str, Any] = {name: asked[name] or None for name in (*_FIELDS, "request_id")}
    rejected = rejections(
        filters.pop("resource"),
        **{**filters, "key": limit_keys(limit_name(asked["key"]))},
        since=since,
        until=None if until is None else until + _MINUTE,  # the minute itself is included
        offset=(number - 1) * _PER_PAGE,
        most=_PER_PAGE + 1,
    )
    return {
        "rows": list(map(_row, rejected[:_PER_PAGE])),
        "number": number,
        "newer": number - 1,
        "older": number + 1 if len(rejected) > _PER_PAGE and number < _LAST_PAGE else None,
    }


def _time(text: str) -> datetime | None:
    """Read a time in the site's time zone; raises ValueError for another text."""
    if not text:
        return None
    time = parse_datetime(text)
    if time is None:
        raise ValueError(text)
    return aware(time)


def _spans() -> list[dict[str, Any]]:
    """Links to times that people often look at."""
    now = timezone.localtime(datetime.now(UTC))
    midnight = now.replace(hour=0, minute=0)
    return [
        {"label": gettext("Last hour"), "since": now - timedelta(hours=1)},
        {"label": gettext("Today"), "since": midnight},
        {"label": gettext("Yesterday"), "since": midnight - timedelta(days=1), "until": midnight - _MINUTE},
    ]


def _row(rejection: Rejection) -> dict[str, Any]:
    """A row of the table."""
    count = rejection.count
    return {
        "found": rejection,
        "minute": moment(count.minute),
        "times": amount(count.count),
        "entity": count.entity if count.bucket == BucketKind.ENTITY else "",
    }

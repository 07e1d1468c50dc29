"""The page “Rejections”: which limit rejected whom, when and why."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.admin.formatting import amount, moment
from limits_app.admin.pages.common import EXPLAIN, USAGE, check, may, page, problem_with
from limits_app.core.errors import InvalidRequest
from limits_app.models import Bucket
from limits_app.models.fields import aware
from limits_app.services.limit_words import limit_keys, limit_name
from limits_app.services.rejections import Rejection, rejections

_PER_PAGE: Final = 100
_LAST_PAGE: Final = 100
"""The maximum number of pages; users filter by time for earlier rows."""

_FIELDS: Final = ("entity", "resource", "key")
_MINUTE: Final = timedelta(minutes=1)


def rejections_page(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Show the rejections of a time, the latest first."""
    check(request, USAGE)
    asked = {name: request.GET.get(name, "").strip() for name in (*_FIELDS, "request_id", "from", "to")}
    number = _page_number(request.GET.get("p", ""))
    context: dict[str, Any] = {**asked, "since": asked["from"], "until": asked["to"], "spans": _spans(asked)}
    context["key"] = limit_name(asked["key"])
    context["problem"] = problem_with(*asked.values())
    if not context["problem"]:
        try:
            context |= _found(site, request, asked, number)
        except (InvalidRequest, OverflowError, ValueError):
            context["problem"] = gettext("Enter a date and a time, such as 2026-01-31T10:03.")
    return page(site, request, "rejections", title=gettext("Rejections"), context=context)


def _page_number(text: str) -> int:
    return min(int(text), _LAST_PAGE) if text.isascii() and text.isdigit() and len(text) < 5 and int(text) else 1


def _found(site: AdminSite, request: HttpRequest, asked: dict[str, str], number: int) -> dict[str, Any]:
    """A page of rows; one row more is read, to know whether there is another page."""
    since, until = _time(asked["from"]), _time(asked["to"])
    wanted: dict[str, Any] = {name: asked[name] or None for name in (*_FIELDS, "request_id")}
    found = rejections(
        wanted.pop("resource"),
        **{**wanted, "key": limit_keys(asked["key"])},
        since=since,
        until=None if until is None else until + _MINUTE,  # the minute itself is included
        offset=(number - 1) * _PER_PAGE,
        most=_PER_PAGE + 1,
    )
    links = _Links(site, request)
    pages = {"newer": number - 1 if number > 1 else 0}
    pages["older"] = number + 1 if len(found) > _PER_PAGE and number < _LAST_PAGE else 0
    queries = {name: urlencode({**asked, "p": to}) for name, to in pages.items() if to}
    return {"rows": [links.row(one) for one in found[:_PER_PAGE]], "pages": queries, "number": number}


def _time(text: str) -> datetime | None:
    """Read a time in the site's time zone; raises ValueError for another text."""
    if not text:
        return None
    found = parse_datetime(text)
    if found is None:
        raise ValueError(text)
    return aware(found)


def _spans(asked: dict[str, str]) -> list[dict[str, str]]:
    """Links to times that people often look at."""
    now = timezone.localtime(datetime.now(UTC))
    midnight = now.replace(hour=0, minute=0)
    times = (
        (_("Last hour"), now - timedelta(hours=1), None),
        (_("Today"), midnight, None),
        (_("Yesterday"), midnight - timedelta(days=1), midnight - _MINUTE),
    )
    chosen = {name: asked[name] for name in _FIELDS}
    return [
        {"label": str(label), "query": urlencode({**chosen, "from": _typed(since), "to": _typed(until)})}
        for label, since, until in times
    ]


def _typed(at: datetime | None) -> str:
    """A time as fields for dates and times write it."""
    return "" if at is None else at.strftime("%Y-%m-%dT%H:%M")


class _Links:
    """Rows with links to the pages that the user may view."""

    def __init__(self, site: AdminSite, request: HttpRequest) -> None:
        self._name = site.name
        self._sees_log = request.user.has_perm("limits_app.view_auditevent")
        self._sees_policies = may(request, EXPLAIN)

    def row(self, found: Rejection) -> dict[str, Any]:
        """A row of the table."""
        count = found.count
        is_entity = count.bucket == Bucket.ENTITY
        about = {"resource": count.resource, "entity": count.entity if is_entity else ""}
        return {
            "minute": moment(count.minute, "SHORT_DATETIME_FORMAT"),
            "why": found.why,
            "count": amount(count.count),
            "entity": count.entity if is_entity else "",
            "policy": self._policy(found),
            "explain": f"{reverse(f'{self._name}:limits_app_explain_changelist')}?{urlencode(about)}"
            if self._sees_policies
            else "",
        }

    def _policy(self, found: Rejection) -> str:
        """The policy as it was then; without an event in the log, as it is now."""
        if found.event_id is not None and self._sees_log:
            return reverse(f"{self._name}:limits_app_auditevent_change", args=[found.event_id])
        if found.event_id is None and found.policy_id is not None and self._sees_policies:
            return reverse(f"{self._name}:limits_app_policy_change", args=[found.policy_id])
        return ""

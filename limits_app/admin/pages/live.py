"""The page “Live”: allowed and rejected requests per second, and the tightest limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext

from limits_app.admin.formatting import bar_of
from limits_app.admin.pages.common import bring_up_to_date, check, page
from limits_app.engine.limits import CallLimit
from limits_app.models import BucketKind, Entity, Resource
from limits_app.policies import Pair
from limits_app.services.clients import client_names, with_name
from limits_app.services.limit_words import limit_name
from limits_app.services.rights import Action
from limits_app.services.rule_labels import resource_labels
from limits_app.services.status import overview
from limits_app.services.usage import usage, usage_by_unit
from limits_app.usage.reading import Use

_MOST_LOOKED_AT: Final = 25
"""Number of scopes with the highest usage or the most rejections in this hour that are checked."""

_MOST_SHOWN: Final = 10


def live_page(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Show the page, which asks for the state by itself."""
    check(request, Action.VIEW_USAGE)
    settings = {
        "url": reverse(f"{site.name}:limits_app_live_state"),
        "labels": {
            "admitted": gettext("allowed per second"),
            "refused": gettext("rejected per second"),
            "live": gettext("Live"),
            "paused": gettext("Paused"),
            "lost": gettext("The server is unavailable, or you are logged out; retrying."),
            "down": gettext("The store is unavailable"),
            "calls": limit_name(CallLimit.key),
        },
    }
    return page(site, request, "live", title=gettext("Live"), context={"settings": settings})


def live_state(site: AdminSite, request: HttpRequest) -> JsonResponse:
    """Counts of this hour and the last one by limit, and the tightest limits of the most active entities.

    Two of these make a rate. What the stores have counted is rolled up first, at most once a second.
    """
    check(request, Action.VIEW_USAGE)
    stores_down = bring_up_to_date()
    now = datetime.now(UTC)
    since = now.replace(minute=0, second=0, microsecond=0)
    hours = {"period": "hour", "since": since - timedelta(hours=1)}
    totals = Counter[str]()
    refused = Counter[str]()
    for use in usage_by_unit(**hours):  # type: ignore[arg-type]  # a dictionary of what fits
        totals[use.key] += use.admitted  # type: ignore[assignment]  # amounts need not be whole
        refused[use.key] += use.refused
    tightest, is_known = tightest_limits(_MOST_SHOWN)
    urls = resource_labels(limit["resource"] for limit in tightest)
    tightest = named(tightest, client_names(limit["entity"] or "" for limit in tightest), urls)
    state = {
        "at": now.timestamp(),
        "clock": f"{timezone.localtime(now):%H:%M:%S}",
        "totals": {key: {"admitted": totals[key], "refused": refused[key]} for key in sorted(totals)},
        "tightest": page(site, request, "tightest", title="", context={"tightest": tightest}).rendered_content,
        "known": is_known and not stores_down,
    }
    return JsonResponse(state, headers={"Cache-Control": "no-store"})


def tightest_limits(most: int) -> tuple[list[dict[str, Any]], bool]:
    """The limits with the largest share in use by the most active entities of this hour, and whether that is known."""
    since = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    busiest = usage(by=("resource", "entity"), period="hour", since=since, most=4 * _MOST_LOOKED_AT)
    rows = overview(_pairs(busiest))
    limits = [(row, limit) for row in rows for limit in row.limits if limit.used is not None]
    limits.sort(key=lambda pair: -pair[1].share)
    shown = [
        {"resource": row.resource, "entity": row.entity, "key": limit_name(limit.key), "bar": bar_of(limit)}
        for row, limit in limits[:most]
    ]
    return shown, all(row.known for row in rows)


def named(tightest: list[dict[str, Any]], names: Mapping[str, str], urls: Mapping[str, str]) -> list[dict[str, Any]]:
    """Limits with the clients that they are of, in words; `urls` are those of URL rules, as of `resource_labels`."""
    return [
        {
            **limit,
            "client": with_name(limit["entity"] or "", names),
            "label": urls.get(limit["resource"], limit["resource"]),
        }
        for limit in tightest
    ]


def _pairs(uses: list[Use]) -> list[Pair]:
    """Resources and entities that used something, most of all in this hour; an entity need not have a row."""
    own = [use for use in uses if use.bucket in {BucketKind.ENTITY, BucketKind.SHARED}]
    names = dict.fromkeys((use.resource or "", use.entity or "") for use in own)
    return [
        (Resource(name=resource), Entity(identifier=entity) if entity else None)
        for resource, entity in [*names][:_MOST_LOOKED_AT]
    ]

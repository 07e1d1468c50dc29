"""The page “Overview”: rejections of today, the tightest limits, what ends soon, and whether usage is counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import conf
from limits_app.acquiring import BreakerState
from limits_app.admin.audit_words import clients_of
from limits_app.admin.pages.common import bring_up_to_date, check, client_name, page
from limits_app.admin.pages.live import named, tightest_limits
from limits_app.admin.pages.summary import (
    MOST_ROWS,
    ending_soon,
    recent_changes,
    recent_events,
    state_of_stores,
    totals,
)
from limits_app.admin.pages.usage import chart_of
from limits_app.conf import OnUnavailable
from limits_app.engine import parse_limits
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import CallLimit
from limits_app.models import TOTALS, BucketKind, Candidate, CandidateState, Policy, UsagePeriod
from limits_app.models.fields import aware
from limits_app.services.boosts import is_boost
from limits_app.services.candidates import reports
from limits_app.services.clients import client_names, with_name
from limits_app.services.display import amount, moment, percent
from limits_app.services.limit_words import limit_name, limits_in_words
from limits_app.services.policy_words import PolicySubject, policies_in_words, subject_in_words
from limits_app.services.rights import Action, may
from limits_app.services.rule_labels import resource_labels, rules_of_resources
from limits_app.services.status import store_health
from limits_app.services.usage import usage_by_unit
from limits_app.usage.reading import most_rejected

_CHART: Final = timedelta(hours=23)

_INSTEAD: Final = {
    OnUnavailable.BLOCK: _("requests are rejected"),
    OnUnavailable.ALLOW: _("requests are allowed"),
    OnUnavailable.LOCAL: _("each process allows its share of the limits"),
}


def overview_page(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Show the state of the site at a glance."""
    check(request, Action.VIEW_USAGE)
    bring_up_to_date()
    now = datetime.now(UTC)
    midnight = timezone.localtime(now).replace(hour=0, minute=0, second=0, microsecond=0)
    tightest, is_known = tightest_limits(MOST_ROWS)
    by_limit = most_rejected("resource", "key", since=midnight, most=MOST_ROWS)
    urls = resource_labels([*(count["resource"] for count in by_limit), *(limit["resource"] for limit in tightest)])
    by_client = most_rejected("entity", since=midnight, most=MOST_ROWS)
    boosts = ending_soon() if may(request.user, Action.VIEW_LIMITS) else None
    events = recent_events() if may(request.user, Action.VIEW_HISTORY) else None
    names = client_names(
        {
            *clients_of(events or ()),
            *(part[0].entity.identifier for part in boosts or () if part[0].entity is not None),
            *(count["entity"] for count in by_client if count["bucket"] == BucketKind.ENTITY),
            *(limit["entity"] or "" for limit in tightest),
        }
    )
    time = UsagePeriod.HOUR, now.replace(minute=0, second=0, microsecond=0) - _CHART, now
    uses = usage_by_unit(unit=CallLimit.key, by="period", period="hour", since=time[1])
    ending = None if boosts is None else [*_ends(site, boosts, names)]
    context = {
        "stores": state_of_stores(),
        "totals": [*totals([use for use in uses if aware(use.start or now) >= midnight], tightest, boosts)],
        "chart": chart_of(time, uses, CallLimit.key),
        "changes": None if events is None else recent_changes(site, events, names),
        "trials": [*_trials(site)] if may(request.user, Action.VIEW_CANDIDATES) else None,
        "warnings": list(_warnings()),
        "by_limit": [_row(site, midnight, count, {}, urls) for count in by_limit],
        "by_client": [_row(site, midnight, count, names, urls) for count in by_client],
        "tightest": named(tightest, names, urls),
        "known": is_known,
        "ending": ending,
        "is_new": not (tightest or Policy.objects.order_by().exists()),
    }
    return page(site, request, "overview", title=gettext("Overview"), context=context)


def _trials(site: AdminSite) -> Iterator[dict[str, str]]:
    """Limits that are tried, and how much they would reject."""
    rows = Candidate.objects.filter(state=CandidateState.TESTING)
    tried = [*rows.select_related("policy__resource", "policy__entity", "policy__plan")[:MOST_ROWS]]
    rules = rules_of_resources(row.policy.resource.name for row in tried if row.policy.resource is not None)
    for row, report in zip(tried, reports(tried), strict=True):
        values = {
            "policy": subject_in_words(_tried_subject(row), {}, rules),
            "limits": limits_in_words(report.limits),
            "share": percent(report.rejected_percent / 100),
        }
        yield {
            "what": gettext("%(policy)s: %(limits)s would reject %(share)s") % values,
            "url": reverse(f"{site.name}:limits_app_candidate_changelist"),
        }


def _tried_subject(candidate: Candidate) -> PolicySubject:
    """Whom a trial is about, by the limits that are tried."""
    policy = candidate.policy
    entity, plan, resource = (
        None if row is None else str(row) for row in (policy.entity, policy.plan, policy.resource)
    )
    try:
        shared = tuple([noted.shared for noted in parse_limits(candidate.limits)])
    except InvalidLimit:  # written past the validation of the model
        shared = ()
    return PolicySubject(entity, plan, resource, is_total=policy.scope in TOTALS, shared=shared)


def _warnings() -> Iterator[str]:
    """What keeps limits from being counted now."""
    for alias, health in store_health().items():
        if health.state == BreakerState.OPEN:
            values = {"alias": alias, "instead": _INSTEAD[conf.get(conf.ON_UNAVAILABLE)], "error": health.error or ""}
            yield gettext("The store “%(alias)s” is unavailable: %(instead)s. %(error)s") % values


def _row(  # noqa: PLR0917 - a row with what names it
    site: AdminSite, since: datetime, count: dict[str, Any], names: dict[str, str], urls: Mapping[str, str]
) -> dict[str, str]:
    """The rejections of a limit or of a client, with a link to them."""
    name = limit_name(count.get("key", ""))
    if "entity" in count:
        name = client_name(BucketKind(count["bucket"]), count["entity"], names)
    query = {field: count.get(field, "") for field in ("entity", "resource", "key")} | {
        "from": f"{since:%Y-%m-%dT%H:%M}"
    }
    return {
        "name": name,
        "resource": urls.get(count.get("resource", ""), count.get("resource", "")),
        "entity": count.get("entity", "") if count.get("bucket") == BucketKind.ENTITY else "",
        "count": amount(count["rejections"]),
        "url": f"{reverse(f'{site.name}:limits_app_denial_changelist')}?{urlencode(query)}",
    }


def _ends(site: AdminSite, parts: list[list[Policy]], names: dict[str, str]) -> Iterator[dict[str, str]]:
    """What ends soon, each boost once, whatever policies it is."""
    first = [part[0] for part in parts]
    for part, policy, words in zip(parts, first, policies_in_words(first, names), strict=True):
        name, url = words, reverse(f"{site.name}:limits_app_policy_change", args=[policy.pk])
        if policy.entity is not None and any(map(is_boost, part)):
            identifier = policy.entity.identifier
            name = gettext("Boost of %(client)s") % {"client": with_name(identifier, names)}
            url = reverse(f"{site.name}:limits_app_client", query={"entity": identifier})
        yield {"name": name, "url": url, "until": moment(policy.valid_until), "reason": policy.reason}

"""What limits a client: each limit once, the tightest first, and the state of the client in a few words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from django.contrib.admin import AdminSite
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.admin.pages.explain import shown_link
from limits_app.engine.errors import LimitsError
from limits_app.models import TOTALS, Enforcement
from limits_app.policies import Access, AccessVerdict
from limits_app.services.clients import RecentUsage
from limits_app.services.display import moment
from limits_app.services.explain import Explanation, explain_each
from limits_app.services.quota_pace import used_up_at
from limits_app.services.rule_labels import resource_labels
from limits_app.usage.reading import Use

_SWITCHED_OFF: Final[Mapping[str, Any]] = {
    Enforcement.OFF: _("Not limited: all limits are switched off"),
    Enforcement.SHADOW: _("Not rejected: all limits are in shadow mode"),
}
"""The state of every client while the emergency switch is set."""


def limits_of_client(
    site: AdminSite, identifier: str, resources: Collection[str], recent: RecentUsage | None
) -> dict[str, Any]:
    """What limits the client on these resources, and when it uses up its quotas; a problem where that is unknown.

    `switch` is the emergency switch, where it was read, `uses` are by unit, with their costs, and `code_limits` those
    of these resources.
    """
    try:
        explained, access, switch, prices, code_limits = explain_each(resources, entity=identifier)
    except (LimitsError, ValueError) as error:
        uses = [] if recent is None else recent.in_units({})
        return {"problem": str(error), "state": gettext("Unknown"), "uses": uses, "code_limits": {}}
    uses = [] if recent is None else recent.in_units(prices)
    labels = resource_labels(resources)
    limits = [limit for explanation in explained for limit in _limits(site, explanation, uses, timezone.now())]
    for limit in limits:
        resource = labels.get(limit["resource"], limit["resource"])
        limit["name"] = gettext("All resources together") if limit["is_total"] else resource
    at_limit = [
        labels.get(explanation.resource, explanation.resource)
        for explanation in explained
        if not explanation.outcome.allowed
    ]
    rejects = bool(at_limit) and switch.mode not in _SWITCHED_OFF
    state = _SWITCHED_OFF.get(switch.mode) or _state(access, at_limit)
    shown = {"limits": _once_and_sorted(limits), "access": access, "state": str(state), "is_at_limit": rejects}
    return {**shown, "switch": switch, "uses": uses, "code_limits": code_limits}


def _limits(
    site: AdminSite, explanation: Explanation, uses: Collection[Use], now: datetime
) -> Iterator[dict[str, Any]]:
    """The limits of a client on a resource, and those of its parents that it counts for."""
    for number, link in enumerate(explanation.chain):
        shown = shown_link(site, link)
        for limit, explained in zip(shown["limits"], link.limits, strict=True):
            used_up = used_up_at(explained, explanation.resource, uses, now) if number == 0 else None
            yield {
                **limit,
                "key": explained.effective.limit.key,
                "resource": explanation.resource,
                "whose": shown["entity"],
                "is_total": explained.effective.policy.level in TOTALS,
                "used_up": moment(used_up),
            }


def kept_by_teams(site: AdminSite, identifier: str, limits: Iterable[Mapping[str, Any]]) -> Iterator[SafeString]:
    """Which limits of teams a boost of a client leaves as they are, each team with a link to boost it."""
    by_team: dict[str, list[str]] = {}
    for limit in limits:
        if limit["whose"] != identifier and not (limit.get("blocked") or limit["shared"]):
            by_team.setdefault(limit["whose"], []).append(f"{limit['words']} ({limit['name']})")
    for team, words in by_team.items():
        text = gettext("Team %(team)s, for which the use of this client counts, keeps its limits: %(limits)s.")
        text %= {"team": team, "limits": ", ".join(words)}
        link = reverse(f"{site.name}:limits_app_client", query={"entity": team, "boost": "1"})
        yield format_html('{} <a href="{}">{}</a>', text, link, gettext("Boost %(client)s") % {"client": team})


def _once_and_sorted(limits: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each total once, whatever resources it is charged on; what rejects first, then by the share in use."""
    by_subject: dict[tuple[object, ...], dict[str, Any]] = {}
    for limit in limits:
        subject = limit["whose"], limit["key"], limit.get("words") if limit["is_total"] else limit["resource"]
        if (first := by_subject.setdefault(subject, limit)) is not limit:
            first["binds"] = first["binds"] or limit["binds"]
    return sorted(by_subject.values(), key=_need)


def _need(limit: dict[str, Any]) -> tuple[bool, int]:
    is_full = bool(limit.get("blocked")) or limit["binds"]
    bar = limit.get("bar")
    return not is_full, -bar.width if bar else 0


def _state(access: AccessVerdict, at_limit: list[str]) -> str:
    """The state of the client in a few words."""
    if access.access is Access.BLOCKED:
        return gettext("Blocked")
    if access.access is Access.EXEMPT:
        return gettext("Unlimited")
    if at_limit:
        return gettext("At its limit on %(resources)s") % {"resources": ", ".join(at_limit)}
    return gettext("Below its limits")

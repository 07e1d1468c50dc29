"""The page “Effective limits”: the limits of an entity on a resource, their origin and usage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import services
from limits_app.admin.formatting import STANDINGS, Bar, bar, level_of
from limits_app.admin.pages.common import check, entity_or_none, page, problem_with
from limits_app.engine import BLOCK_LEVEL, UPSTREAM_LEVEL
from limits_app.engine.errors import LimitsError
from limits_app.engine.limits import Blocked
from limits_app.engine.outcome import LimitStatus
from limits_app.models import TOTALS, Plan, PolicyEffect, Resource
from limits_app.policies import PolicyStatus, PolicyValue, Verdict
from limits_app.services.display import amount, moment, percent
from limits_app.services.explain import ExplainedLimit, ExplainedLink, Explanation
from limits_app.services.explain_pool import MemberStanding
from limits_app.services.limit_words import limit_in_words, limit_name
from limits_app.services.rights import Action
from limits_app.services.rule_labels import resource_labels, resource_of
from limits_app.usage.reading import never_used

_MOST_RESOURCES: Final = 200
"""How many names of resources are offered before one has to type."""

_MEMBERS: Final[Mapping[MemberStanding, Any]] = {
    MemberStanding.SERVES: _("would serve"),
    MemberStanding.STANDS_BY: _("standby"),
    MemberStanding.REFUSES: _("rejects"),
    MemberStanding.NEVER: _("request exceeds the maximum"),
    MemberStanding.UNABLE: _("lacks the requested limits"),
    MemberStanding.COOLING_DOWN: _("cooling down"),
    MemberStanding.DISABLED: _("off"),
}


def explain_page(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Show the form and the effective limits; with `fragment`, only the effective limits."""
    check(request, Action.VIEW_LIMITS)
    resource, entity = request.GET.get("resource", "").strip(), entity_or_none(request)
    plan = request.GET.get("plan") or None
    if not problem_with(resource, entity=None):
        resource = resource_of(resource)
    label = resource_labels([resource]).get(resource, resource)
    context: dict[str, Any] = {"resource": resource, "label": label, "entity": entity, "plan": plan}
    if resource:
        context |= _explained(site, resource, entity, plan, label=label)
    if "fragment" in request.GET:
        return page(site, request, "explanation", title="", context=context)
    names = [*Resource.objects.order_by("name").values_list("name", flat=True)[:_MOST_RESOURCES]]
    labels = resource_labels(names)
    plans = Plan.objects.values_list("name", flat=True)[:_MOST_RESOURCES]
    context |= {"resources": [(name, labels.get(name, name)) for name in names], "plans": list(plans)}
    return page(site, request, "explain", title=gettext("Effective limits"), context=context)


def _explained(site: AdminSite, resource: str, entity: str | None, plan: str | None, *, label: str) -> dict[str, Any]:
    if problem := problem_with(resource, entity=entity, allows_patterns=False):
        return {"problem": problem}
    try:
        explanation = services.explain(resource, entity=entity, plan=plan)
    except (LimitsError, ValueError) as error:
        return {"problem": str(error)}
    return {
        "explanation": explanation,
        "links": [shown_link(site, link) for link in explanation.chain],
        "members": list(_members(explanation)),
        "shadowed": [_bar_of(status.key, status) for status in explanation.outcome.shadowed],
        "is_unlimited": not any(link.limits for link in explanation.chain),
        "verdict": _verdict(explanation, label),
        "dropped": ", ".join(map(limit_name, explanation.dropped)),
        "unused": never_used([entity] if entity else []),
        "changes_at": moment(explanation.changes_at),
    }


def _verdict(explanation: Explanation, label: str) -> str:
    """The decision about the next request, as a sentence."""
    binding = explanation.outcome.binding
    if binding is None:
        return gettext("The next request is allowed.")
    if explanation.outcome.blocked:
        return gettext("The next request is rejected: all requests are blocked.")
    if binding.level == BLOCK_LEVEL:
        text = gettext("The next request is rejected: a URL rule blocks the client for %(seconds)s s.")
        return text % {"seconds": amount(round(binding.retry_after or 0, 1))}
    if binding.level == UPSTREAM_LEVEL:
        seconds = amount(round(binding.retry_after or 0, 1))
        return gettext("The next request is rejected: its upstream cools down for %(seconds)s s.") % {
            "seconds": seconds
        }
    if binding.retry_after is None:
        return gettext("The next request is rejected until %(key)s is released.") % {"key": limit_name(binding.key)}
    values = {"key": limit_name(binding.key), "seconds": amount(round(binding.retry_after, 1))}
    if (named := _rejecting(explanation, label)) is not None:
        is_own, names = named
        text = gettext("The next request is rejected by the limit of %(whose)s: %(limit)s; allowed in %(seconds)s s.")
        if not is_own:
            text = gettext(
                "The next request is rejected by the limit of team %(whose)s: %(limit)s; allowed in %(seconds)s s."
            )
        return text % {**values, **names}
    return gettext("The next request is rejected by the limit of %(key)s; it is allowed in %(seconds)s s.") % values


def _rejecting(explanation: Explanation, label: str) -> tuple[bool, dict[str, str]] | None:
    """Whose limit rejects the next request, and whether it is that of the client itself; None for a shared one."""
    for number, link in enumerate(explanation.chain):
        for limit in link.limits:
            effective = limit.effective
            if limit.binds and link.entity and not (effective.shared or isinstance(effective.limit, Blocked)):
                values = {"limit": limit_in_words(effective.limit), "resource": label}
                where = gettext("%(limit)s on %(resource)s")
                if effective.policy.level in TOTALS:
                    where = gettext("%(limit)s over all resources together")
                return number == 0, {"whose": link.entity, "limit": where % values}
    return None


def shown_link(site: AdminSite, link: ExplainedLink) -> dict[str, Any]:
    """The policies and limits of an entity as people read them."""
    considered = [
        {
            **_source(site, verdict.policy, link.entity),
            "status": verdict.status,
            "standing": _standing(verdict, link.verdicts[:number]),
        }
        for number, verdict in enumerate(link.verdicts)
    ]
    limits = [_limit(site, limit, link.entity) for limit in link.limits]
    return {"entity": link.entity, "considered": considered, "limits": limits}


def _standing(verdict: Verdict, before: Sequence[Verdict]) -> str:
    """The status of a policy in a word; one that a boost extends is boosted."""
    is_extended = verdict.status is PolicyStatus.EXTENDED and verdict.policy.level not in TOTALS
    if is_extended and any(
        other.status in {PolicyStatus.COUNTS, PolicyStatus.EXTENDED}
        and other.policy.extends
        and other.policy.valid_until is not None
        for other in before
    ):
        return gettext("boosted")
    return str(STANDINGS[verdict.status])


def _limit(site: AdminSite, limit: ExplainedLimit, client: str | None) -> dict[str, Any]:
    status, defined = limit.status, limit.effective.limit
    return {
        "shared": limit.effective.shared,
        "binds": limit.binds,
        "status": status,
        "source": _source(site, limit.effective.policy, client),
        "replaced": [_source(site, policy, client) for policy in limit.replaced],
        "overdrawn": amount(status.overdrawn) if status is not None and status.overdrawn else "",
    } | (
        {"blocked": True}
        if isinstance(defined, Blocked)
        else {"words": limit_in_words(defined), "bar": status and _bar_of(defined.key, status, limit.in_slices)}
    )


def _bar_of(label: str, status: LimitStatus, in_slices: float = 0) -> Bar:
    return bar(label, status.used, status.capacity, status.remaining, in_slices=in_slices)


def _source(site: AdminSite, policy: PolicyValue, client: str | None) -> dict[str, Any]:
    """A policy that limits a client as people find it."""
    key = policy.policy_id
    details = [] if policy.effect == PolicyEffect.LIMITS else [str(PolicyEffect(policy.effect).label)]
    shared = gettext("%(key)s (shared)")
    for limit in policy.limits:
        words = limit_in_words(limit)
        details.append(shared % {"key": words} if limit.key in policy.shared else words)
    if policy.rollout_percent < 100:
        details.append(gettext("for %(percent)s %% of the entities") % {"percent": policy.rollout_percent})
    level = level_of(policy.level, client)
    return {
        "level": level,
        "heading": level if client and level.startswith(client) else capfirst(level),
        "url": "" if key is None else reverse(f"{site.name}:limits_app_policy_change", args=[key]),
        "details": details,
        "valid_from": moment(policy.valid_from),
        "valid_until": moment(policy.valid_until),
        "weekly": policy.hours is not None,
    }


def _members(explanation: Explanation) -> Iterator[dict[str, Any]]:
    for member in () if explanation.pool is None else explanation.pool.members:
        bars = [_bar_of(status.key, status) for status in member.limits]
        yield {"name": member.name, "standing": _MEMBERS[member.standing], "bars": bars, "load": percent(member.load)}

"""The page that explains: which limits hold for an entity on a resource, where each comes from, and how full it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.urls import reverse
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import services
from limits_app.admin.pages.frame import EXPLAIN, amount, check, entity_or_none, page, percent
from limits_app.core.errors import LimitsError
from limits_app.core.limits import Blocked
from limits_app.models import OWN, Candidate, PolicyEffect, PolicyScope, Resource
from limits_app.resolver import CALL, Standing

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite
    from django.http import HttpRequest, HttpResponse
    from django.utils.functional import _StrPromise

    from limits_app.core.outcome import LimitStatus
    from limits_app.services.explaining import ExplainedLimit, ExplainedLink, Explanation

__all__ = ["Bar", "bar", "explain_page"]

_MOST_RESOURCES: Final = 200
"""How many names of resources are offered before one has to type."""

_NEAR: Final = 0.8

_MANY: Final = 10
"""From how many units on thousandths are too much to read while they change."""

_LEVELS: Final[Mapping[str, _StrPromise]] = {
    OWN: _("the entity itself"),
    PolicyScope.ENTITY_ON_RESOURCE: _("entity on this resource"),
    PolicyScope.ENTITY: _("entity on all resources"),
    PolicyScope.RESOURCE: _("resource"),
    PolicyScope.SYSTEM: _("system"),
    CALL: _("the call itself"),
}
_STANDINGS: Final[Mapping[Standing, _StrPromise]] = {
    Standing.COUNTS: _("counts"),
    Standing.EXTENDED: _("is added to"),
    Standing.REPLACED: _("is replaced"),
    Standing.NOT_NOW: _("not in force now"),
    Standing.NOT_ROLLED_OUT: _("not rolled out that far"),
    Standing.SHADOW: _("tried in the shadow"),
    Standing.OFF: _("switched off"),
}


@dataclass(frozen=True, slots=True)
class Bar:
    """How full a limit is; `level` is ok, near or full, and `width` is in percent."""

    label: str
    used: str
    capacity: str
    remaining: str
    width: int
    level: str


def bar(label: str, used: float, capacity: float, remaining: float | None = None) -> Bar:
    """Draw how much of a capacity is used; more than all of it is as wide as all of it."""
    share = used / capacity if capacity else 1.0
    level = "full" if share >= 1 else "near" if share >= _NEAR else "ok"
    left = max(capacity - used, 0) if remaining is None else remaining
    digits = 1 if capacity >= _MANY else 3
    said = [amount(round(one, digits)) for one in (used, capacity, left)]
    return Bar(label, said[0], said[1], said[2], round(min(max(share, 0), 1) * 100), level)


def explain_page(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Ask for a resource and an entity, and explain what holds; with `fragment`, the explanation alone."""
    check(request, EXPLAIN)
    resource, entity = request.GET.get("resource", "").strip(), entity_or_none(request)
    context: dict[str, Any] = {"resource": resource, "entity": entity}
    if resource:
        context |= _explained(site, resource, entity)
    if "fragment" in request.GET:
        return page(site, request, "explanation", title="", context=context)
    names = Resource.objects.order_by("name").values_list("name", flat=True)
    context |= {"resources": list(names[:_MOST_RESOURCES])}
    return page(site, request, "explain", title=gettext("Effective limits"), context=context)


def _explained(site: AdminSite, resource: str, entity: str | None) -> dict[str, Any]:
    try:
        found = services.explain(resource, entity=entity)
    except (LimitsError, ValueError) as error:
        return {"problem": str(error)}
    return {
        "explanation": found,
        "links": [_link(site, link, number) for number, link in enumerate(found.chain)],
        "members": list(_members(found)),
        "shadowed": [_bar_of(status.key, status) for status in found.outcome.shadowed],
        "is_unlimited": not any(link.limits for link in found.chain),
        "verdict": _verdict(found),
    }


def _verdict(found: Explanation) -> str:
    """Whether the next request passes, in a sentence."""
    binding = found.outcome.binding
    if binding is None:
        return gettext("The next request is admitted.")
    if not binding.capacity:
        return gettext("The next request is refused: everything is blocked.")
    if binding.retry_after is None:
        return gettext("The next request is refused until something of %(key)s is given back.") % {"key": binding.key}
    said = {"key": binding.key, "seconds": amount(round(binding.retry_after, 1))}
    return gettext("The next request is refused by %(key)s, which admits it in %(seconds)s s.") % said


def _link(site: AdminSite, link: ExplainedLink, number: int) -> dict[str, Any]:
    considered = [
        {**_source(site, verdict.candidate), "standing": verdict.standing.value.replace(" ", "-")}
        | {"said": _STANDINGS[verdict.standing]}
        for verdict in link.verdicts
    ]
    limits = [_limit(site, limit, f"limit-{number}-{place}") for place, limit in enumerate(link.limits)]
    return {"entity": link.entity, "considered": considered, "limits": limits}


def _limit(site: AdminSite, limit: ExplainedLimit, name: str) -> dict[str, Any]:
    status = limit.status
    blocked = isinstance(limit.held.limit, Blocked)
    return {
        "id": name,
        "key": limit.held.limit.key,
        "shared": limit.held.shared,
        "blocked": blocked,
        "source": _source(site, limit.held.candidate),
        "replaced": [_source(site, one) for one in limit.replaced],
        "binds": limit.binds,
        "never": status is not None and status.never,
        "overdrawn": amount(status.overdrawn) if status is not None and status.overdrawn else "",
        "bar": None if status is None or blocked else _bar_of(limit.held.limit.key, status),
        "retry_after": None if status is None else status.retry_after,
        "reset_after": None if status is None else status.reset_after,
    }


def _bar_of(label: str, status: LimitStatus) -> Bar:
    used = status.capacity - status.remaining + status.overdrawn
    return bar(label, used, status.capacity, status.remaining)


def _source(site: AdminSite, candidate: Candidate) -> dict[str, Any]:
    """A policy as people find it."""
    details = [] if candidate.effect == PolicyEffect.LIMITS else [str(PolicyEffect(candidate.effect).label)]
    details += [gettext("%(key)s: %(words)s") % {"key": one.key, "words": _capacity(one)} for one in candidate.limits]
    if candidate.rollout_percent < 100:
        details.append(gettext("for %(percent)s %% of the entities") % {"percent": candidate.rollout_percent})
    return {
        "level": capfirst(_LEVELS[candidate.level]),
        "url": _url(site, candidate.policy_id),
        "details": details,
        "valid_from": candidate.valid_from,
        "valid_until": candidate.valid_until,
        "weekly": candidate.hours is not None,
    }


def _capacity(limit: Any) -> str:
    window = getattr(limit, "window_seconds", None)
    return amount(limit.capacity) + (f" / {amount(window)} s" if window else "")


def _url(site: AdminSite, policy_id: int | None) -> str:
    return "" if policy_id is None else reverse(f"{site.name}:limits_app_policy_change", args=[policy_id])


def _members(found: Explanation) -> Iterator[dict[str, Any]]:
    for member in () if found.pool is None else found.pool.members:
        bars = [_bar_of(status.key, status) for status in member.limits]
        yield {"name": member.name, "standing": str(member.standing), "bars": bars, "load": percent(member.load)}

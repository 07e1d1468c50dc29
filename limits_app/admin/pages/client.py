"""The page of one client: what limits it, what it used, who changed that, and what can be done for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext

from limits_app import audit, services
from limits_app.admin.action_forms import QuickBoostForm
from limits_app.admin.audit_log import events_in_words
from limits_app.admin.pages.client_limits import kept_by_teams, limits_of_client
from limits_app.admin.pages.common import bring_up_to_date, check, page, problem_with
from limits_app.engine.errors import LimitsError
from limits_app.models import AuditEvent, BucketKind, CodeLimits, Entity, Plan, Policy, PolicyEffect, write_alias
from limits_app.services.boosts import boosted_together, is_boost
from limits_app.services.clients import (
    RecentUsage,
    changes_of,
    client_names,
    find_clients,
    own_policies,
    resources_of,
    spent_on,
    temporary,
    user_names,
    with_members,
    with_name,
)
from limits_app.services.display import amount, day, moment, money
from limits_app.services.limit_words import limit_name, limits_in_words
from limits_app.services.policy_words import policy_in_words
from limits_app.services.rejections import rejections_of
from limits_app.services.rights import Action, may, may_change_rows, permission, to_create_entity
from limits_app.services.rule_labels import resource_labels
from limits_app.services.timed_blocks import end_timed_blocks
from limits_app.usage.reading import Use, never_used

_MOST_REJECTIONS: Final = 5
_MOST_MEMBERS: Final = 20
_MOST_PLANS: Final = 200
_MOST_DAYS_SHOWN: Final = 21


class PlanForm(forms.Form):
    """The plan of a client."""

    plan = forms.ModelChoiceField(Plan.objects.order_by("name"), required=False, to_field_name="name")


def client_address(site: AdminSite, identifier: str) -> str:
    """Where the page of a client is."""
    return reverse(f"{site.name}:limits_app_client", query={"entity": identifier})


def client_page(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Find a client, show its page, or do what was chosen there."""
    check(request, Action.VIEW_LIMITS)
    text, identifier = request.GET.get("find", "").strip(), request.GET.get("entity", "")
    if problem := problem_with(text, entity=identifier or None, allows_patterns=False):
        return _finding(site, request, {"text": text or identifier, "problem": problem})
    if not identifier:
        matches = find_clients(text)
        if len(matches) == 1 or (matches and matches[0].identifier == text):
            return HttpResponseRedirect(client_address(site, matches[0].identifier))
        if not matches and ":" in text:  # an identifier, whose client need not have a row
            return HttpResponseRedirect(client_address(site, text))
        return _finding(site, request, {"text": text, "found": matches})
    if request.method == "POST":
        return _changed(site, request, identifier)
    return _shown(site, request, identifier, QuickBoostForm())


def _finding(site: AdminSite, request: HttpRequest, context: Mapping[str, Any]) -> HttpResponse:
    return page(site, request, "client_search", title=gettext("Find a client"), context=context)


def _changed(site: AdminSite, request: HttpRequest, identifier: str) -> HttpResponse:
    """Do what the pressed button says, and show the page again."""
    act = next((act for name, act in _ACTS.items() if name in request.POST), None)
    if act is None:
        return HttpResponseRedirect(client_address(site, identifier))
    boost = QuickBoostForm(request.POST) if act is _boost else QuickBoostForm()
    try:
        with audit.acting(actor=request.user.get_username(), source="admin", using=write_alias()):
            message = act(request, identifier, boost)
    except (LimitsError, ValidationError) as error:
        problems = error.messages if isinstance(error, ValidationError) else [str(error)]
        for problem in problems:
            if act is _boost:
                boost.add_error(None, problem)
            else:
                messages.error(request, problem)
        return _shown(site, request, identifier, boost)
    if not message:
        return _shown(site, request, identifier, boost)
    messages.success(request, message)
    if act is _boost:
        resources = resources_of(RecentUsage(identifier).uses, own_policies(identifier))
        limits = limits_of_client(site, identifier, resources, None).get("limits", ())
        for kept in kept_by_teams(site, identifier, limits):
            messages.warning(request, kept)
    return HttpResponseRedirect(client_address(site, identifier))


def _boost(request: HttpRequest, identifier: str, form: QuickBoostForm) -> str:
    _check(request, Action.BOOST, *to_create_entity(identifier))
    if not form.is_valid():
        return ""
    data = form.cleaned_data
    if data["number"] is not None:
        key, _space, resource = data["limit"].partition(" ")
        how = data["number"], data["until"], data["reason"]
        limits = _limits_in_words(services.boost_to(identifier, resource, key, *how, plan=""))
        values = {"client": _named(identifier), "limits": limits, "until": moment(data["until"])}
        return gettext("%(client)s may use %(limits)s until %(until)s.") % values
    services.boost_each(identifier, data["factor"], data["until"], data["reason"], plan="")
    values = {"client": _named(identifier), "factor": amount(float(data["factor"])), "until": moment(data["until"])}
    return gettext("%(client)s has %(factor)s times its limits until %(until)s.") % values


def _end_boost(request: HttpRequest, identifier: str, _form: QuickBoostForm) -> str:
    _check(request, Action.BOOST)
    chosen = _number(request.POST["_end_boost"])
    parts = boosted_together(temporary(own_policies(identifier))[0])
    boost = next((part for part in parts if any(map(is_boost, part)) and chosen in {row.pk for row in part}), [])
    if not boost:
        return gettext("This boost has ended already.")
    for policy in boost:
        policy.delete()
    return gettext("The boost of %(client)s has ended.") % {"client": _named(identifier)}


def _unblock(request: HttpRequest, identifier: str, _form: QuickBoostForm) -> str:
    _check(request, Action.BLOCK)
    row = Entity.objects.filter(identifier=identifier).first()
    if row is not None:
        row.blocked = False
        row.save(update_fields=["blocked"])
    end_timed_blocks(identifier)
    return gettext("%(client)s is not blocked any more.") % {"client": _named(identifier)}


def _set_plan(request: HttpRequest, identifier: str, _form: QuickBoostForm) -> str:
    _check(request, Action.VIEW_LIMITS, permission("change", Entity), *to_create_entity(identifier))
    form = PlanForm(request.POST)
    if not form.is_valid():
        raise ValidationError(list(form.errors["plan"]))
    plan = form.cleaned_data["plan"]
    services.set_entity(identifier, plan=None if plan is None else plan.name)
    values = {"client": _named(identifier), "plan": "" if plan is None else plan.name}
    return (gettext("%(client)s is on the plan “%(plan)s”.") if plan else gettext("%(client)s has no plan.")) % values


_ACTS: Final[Mapping[str, Callable[[HttpRequest, str, QuickBoostForm], str]]] = {
    "_boost": _boost,
    "_end_boost": _end_boost,
    "_unblock": _unblock,
    "_plan": _set_plan,
}
"""What each button does; each returns a message, or nothing where the form has errors."""


def _named(identifier: str) -> str:
    """The client as people know it, such as “cedar (user:4)”."""
    return with_name(identifier, client_names([identifier]))


def _check(request: HttpRequest, action: Action, *more: Action | str) -> None:
    if not may(request.user, action, *more):
        raise PermissionDenied


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _shown(site: AdminSite, request: HttpRequest, identifier: str, boost: QuickBoostForm) -> HttpResponse:
    bring_up_to_date()
    row, members = with_members(identifier, most=_MOST_MEMBERS + 1)
    policies = [] if row is None else own_policies(identifier)
    parent = None if row is None else row.parent
    own_rows = [entity for entity in (row, parent, *members) if entity is not None]
    names = {entity.identifier: entity.name for entity in own_rows if entity.name}
    names |= user_names({identifier, *(entity.identifier for entity in own_rows)} - names.keys())
    recent, sees_usage = RecentUsage(identifier), may(request.user, Action.VIEW_USAGE)
    limited = limits_of_client(site, identifier, resources_of(recent.uses, policies), recent if sees_usage else None)
    uses = limited["uses"]
    boost.offer(limited.get("limits", ()), identifier)
    now_ending, lately_ended = temporary(policies)
    urls = resource_labels(policy.resource.name for policy in (*now_ending, *lately_ended) if policy.resource)
    context: dict[str, Any] = {
        "entity": identifier,
        "name": names.get(identifier, ""),
        "row": row,
        "parent": None if parent is None else (parent.identifier, names.get(parent.identifier, "")),
        "members": [(member.identifier, names.get(member.identifier, "")) for member in members[:_MOST_MEMBERS]],
        "more_members": len(members) > _MOST_MEMBERS,
        "unused": [] if recent.uses or members else never_used([identifier]),
        "is_unused_team": _is_unused_team(identifier, members),
        "ending": [_ends(part, urls) for part in boosted_together(now_ending)],
        "ended": [_ends(part, urls) for part in boosted_together(lately_ended)],
        "boost": boost,
        "kept_by_teams": [*kept_by_teams(site, identifier, limited.get("limits", ()))],
        "plans": _plans(request, row),
        "may_view_row": may_change_rows(request.user, "view", Entity),
        **limited,
    }
    if sees_usage:
        plan = None if row is None else row.plan
        client = Entity(identifier=identifier, name=names.get(identifier, ""), plan=plan)
        context |= {"days": [*_days(uses)], "rejections": [*_rejections(client, limited["code_limits"])]}
        context["spent"] = [money(number, currency) for currency, number in spent_on(uses).items()]
    if may(request.user, Action.VIEW_HISTORY):
        events = changes_of(identifier, row, [policy.pk for policy in policies])
        context["changes"] = [*events_in_words(site, events, names, client=identifier)]
        context["why_blocked"] = _reason_of_block(events) if row is not None and row.blocked else ""
    title = f"{names[identifier]} ({identifier})" if identifier in names else identifier
    return page(site, request, "client", title=title, context=context, switch=limited.get("switch"))


def _reason_of_block(events: Iterable[AuditEvent]) -> str:
    """Why the client was blocked, by the latest event that did it; empty where no reason was entered."""
    for event in events:
        before, after = event.before or {}, event.after or {}
        if event.object_type == Entity._meta.model_name and after.get("blocked") and not before.get("blocked"):
            return event.reason
    return ""


def _is_unused_team(identifier: str, members: Sequence[Entity]) -> bool:
    """Whether neither a team nor a member has sent a request; large teams are not asked about."""
    names = [identifier, *(member.identifier for member in members)]
    return bool(members) and len(members) <= _MOST_MEMBERS and len(never_used(names)) == len(names)


def _ends(policies: Sequence[Policy], urls: Mapping[str, str]) -> dict[str, Any]:
    """What ends by itself: a boost with its limits on each resource, or another policy."""
    first = policies[0]
    names = ["" if policy.resource is None else policy.resource.name for policy in policies]
    limits = [(urls.get(name, name), _limits_in_words(policy)) for name, policy in zip(names, policies, strict=True)]
    boosted = is_boost(first) or len(policies) > 1
    return {
        "policy": first,
        "title": gettext("Boost") if boosted else policy_in_words(first, {}),
        "limits": [(where, words) for where, words in limits if words],
        "effect": "" if first.effect == PolicyEffect.LIMITS or boosted else PolicyEffect(first.effect).label,
        "until": moment(first.valid_until),
        "is_boost": boosted,
    }


def _limits_in_words(policy: Policy) -> str:
    return limits_in_words(" ".join(limit.notation() for limit in policy.limits.all()))


def _plans(request: HttpRequest, row: Entity | None) -> list[str]:
    """The plans that the user may give the client."""
    to_create = (Action.CREATE_CLIENT,) if row is None else ()
    if not may(request.user, Action.VIEW_LIMITS, permission("change", Entity), *to_create):
        return []
    return [*Plan.objects.order_by("name").values_list("name", flat=True)[:_MOST_PLANS]]


def _days(uses: Iterable[Use]) -> Iterator[dict[str, Any]]:
    """What the client used on each of the last days, the latest first."""
    sums: dict[tuple[datetime | None, str, BucketKind], list[Any]] = {}
    for use in uses:
        total = sums.setdefault((use.start, use.key, use.bucket), [0, 0])
        total[0] += use.admitted
        total[1] += use.refused
    for (start, key, _bucket), (allowed, rejected) in list(sums.items())[:_MOST_DAYS_SHOWN]:
        yield {
            "day": day(start),
            "limit": limit_name(key),
            "allowed": amount(allowed),
            "rejected": amount(rejected),
        }


def _rejections(client: Entity, code_limits: Mapping[str, Sequence[CodeLimits]]) -> Iterator[dict[str, Any]]:
    for rejection in rejections_of(client, most=_MOST_REJECTIONS, code_limits=code_limits):
        yield {
            "minute": moment(rejection.count.minute),
            "why": rejection.why,
            "times": amount(rejection.count.count),
            "resource": rejection.count.resource,
        }

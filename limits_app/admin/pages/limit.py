"""The page of a limit: one form for new limits and for changes, in the words of a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core import signing
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import audit, conf
from limits_app.admin.base import version_of
from limits_app.admin.forms import is_primary_key
from limits_app.admin.limit_form import SimpleLimitForm
from limits_app.admin.limit_links import full_form_address, limit_address
from limits_app.admin.pages.common import check, page
from limits_app.admin.resources import warn_of_rule
from limits_app.engine.errors import InvalidLimit
from limits_app.models import AlertKind, AlertRule, AuditEvent, Endpoint, Entity, Plan, Policy
from limits_app.services.clients import find_clients, lately_used, with_names
from limits_app.services.definitions import InvalidDefinition
from limits_app.services.limit_form import saving
from limits_app.services.limit_form.effects import (
    MOST_SUGGESTED,
    LimitEffect,
    effect_of,
    matches_in_words,
    resource_names,
    unmatched_in_words,
)
from limits_app.services.limit_form.proposed import with_kept
from limits_app.services.limit_form.team_members import member_names
from limits_app.services.limit_sentences import (
    SimpleLimit,
    Who,
    read,
    rule_of,
    sentence,
    uncounted_members,
)
from limits_app.services.rights import (
    Action,
    may,
    may_revert,
    permission,
    to_create_entity,
    to_replace_candidate,
    to_replace_row,
)
from limits_app.services.site_urls import SiteUrls

_MOST_ALERT_NAME: Final = 100
_UNDO_SECONDS: Final = 600
_SALT: Final = "limits_app.undo"
_EXAMPLES: Final[Mapping[str, tuple[Any, Mapping[str, object]]]] = {
    "api": (_("API"), {"target": "/api/*", "who": Who.CLIENT, "number_1": "60"}),
    "login": (_("Log-in"), {"target": "/login/", "who": Who.ADDRESS, "number_1": "10", "per_1": "h"}),
    "llm": (
        _("LLM tokens"),
        {
            "target": "llm",
            "who": Who.USER,
            "number_1": "20",
            "number_2": "100k",
            "unit_2": "tokens",
            "per_2": "day",
        },
    ),
    "export": (_("Export"), {"target": "/export/", "who": Who.USER, "number_1": "5", "per_1": "h"}),
    "webhook": (_("Webhook"), {"target": "/webhooks/*", "who": Who.TOGETHER, "number_1": "50", "per_1": "s"}),
}
"""Examples to start from."""

RuleOrPolicy = Endpoint | Policy


class LimitChange(NamedTuple):
    """A limit that is saved, in place of that of a row, or as a new one."""

    limit: SimpleLimit
    instance: RuleOrPolicy | None


def limit_page(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Show the form; describe, save, try or undo the limit."""
    if "_undo" in request.POST:
        return _undone(site, request)
    instance = _instance(request)
    check(request, Action.LIMIT_SOMETHING, *to_replace_row(instance))
    if isinstance(instance, Policy) and rule_of(instance) is not None:
        return HttpResponseRedirect(limit_address(site.name, instance))
    before = None if instance is None else read(instance)
    if instance is not None and (before is None or "_advanced" in request.POST):
        return HttpResponseRedirect(full_form_address(site.name, instance))
    if "_advanced" in request.POST:
        return HttpResponseRedirect(reverse(f"{site.name}:limits_app_policy_add"))
    if request.method == "POST":
        return _sent(site, request, SimpleLimitForm(request.POST, instance=before), instance)
    form = SimpleLimitForm(initial=_initial(request, before), instance=before)
    effect = None if before is None else effect_of(before, instance, shows_usage=False)
    return _shown(site, request, form, instance, effect=effect)


def _sent(site: AdminSite, request: HttpRequest, form: SimpleLimitForm, instance: RuleOrPolicy | None) -> HttpResponse:
    """Describe, save or try the limit of a form that was sent; what may be a mistake is shown once before."""
    limit, effect = _limit(form, is_trial="_try" in request.POST and instance is not None), None
    if limit is not None:
        effect = effect_of(limit, instance, shows_usage=may(request.user, Action.VIEW_USAGE))
    if "_effect" in request.POST:
        context = {"form": form, "effect": effect, **_live(form)}
        return TemplateResponse(request, "admin/limits_app/pages/limit_live.html", context)
    is_read = effect is not None and effect.seen in {"", request.POST.get("seen")}
    if limit and is_read and "_check" not in request.POST and not _is_outdated(request, form, instance):
        done = _tried if "_try" in request.POST else _saved
        if (response := done(site, request, form, LimitChange(limit, instance))) is not None:
            return response
    return _shown(site, request, form, instance, effect=effect, is_unread=limit is not None and not is_read)


def _limit(form: SimpleLimitForm, *, is_trial: bool) -> SimpleLimit | None:
    """The limit of a form, with those of others that it is to keep; None where the form has errors."""
    if not form.is_valid():
        return None
    return with_kept(form.limit, is_trial=is_trial) if form.cleaned_data["keep"] else form.limit


def _shown(
    site: AdminSite,
    request: HttpRequest,
    form: SimpleLimitForm,
    instance: RuleOrPolicy | None,
    *,
    effect: LimitEffect | None,
    is_unread: bool = False,
) -> HttpResponse:
    context = {
        "form": form,
        "instance": instance,
        "version": "" if instance is None else version_of(instance),
        "effect": effect,
        "is_unread": is_unread,
        "undo": _undo_token(request),
        "alert": _alert_address(site, request, instance),
        "examples": {name: label for name, (label, _example) in _EXAMPLES.items()} if instance is None else {},
        "paths": sorted(path for path in SiteUrls().routes if not path.startswith(reverse(f"{site.name}:index"))),
        "resources": resource_names(),
        "plans": Plan.objects.order_by("name").values_list("name", flat=True)[:MOST_SUGGESTED],
        "units": [gettext("requests"), "tokens", "connections", "bytes"],
        "may_try": may(request.user, Action.SET_CANDIDATE),
        "reason_now": _reason_now(request, instance),
        "members": member_names(str(form["entity"].value() or "")) if form["who"].value() == Who.TEAM else "",
        **_live(form),
    }
    title = gettext("Change a limit") if instance is not None else gettext("Limit something")
    return page(site, request, "limit", title=title, context=context)


def _alert_address(site: AdminSite, request: HttpRequest, instance: RuleOrPolicy | None) -> str:
    """Where a mail at a share of the limits of a client can be set up, after they were saved; empty for others."""
    entity = instance.entity if isinstance(instance, Policy) else None
    if (
        entity is None
        or "saved" not in request.GET
        or not may(request.user, Action.LIMIT_SOMETHING, permission("add", AlertRule))
    ):
        return ""
    percent = round(conf.get(conf.NEAR_THRESHOLDS)[0] * 100)
    query = {
        "name": f"{entity.identifier} {percent} %"[:_MOST_ALERT_NAME],
        "kind": AlertKind.THRESHOLD,
        "percent": percent,
        "entity": entity.identifier,
        "resource": instance.resource.name if isinstance(instance, Policy) and instance.resource else "",
    }
    return reverse(f"{site.name}:limits_app_alertrule_add", query=query)


def _reason_now(request: HttpRequest, instance: RuleOrPolicy | None) -> str:
    """The reason that was given last: policies have it, and that of a rule is in the audit log."""
    if not isinstance(instance, Endpoint):
        return "" if instance is None else instance.reason
    if not may(request.user, Action.VIEW_HISTORY):
        return ""
    events = AuditEvent.objects.filter(object_type=Endpoint._meta.model_name, object_id=instance.pk)
    return events.exclude(reason="").order_by("-number").values_list("reason", flat=True).first() or ""


def _live(form: SimpleLimitForm) -> dict[str, Any]:
    """What follows while one types, also where the form has errors."""
    text = str(form["entity"].value() or "")
    if text:
        clients = [(client.identifier, client.name) for client in find_clients(text)]
    else:
        rows = Entity.objects.order_by("identifier").values_list("identifier", flat=True)[:MOST_SUGGESTED]
        clients = with_names(dict.fromkeys([*rows, *lately_used(most=MOST_SUGGESTED)]))
    target = form.chosen_target
    return {"matches": matches_in_words(*target), "unmatched": unmatched_in_words(*target), "clients": clients}


def _is_outdated(request: HttpRequest, form: SimpleLimitForm, instance: RuleOrPolicy | None) -> bool:
    """Whether the row was changed since the form was opened, which is then shown as an error."""
    sent = request.POST.get("_version")
    if instance is None or not sent or sent == version_of(instance):
        return False
    problem = gettext("This object has been changed since you opened the form. Saving again overwrites that change.")
    form.add_error(None, problem)
    return True


def _check_rights(request: HttpRequest, limit: SimpleLimit, instance: RuleOrPolicy | None) -> None:
    """Raise PermissionDenied unless the user may write all rows of a limit."""
    check(request, Action.LIMIT_SOMETHING, *to_create_entity(saving.entity_of(limit) or None))
    check(request, Action.LIMIT_SOMETHING, *to_replace_row(instance or saving.existing(limit)))
    if limit.who == Who.PLAN:
        is_new = not Plan.objects.filter(name=limit.plan).exists()
        regroups = limit.groups or limit.groups_off
        rights = [permission("add", Plan)] if is_new else [permission("change", Plan)] if regroups else []
        check(request, Action.LIMIT_SOMETHING, *rights)
    if limit.billing_from is not None:
        check(request, Action.LIMIT_SOMETHING, permission("change", Entity))
    for member in limit.new_members:
        check(request, Action.LIMIT_SOMETHING, permission("change", Entity), *to_create_entity(member))
    if limit.who == Who.TEAM and limit.counts_members and uncounted_members(limit.entity).exists():
        check(request, Action.LIMIT_SOMETHING, permission("change", Entity))


def _saved(site: AdminSite, request: HttpRequest, form: SimpleLimitForm, change: LimitChange) -> HttpResponse | None:
    """Save the limit and lead to its page; None where errors are shown in the form."""
    limit, instance = change
    _check_rights(request, limit, instance)
    reason = form.cleaned_data["reason"]
    try:
        saved = saving.save(limit, instance, actor=request.user.get_username(), reason=reason)
    except InvalidDefinition as error:
        form.add_definition_errors(error)
        return None
    except ValidationError as error:
        form.add_error(None, error)
        return None
    messages.success(request, gettext("Saved: %s") % sentence(limit))
    if isinstance(saved.row, Endpoint):
        warn_of_rule(request, saved.row)
    token = signing.dumps([saved.events.start, saved.events.stop], salt=_SALT)
    # A team that has no members so far is a team on this page too.
    return HttpResponseRedirect(limit_address(site.name, saved.row, saved=token, who=limit.who))


def _tried(site: AdminSite, request: HttpRequest, form: SimpleLimitForm, change: LimitChange) -> HttpResponse | None:
    """Evaluate the limit beside the one in force; one for which there is none yet is saved, and only reported."""
    limit = change.limit
    policy = saving.policy_to_try(limit)
    if policy is None:
        return _saved(site, request, form, LimitChange(replace(limit, shadow=True), change.instance))
    check(request, Action.SET_CANDIDATE, *to_replace_candidate(policy))
    try:
        reason = form.cleaned_data["reason"]
        candidate = saving.save_trial(limit, policy, actor=request.user.get_username(), reason=reason)
    except InvalidLimit as error:
        form.add_error(None, str(error))
        return None
    messages.success(request, gettext("Tried beside the limit in force: %s") % sentence(limit))
    return HttpResponseRedirect(reverse(f"{site.name}:limits_app_candidate_promote", args=[candidate.pk]))


def _undo_token(request: HttpRequest) -> str:
    """What undoes the save that led here; empty where it is too late, or the user may not revert changes."""
    token = request.GET.get("saved", "")
    return token if token and may(request.user, Action.REVERT) and _events(token) is not None else ""


def _events(token: str) -> range | None:
    """The audit events that a token is about; None ten minutes after it was made."""
    try:
        return range(*signing.loads(token, salt=_SALT, max_age=_UNDO_SECONDS))
    except signing.BadSignature:
        return None


def _undone(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Undo a save, and lead to the list of limits."""
    check(request, Action.REVERT)
    events = _events(request.POST["_undo"])
    if events is None:
        messages.error(request, gettext("Ten minutes have passed: revert the change in the audit log."))
        return HttpResponseRedirect(reverse(f"{site.name}:limits_app_auditevent_changelist"))
    try:
        is_allowed = partial(may_revert, request.user)
        saving.undo(events, actor=request.user.get_username(), is_allowed=is_allowed)
    except audit.CannotRevert as error:
        messages.error(request, str(error))
        return HttpResponseRedirect(request.get_full_path())
    messages.success(request, gettext("The change was undone."))
    return HttpResponseRedirect(reverse(f"{site.name}:limits_app_limitsentry_changelist"))


def _instance(request: HttpRequest) -> RuleOrPolicy | None:
    """The rule or policy to change; 404 for one that does not exist."""
    for name, model in (("rule", Endpoint), ("policy", Policy)):
        if key := request.GET.get(name, ""):
            rows = model._default_manager.select_related("resource")
            row: Any = rows.filter(pk=key).first() if is_primary_key(key) else None
            if row is None:
                raise Http404
            return row  # type: ignore[no-any-return]
    return None


def _initial(request: HttpRequest, before: SimpleLimit | None) -> dict[str, Any]:
    """What the form begins with: a limit, or what a link says."""
    if before is not None:
        is_team = before.who == Who.ENTITY and request.GET.get("who") == Who.TEAM
        return SimpleLimitForm.initial_of(before) | ({"who": Who.TEAM} if is_team else {})
    initial: dict[str, Any] = {name: request.GET[name] for name in ("who", "entity", "plan") if name in request.GET}
    for name in ("path", "resource"):
        if name in request.GET:
            initial["target"] = request.GET[name]
    if "entity" in initial:
        initial.setdefault("who", Who.ENTITY)
    _label, example = _EXAMPLES.get(request.GET.get("template", ""), ("", {}))
    return {**example, **initial}

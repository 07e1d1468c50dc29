"""Changes by people who write limits as sentences: what a limit replaces, and saving, trying and undoing it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Case, QuerySet, When
from django.utils import timezone
from django.utils.text import slugify
from django.utils.translation import gettext

from limits_app import audit
from limits_app.engine import limit_text
from limits_app.engine.errors import CannotRevert
from limits_app.models import (
    WITHOUT_CONDITIONS,
    AuditEvent,
    Candidate,
    Counted,
    CountedBy,
    Endpoint,
    Enforcement,
    Entity,
    Plan,
    PlanGroup,
    Policy,
    Resource,
    write_alias,
)
from limits_app.models.fields import in_site_time
from limits_app.models.policy_rules import not_ended
from limits_app.models.rule_resources import LONGEST_STEM
from limits_app.services import definitions
from limits_app.services.candidates import set_candidate
from limits_app.services.limit_form.team_members import add_members, lift_each
from limits_app.services.limit_sentences import (
    ADVANCED,
    COUNTED_BY,
    OF_ONE,
    PATTERNS,
    SimpleLimit,
    What,
    Who,
    policies_of,
    read,
    uncounted_members,
)

_BY_CLIENT: Final = (CountedBy.ENTITY, CountedBy.USER, CountedBy.API_KEY)
"""The counts of URL rules for which a client or a plan can have its own limits."""


class Saved(NamedTuple):
    """The saved row, and the numbers of the audit events of that."""

    row: Endpoint | Policy
    events: range


def existing(limit: SimpleLimit) -> Endpoint | Policy | None:
    """The rule or policy that saving a limit changes: that of the same URL and count, or of the same scope."""
    if limit.is_rule:
        return _rules(limit).exclude(limits="").first()
    scope = _scope(limit)
    if limit.what == What.URL and scope["resource"] is None:
        return None  # no rule charges a resource for the URL yet
    names = {"resource__name": scope["resource"], "entity__identifier": scope["entity"], "plan__name": scope["plan"]}
    policies = Policy.objects.using(write_alias()).filter(**names, counted=scope["counted"], weekly_hours="")
    if limit.until is None:
        return policies.filter(valid_from=None).first()
    now = in_site_time(timezone.now())
    return policies.filter(not_ended(now), valid_from__lte=now, valid_until__isnull=False, extends=False).first()


def replaced(limit: SimpleLimit) -> Endpoint | Policy | None:
    """The rule or policy whose limits no longer apply with a limit; for one with an end it may be the lasting one."""
    row = existing(limit)
    return existing(replace(limit, until=None)) if row is None and limit.until else row


def save(limit: SimpleLimit, instance: Endpoint | Policy | None = None, *, actor: str, reason: str) -> Saved:
    """Make the rows of a limit, or change those of `instance`, in one transaction with their audit events.

    Without `instance`, the limit of the same scope is changed where there is one. An `instance` without an end stays
    as it is where the limit has an end.

    Raises InvalidDefinition with everything that is wrong, by the names of the fields of a rule or a policy, and
    ValidationError where the limit of another row would be replaced, or one that a sentence cannot express; then
    nothing has changed.
    """
    acting = partial(audit.acting, actor=actor, source="admin", reason=reason)
    with transaction.atomic(write_alias()):
        with acting():
            before = _last_event()
            row = _save(limit, _to_change(limit, instance), reason)
            _put_on_plan(limit)
            if limit.billing_from is not None and limit.who in OF_ONE:
                client = Entity.objects.using(write_alias()).get(identifier=limit.entity)
                _defined(client, {"billing_from": limit.billing_from}, is_new=False)
            if limit.who == Who.TEAM:
                add_members(limit.entity, limit.new_members, counts=limit.counts_members)
            if limit.who == Who.TEAM and limit.counts_members:
                uncounted_members(limit.entity).update(cascade=True)
            lift_each(limit, is_change=instance is not None, reason=reason)
        if isinstance(row, Endpoint):
            row.refresh_from_db()  # its policy was made at the end of the block
            with acting():
                policies_of(row).update(enforcement=_enforcement(limit))
        return Saved(row, range(before + 1, _last_event() + 1))


def policy_to_try(limit: SimpleLimit) -> Policy | None:
    """The policy beside which a limit can be tried: that of the same scope, or None."""
    row = existing(limit)
    return policies_of(row).first() if isinstance(row, Endpoint) else row


def save_trial(limit: SimpleLimit, policy: Policy, *, actor: str, reason: str) -> Candidate:
    """Evaluate a limit beside that of a policy, which stays in force.

    Raises InvalidLimit with everything that is wrong.
    """
    text = " ".join(limit_text(noted.limit, shared=noted.shared) for noted in limit.noted)
    return set_candidate(policy, text, reason=reason, actor=actor)


def _to_change(limit: SimpleLimit, instance: Endpoint | Policy | None) -> Endpoint | Policy | None:
    """The row that a limit is saved in; None for a new one."""
    if limit.until and not (isinstance(instance, Policy) and instance.valid_until):
        instance = None  # the lasting limit applies again later
    row = existing(limit)
    if row is None or row == instance:
        return instance
    if instance is not None:
        raise ValidationError(
            gettext("Limits for this URL or resource and this client type already exist. Edit them instead.")
        )
    if read(row) is None:
        raise ValidationError(gettext("The limit that applies now has settings that are under Advanced only."))
    return row


def _save(limit: SimpleLimit, instance: Endpoint | Policy | None, reason: str) -> Endpoint | Policy:
    model = Endpoint if limit.is_rule else Policy
    if instance is not None and type(instance) is not model:
        instance.delete()
        instance = None
    if model is Endpoint:
        fields = _rule_fields(limit, is_new=instance is None)
    else:
        _make_rule(limit)
        fields = _policy_fields(limit, reason or getattr(instance, "reason", ""))
    row: Endpoint | Policy = _defined(instance or model(), fields, is_new=instance is None)
    return row


def _defined(row: Any, fields: dict[str, Any], *, is_new: bool) -> Any:
    definition = definitions.read(row, fields, partial=not is_new, find=definitions.find_or_new)
    definitions.save(definition)
    return definition.row


def _make_rule(limit: SimpleLimit) -> None:
    """Make the rule that charges a resource for the URL of a limit which is a policy, where there is none."""
    if limit.what != What.URL or _rules(limit).exists():
        return
    stem = f"url-{slugify(limit.path.replace('/', '-'))[:LONGEST_STEM].strip('-') or 'site'}"
    names = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
    taken = Resource.objects.using(write_alias()).filter(name__startswith=stem)
    used = {*taken.values_list("name", flat=True)}
    fields = {
        "name": limit.path[:100],
        "path": limit.path,
        "counted_by": COUNTED_BY.get(limit.who, CountedBy.ENTITY),
        "resource": next(name for name in names if name not in used),
    }
    _defined(Endpoint(), fields, is_new=True)


def _put_on_plan(limit: SimpleLimit) -> None:
    """Put groups of a limit on its plan, and take others off it."""
    plan = Plan.objects.using(write_alias()).filter(name=limit.plan).first()
    if plan is None:
        return
    rows = PlanGroup.objects.using(write_alias()).filter(plan=plan)
    for row in rows.filter(group__in=[group.pk for group in limit.groups_off]):
        row.delete()
    for group in limit.groups:
        if not rows.filter(group=group).exists():
            row = PlanGroup(plan=plan, group=group)
            row.full_clean()
            row.save(using=write_alias())


def entity_of(limit: SimpleLimit) -> str:
    """The identifier or pattern of the entity that a limit is for, whose row `save` makes; empty without one."""
    if limit.who in OF_ONE:
        return limit.entity
    return "" if limit.what == What.URL else PATTERNS.get(limit.who, "")


def _rules(limit: SimpleLimit) -> QuerySet[Endpoint]:
    """The rules of the URL of a limit by which those whom it is for are counted."""
    counted = [COUNTED_BY[limit.who]] if limit.who in COUNTED_BY else _BY_CLIENT
    rules = Endpoint.objects.using(write_alias()).filter(path=limit.path, counted_by__in=counted)
    rules = rules.filter(**{name: WITHOUT_CONDITIONS[name] for name in ADVANCED})
    if limit.is_rule:  # a rule for certain responses is another one
        rules = rules.filter(responses=limit.responses)
    # One with its own limits first: another limit of the URL is to replace these.
    return rules.order_by(Case(When(limits="", then=1), default=0), "order", "pk")


def resource_of(limit: SimpleLimit) -> str | None:
    """The name of the resource that a limit counts; None for all, and for a URL that is not counted yet."""
    if limit.what == What.URL:
        rule = _rules(limit).select_related("resource").first()
        return None if rule is None else rule.resource_name
    return limit.resource or None


def _rule_fields(limit: SimpleLimit, *, is_new: bool) -> dict[str, Any]:
    fields = {"path": limit.path, "limits": " ".join(_texts(limit)), "counted_by": COUNTED_BY[limit.who]}
    fields |= {"responses": limit.responses, "block_for": limit.block_for}
    return fields | ({"name": limit.path[:100]} if is_new else {})


def _texts(limit: SimpleLimit) -> list[str]:
    return [*limit.limits, *(limit_text(noted.limit, shared=noted.shared) for noted in limit.kept)]


def _enforcement(limit: SimpleLimit) -> Enforcement:
    return Enforcement.SHADOW if limit.shadow else Enforcement.ENFORCE


def _policy_fields(limit: SimpleLimit, reason: str) -> dict[str, Any]:
    fields = {
        "limits": list(limit.noted),
        "extends": limit.extends,
        "enforcement": _enforcement(limit),
        "reason": reason,
    }
    dates = {"valid_until": limit.until} | ({} if limit.until else {"valid_from": None})
    return _scope(limit) | fields | dates


def _scope(limit: SimpleLimit) -> dict[str, Any]:
    """The fields of a policy that say what it is for."""
    return {
        "resource": resource_of(limit),
        "entity": entity_of(limit) or None,
        "plan": limit.plan if limit.who == Who.PLAN else None,
        "counted": Counted.TOTAL if limit.what == What.EVERYTHING else Counted.EACH,
    }


def _last_event() -> int:
    events = AuditEvent.objects.using(write_alias()).order_by("-number")
    return events.values_list("number", flat=True).first() or 0


def undo(events: range, *, actor: str, is_allowed: Callable[[AuditEvent], bool]) -> None:
    """Revert the audit events of a save together: what it made is deleted, and what it changed is as before.

    Raises CannotRevert without changing anything if one of the objects has been changed since, or if the user may not
    revert one of them, which `is_allowed` says.
    """
    with transaction.atomic(write_alias()):
        rows = AuditEvent.objects.using(write_alias()).filter(number__in=[*events])
        rules = [event for event in rows if event.object_type == Endpoint._meta.model_name]
        made = audit.made_for_rules(rules)
        others = [event for event in rows.order_by("-number") if event not in rules and not audit.is_made(event, made)]
        for event in (*rules, *others):  # a rule takes its resource with it, and so it is first
            with audit.acting(actor=actor, source="admin", reason=gettext("undone"), using=write_alias()):
                if not is_allowed(event):
                    raise CannotRevert(gettext("You do not have the permission to undo this."))
                audit.revert(event)
        for event in rows.order_by("-number"):
            if event.object_type == Policy._meta.model_name and audit.is_made(event, made) and event.before:
                with audit.acting(actor=actor, source="admin", reason=gettext("undone"), using=write_alias()):
                    policies = Policy.objects.using(write_alias()).filter(pk=event.object_id)
                    policies.update(enforcement=event.before["enforcement"])

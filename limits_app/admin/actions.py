"""Admin actions with a confirmation page, each with its permission."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import router, transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from limits_app import audit, services
from limits_app.admin.action_forms import (
    BlockReasonForm,
    BoostForm,
    EntityBoostForm,
    EntityResetForm,
    EntityTopUpForm,
    ReasonForm,
    RequiredReasonForm,
    TopUpForm,
)
from limits_app.admin.base import AuditedAdmin, confirmation
from limits_app.admin.own_blocks import CONFIRM, block_problem
from limits_app.engine.errors import InvalidRequest, LimitsError, StoreUnavailable
from limits_app.models import AuditEvent, Counted, Enforcement, Entity, Plan, Policy, Resource
from limits_app.models.limit_rules import amount_of
from limits_app.models.patterns import is_pattern
from limits_app.policies import dropped_by_each
from limits_app.services import block_confirmation
from limits_app.services.limit_words import limit_key, limit_name
from limits_app.services.policy_warnings import MOST_NAMED
from limits_app.services.policy_words import row_in_words
from limits_app.services.rights import Action, may
from limits_app.services.timed_blocks import end_timed_blocks

MOST_ROWS: Final = 500
"""Maximum number of rows of an action: it is one transaction, and other writers wait for it."""


class ConfirmedAction:
    """An action for the `actions` of an admin page; `allowed` is its permission, as `has_<allowed>_permission`.

    `do` changes one row; it gets the data of the form and an idempotency key.
    Its LimitsErrors are shown beside the rows, and then no row is changed.
    `note` gets the chosen rows, and gives a warning for the page that asks.
    `change` are the values of fields that it gives each row; a block that it makes so may need a confirmation.
    `warn` gets the primary keys of the changed rows, and gives a warning or nothing.
    """

    def __init__(
        self,
        name: str,
        description: Any,
        *,
        allowed: str,
        form: type[forms.Form],
        do: Callable[[Any, dict[str, Any], str], None],
        warn: Callable[[Sequence[int]], str] = lambda _keys: "",
        note: Callable[[Sequence[Any]], str] = lambda _rows: "",
        change: Mapping[str, Any] | None = None,
    ) -> None:
        self.__name__ = name
        self.short_description = description
        self.allowed_permissions = [allowed]
        self._form = form
        self._do = do
        self._warn = warn
        self._note = note
        self._change = change or {}

    def __call__(self, page: AuditedAdmin, request: HttpRequest, chosen: QuerySet[Any]) -> HttpResponse | None:
        """Show the form, or run the confirmed action."""
        rows = list(chosen[: MOST_ROWS + 1])
        if len(rows) > MOST_ROWS:
            problem = gettext("Select at most %(count)s rows for this action.") % {"count": MOST_ROWS}
            page.message_user(request, problem, messages.ERROR)
            return None
        form = self._form(request.POST if "confirmed" in request.POST else None)
        self._check_blocks(request, rows, form)
        if not form.is_valid():
            return self._asked(page, request, rows, form)
        self._done(page, request, rows, form.cleaned_data)
        return None

    def _check_blocks(self, request: HttpRequest, rows: Sequence[Any], form: forms.Form) -> None:
        """Show the box that confirms blocks only where it is needed, and require it then."""
        if CONFIRM not in form.fields:
            return
        changes = ((type(row), before := block_confirmation.state_of(row), {**before, **self._change}) for row in rows)
        problem = block_problem(request, changes)
        if not problem:
            del form.fields[CONFIRM]
        elif form.is_valid() and not form.cleaned_data[CONFIRM]:
            form.add_error(CONFIRM, problem)

    def _asked(self, page: AuditedAdmin, request: HttpRequest, rows: Sequence[Any], form: forms.Form) -> HttpResponse:
        context: dict[str, Any] = {
            "rows": rows,
            "in_words": [row_in_words(row) for row in rows],
            "note": self._note(rows),
            "back": reverse(f"{page.admin_site.name}:{page.opts.app_label}_{page.opts.model_name}_changelist"),
            "action": self.__name__,
            "checkbox": ACTION_CHECKBOX_NAME,
            "token": request.POST.get("token") or uuid.uuid4().hex,
        }
        return confirmation(page, request, form, title=self.short_description, **context)

    def _done(self, page: AuditedAdmin, request: HttpRequest, rows: Sequence[Any], data: dict[str, Any]) -> None:
        token = request.POST.get("token", "")[:64] or uuid.uuid4().hex
        using, problems = router.db_for_write(AuditEvent), list[str]()
        with transaction.atomic(using=using):
            for row in rows:
                key = f"admin:{self.__name__}:{row._meta.model_name}:{row.pk}:{token}"
                try:
                    with transaction.atomic(using=using):
                        self._do(row, data, key)
                except LimitsError as error:
                    problems.append(f"“{row_in_words(row)}”: {error}")
                    if isinstance(error, StoreUnavailable):
                        break  # the others would wait for it too
            if problems:
                transaction.set_rollback(True, using=using)
        if problems:
            self._refused(page, request, problems)
            return
        message = ngettext("%(action)s: done for %(count)s row.", "%(action)s: done for %(count)s rows.", len(rows))
        page.message_user(request, message % {"action": self.short_description, "count": len(rows)}, messages.SUCCESS)
        if warning := self._warn([row.pk for row in rows]):
            page.message_user(request, warning, messages.WARNING)

    def _refused(self, page: AuditedAdmin, request: HttpRequest, problems: Sequence[str]) -> None:
        for problem in problems:
            page.message_user(request, problem, messages.ERROR)
        message = gettext("Nothing was changed: deselect the rows with errors, or correct them first.")
        page.message_user(request, message, messages.ERROR)


_RESETS_AT_A_TIME: Final = 500


def dropped_limits_warning(keys: Sequence[int]) -> str:
    """Return a warning that names the limits that saved policies override; empty without such limits."""
    dropped = list(islice(_dropped(keys), MOST_NAMED + 1))
    if not dropped:
        return ""
    warning = ngettext(
        "This policy replaces broader policies completely, so these limits no longer apply: "
        "%(dropped)s. Add them to this policy to keep them.",
        "These policies replace broader policies completely, so these limits no longer apply: "
        "%(dropped)s. Add them to these policies to keep them.",
        len(keys),
    )
    return warning % {"dropped": ", ".join(dropped[:MOST_NAMED]) + (", …" if len(dropped) > MOST_NAMED else "")}


def _dropped(keys: Sequence[int]) -> Iterator[str]:
    using = router.db_for_write(Policy)
    for first in range(0, len(keys), _RESETS_AT_A_TIME):
        # Read again, because those of forms remember the limits that they had before.
        saved = Policy.objects.using(using).filter(pk__in=keys[first : first + _RESETS_AT_A_TIME])
        for policy, keys_by_level in dropped_by_each(
            saved.select_related("resource", "entity").prefetch_related("limits")
        ):
            whose = f"{policy}: " if len(keys) > 1 else ""
            yield from (f"{whose}{limit_name(key)} ({level})" for key, level in keys_by_level)


def _has(action: Action) -> Callable[[Any, HttpRequest], bool]:
    return lambda _page, request: may(request.user, action)


class StatePermissions:
    """Whether the user may grant boosts, reset usage, and top up limits."""

    has_boost_permission = _has(Action.BOOST)
    has_boost_policies_permission = _has(Action.BOOST_POLICIES)
    has_reset_permission = _has(Action.RESET)
    has_top_up_permission = _has(Action.TOP_UP)
    has_erase_permission = _has(Action.ERASE)
    has_block_permission = _has(Action.BLOCK)


def _reset(row: Policy | Resource | Entity, data: dict[str, Any], key: str) -> None:
    resource, entity, _plan = _whose(row, data)
    services.reset(resource, entity=entity, reason=data["reason"], idempotency_key=key)


def _top_up(row: Policy | Resource | Entity, data: dict[str, Any], key: str) -> None:
    resource, entity, plan = _whose(row, data)
    credit = {"key": limit_key(data["key"]), "amount": amount_of(data["amount"])}
    services.top_up(resource, entity=entity, plan=plan, reason=data["reason"], idempotency_key=key, **credit)


def _boost(row: Policy | Entity, data: dict[str, Any], _key: str) -> None:
    if isinstance(row, Policy):
        services.boost_policies([row], data["factor"], data["until"], data["reason"])
    else:
        boost_client(row.identifier, data)


def boost_client(identifier: str, data: Mapping[str, Any]) -> list[Policy]:
    """Boost an entity as a form says: on its resource, or without one on each that limits the entity."""
    how, plan = (data["factor"], data["until"], data["reason"]), _name(data["plan"])
    if data["resource"] is None:
        return services.boost_each(identifier, *how, plan=plan)
    return [services.boost(identifier, data["resource"].name, *how, plan=plan)]


def _whose(row: Policy | Resource | Entity, data: dict[str, Any]) -> tuple[str | None, str | None, str]:
    """The resource (None: totals), the entity (None: the site itself) and the plan of requests of a row's state."""
    match row:
        case Resource():
            return row.name, None, ""
        case Entity():
            return _name(data["resource"]) or None, row.identifier, _name(data["plan"])
    if row.resource is None and row.counted != Counted.TOTAL:
        raise InvalidRequest(gettext("usage is counted for each resource separately: choose policies with a resource"))
    if row.plan is not None or (row.entity is not None and is_pattern(row.entity.identifier)):
        raise InvalidRequest(gettext("each entity has its own usage: choose entities"))
    return _name(row.resource) or None, None if row.entity is None else row.entity.identifier, ""


def _name(row: Resource | Plan | None) -> str:
    return "" if row is None else row.name


def _state_actions(why: type[forms.Form], credit: type[forms.Form]) -> list[ConfirmedAction]:
    """Reset and top up, with these forms."""
    return [
        ConfirmedAction("reset_state", _("Reset usage"), allowed="reset", form=why, do=_reset),
        ConfirmedAction("top_up_state", _("Top up a limit"), allowed="top_up", form=credit, do=_top_up),
    ]


def _enforcement(name: str, description: Any, enforcement: Enforcement, **options: Any) -> ConfirmedAction:
    """An action that sets the enforcement of policies."""
    change = {"enforcement": enforcement}

    def do(policy: Policy, data: dict[str, Any], _key: str) -> None:
        with audit.acting(reason=data["reason"]):
            policy.enforcement = enforcement
            policy.save(update_fields=["enforcement", "updated_at"])

    return ConfirmedAction(name, description, allowed="change", form=BlockReasonForm, do=do, change=change, **options)


def _in_force(rows: Sequence[Policy]) -> str:
    """Say how many of these policies are enforced now."""
    count = sum(row.enforcement == Enforcement.ENFORCE and row.rollout_percent > 0 for row in rows)
    message = ngettext(
        "%(count)s of them is enforced now and will no longer be enforced.",
        "%(count)s of them are enforced now and will no longer be enforced.",
        count,
    )
    return message % {"count": count} if count else ""


_BOOST: Final = _("Boost temporarily")

POLICY_ACTIONS: Final = [
    _enforcement("enable_policies", _("Enforce"), Enforcement.ENFORCE, warn=dropped_limits_warning),
    _enforcement("shadow_policies", _("Set to shadow mode"), Enforcement.SHADOW, note=_in_force),
    _enforcement("disable_policies", _("Disable"), Enforcement.OFF, note=_in_force),
    ConfirmedAction("boost_entities", _BOOST, allowed="boost_policies", form=BoostForm, do=_boost),
    *_state_actions(RequiredReasonForm, TopUpForm),
]
RESOURCE_ACTIONS: Final = _state_actions(RequiredReasonForm, TopUpForm)


def erase_entity(page: AuditedAdmin, request: HttpRequest, chosen: QuerySet[Any]) -> HttpResponse | None:
    """Lead to the page that erases one entity, because an erasure needs its own transactions."""
    rows = list(chosen[:2])
    if len(rows) != 1:
        page.message_user(request, gettext("Select one row for this action."), messages.ERROR)
        return None
    url = reverse(f"{page.admin_site.name}:limits_app_entity_erase", query={"entity": rows[0].identifier})
    return HttpResponseRedirect(url)


erase_entity.short_description = _("Erase the identifier")  # type: ignore[attr-defined]
erase_entity.allowed_permissions = ["erase"]  # type: ignore[attr-defined]


def _blocking(name: str, description: Any, form: type[forms.Form], *, blocked: bool) -> ConfirmedAction:
    """An action that blocks entities, or ends their own blocks."""

    def do(entity: Entity, data: dict[str, Any], _key: str) -> None:
        with audit.acting(reason=data["reason"]):
            entity.blocked = blocked
            entity.save(update_fields=["blocked"])
        if not blocked:
            end_timed_blocks(entity.identifier)

    return ConfirmedAction(name, description, allowed="block", form=form, do=do, change={"blocked": blocked})


ENTITY_ACTIONS: Final[list[Any]] = [
    _blocking("block_entities", _("Block"), BlockReasonForm, blocked=True),
    _blocking("unblock_entities", _("Unblock"), ReasonForm, blocked=False),
    erase_entity,
    ConfirmedAction("boost_entities", _BOOST, allowed="boost", form=EntityBoostForm, do=_boost),
    *_state_actions(EntityResetForm, EntityTopUpForm),
]

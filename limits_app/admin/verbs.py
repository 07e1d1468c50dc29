"""The actions of the lists: enable, shadow, disable, boost, reset and top up, each with its permission."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import audit, services
from limits_app.admin.action_forms import BoostForm, ReasonForm, RequiredReasonForm, TopUpForm, of_resource
from limits_app.admin.actions import Ask, ConfirmedAction
from limits_app.admin.dropping import warning_of_dropped
from limits_app.core.errors import InvalidRequest
from limits_app.models import Enforcement, Entity, Policy, Resource
from limits_app.models.limit_rules import amount_of

if TYPE_CHECKING:
    from django.http import HttpRequest

__all__ = ["ENTITY_ACTIONS", "POLICY_ACTIONS", "RESOURCE_ACTIONS", "StatePermissions"]


class StatePermissions:
    """Who may do more than change rows, as models declare it."""

    def has_boost_permission(self, request: HttpRequest) -> bool:
        """Whoever may grant boosts."""
        return request.user.has_perm("limits_app.boost_policy")

    def has_reset_permission(self, request: HttpRequest) -> bool:
        """Whoever may reset what was used."""
        return request.user.has_perm("limits_app.reset_resource")

    def has_top_up_permission(self, request: HttpRequest) -> bool:
        """Whoever may give credit."""
        return request.user.has_perm("limits_app.top_up_resource")


def enforce(enforcement: Enforcement) -> Any:
    """Set how policies are obeyed."""

    def do(policy: Policy, ask: Ask) -> None:
        with audit.acting(actor=ask.actor, source="admin", reason=ask.reason):
            policy.enforcement = enforcement
            policy.save(update_fields=["enforcement", "updated_at"])

    return do


def reset(row: Policy | Resource | Entity, ask: Ask) -> None:
    """Forget what was used."""
    resource, entity = _whose(row, ask)
    services.reset(resource, entity=entity, reason=ask.reason, idempotency_key=ask.key, actor=ask.actor, source="admin")


def top_up(row: Policy | Resource | Entity, ask: Ask) -> None:
    """Give credit."""
    resource, entity = _whose(row, ask)
    credit = {"key": ask.says["key"], "amount": amount_of(ask.says["amount"])}
    services.top_up(
        resource,
        entity=entity,
        reason=ask.reason,
        idempotency_key=ask.key,
        actor=ask.actor,
        source="admin",
        **credit,
    )


def boost(row: Policy | Entity, ask: Ask) -> None:
    """Give more for a while."""
    if isinstance(row, Policy):
        if row.entity is None:
            raise InvalidRequest(gettext("a boost is for one entity: choose policies of entities"))
        resource, entity = None if row.resource is None else row.resource.name, row.entity.identifier
    else:
        resource, entity = ask.says["resource"].name, row.identifier
    services.boost(entity, resource, ask.says["factor"], ask.says["until"], ask.reason, actor=ask.actor)


def _whose(row: Policy | Resource | Entity, ask: Ask) -> tuple[str, str | None]:
    """Whose state a row is about: of which resource, and of which entity (None: of the site itself)."""
    match row:
        case Resource():
            return row.name, None
        case Entity():
            return ask.says["resource"].name, row.identifier
    if row.resource is None:
        raise InvalidRequest(gettext("this is counted for each resource by itself: choose policies of resources"))
    return row.resource.name, None if row.entity is None else row.entity.identifier


def _state_actions(*, resource: bool) -> list[ConfirmedAction]:
    """Reset and top up; where rows do not say of which resource, the form asks for it."""
    why, credit = map(of_resource, (RequiredReasonForm, TopUpForm)) if resource else (RequiredReasonForm, TopUpForm)
    return [
        ConfirmedAction("reset_state", _("Reset what was used"), allowed="reset", form=why, do=reset),
        ConfirmedAction("top_up_state", _("Top up a limit"), allowed="top_up", form=credit, do=top_up),
    ]


def _enforcement(name: str, description: Any, enforcement: Enforcement, **options: Any) -> ConfirmedAction:
    return ConfirmedAction(name, description, allowed="change", form=ReasonForm, do=enforce(enforcement), **options)


_BOOST: Final = _("Boost for a while")

POLICY_ACTIONS: Final = [
    _enforcement("enable_policies", _("Enforce"), Enforcement.ENFORCE, warn=warning_of_dropped),
    _enforcement("shadow_policies", _("Try in the shadow"), Enforcement.SHADOW),
    _enforcement("disable_policies", _("Switch off"), Enforcement.OFF),
    ConfirmedAction("boost_entities", _BOOST, allowed="boost", form=BoostForm, do=boost),
    *_state_actions(resource=False),
]
RESOURCE_ACTIONS: Final = _state_actions(resource=False)
ENTITY_ACTIONS: Final = [
    ConfirmedAction("boost_entities", _BOOST, allowed="boost", form=of_resource(BoostForm), do=boost),
    *_state_actions(resource=True),
]

"""Writing limits: validate, save and audit in one transaction; they count once it is committed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeVar, Unpack

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import router
from django.db.models import QuerySet
from django.utils import timezone

from limits_app import audit
from limits_app.core.amounts import shown
from limits_app.core.errors import InvalidLimit
from limits_app.core.keys import check_entity, check_resource
from limits_app.core.limits import AnyLimit
from limits_app.core.limits import Limit as Definition
from limits_app.models import Entity, Limit, Policy, PolicyEffect, Resource
from limits_app.resolver import home
from limits_app.services.policy_options import PolicyOptions, all_options, checked_moment

__all__ = ["grant_boost", "policies_of", "set_entity_limits", "set_resource_limits", "set_system_limits"]

Limits = Iterable[Definition]
R = TypeVar("R", Resource, Entity)


def set_system_limits(limits: Limits, **options: Unpack[PolicyOptions]) -> Policy:
    """Say what holds where nothing more specific is set; replaces what was said before.

    The options are those of `PolicyOptions`.
    Raises InvalidLimit (a ValueError) that says what is wrong; then nothing has changed.
    """
    return _set(None, None, limits, options)


def set_resource_limits(resource: str, limits: Limits, **options: Unpack[PolicyOptions]) -> Policy:
    """Say what holds on a resource, which is made where it does not exist. See `set_system_limits`."""
    return _set(check_resource(resource), None, limits, options)


def set_entity_limits(
    entity: str, limits: Limits, *, resource: str | None = None, **options: Unpack[PolicyOptions]
) -> Policy:
    """Say what holds for an entity on a resource (None: on all), each made where it does not exist.

    See `set_system_limits`.
    """
    name = None if resource is None else check_resource(resource)
    return _set(name, check_entity(entity), limits, options)


def grant_boost(  # noqa: PLR0917 - who gets what, until when and why: a sentence
    entity: str, resource: str | None, limits: Limits, until: datetime, reason: str, *, actor: str = ""
) -> Policy:
    """Give an entity other limits on a resource (None: on all) from now on until a moment, and then take them back.

    Limits that are not named stay as they are. InvalidLimit where another boost overlaps, or the end has passed.
    """
    now = timezone.now()
    if checked_moment("until", until) <= now:
        raise InvalidLimit(f"a boost until {until} has ended already: say when it is to end")
    return set_entity_limits(
        entity, limits, resource=resource, extends=True, valid_from=now, valid_until=until, reason=reason, actor=actor
    )


def _set(resource: str | None, entity: str | None, limits: Limits, options: PolicyOptions) -> Policy:
    definitions = _definitions(limits)
    fields = all_options(options)
    unshared = sorted(set(fields["shared"]) - {definition.key for definition in definitions})
    if unshared:
        raise InvalidLimit(f"{', '.join(unshared)} cannot be shared: the policy has no such limit")
    fields["effect"] = _effect(fields["effect"], definitions)
    try:
        with audit.acting(actor=fields.pop("actor"), source="service"):
            return _saved(resource, entity, definitions, fields)
    except ValidationError as error:
        raise InvalidLimit(_said(error)) from error


def _saved(
    resource: str | None, entity: str | None, definitions: tuple[Definition, ...], fields: dict[str, Any]
) -> Policy:
    shared = fields.pop("shared")
    there = policies_of(resource, entity)
    policy = there.filter(valid_from=fields["valid_from"], weekly_hours=fields["weekly_hours"]).first()
    if policy is None:
        policy = Policy(
            resource=None if resource is None else _made(Resource(name=resource)),
            entity=None if entity is None else _made(Entity(identifier=entity)),
        )
    for name, value in fields.items():
        setattr(policy, name, value)
    _check(policy, "resource", "entity")
    policy.save()
    policy.limits.all().delete()
    for definition in definitions:
        row = Limit.from_definition(policy, definition, shared=definition.key in shared)
        _check(row, "policy")
        row.save()
    return policy


def _check(row: Policy | Limit, *known: str) -> None:
    """Validate a row, but for the rows it refers to, which a replica may not know yet."""
    row.clean_fields(exclude={*known})
    row.clean()
    row.validate_constraints()


def _definitions(limits: Limits) -> tuple[Definition, ...]:
    if isinstance(limits, AnyLimit | str) or not isinstance(limits, Iterable):
        raise InvalidLimit(f"limits must be several, such as [CallLimit.per_minute(10)], not {shown(limits)}")
    found = tuple(limits)
    for one in found:
        if not isinstance(one, AnyLimit):
            raise InvalidLimit(f"{shown(one)} is not a limit: use RateLimit, CallLimit, QuotaLimit or ResourceLimit")
    return found


def _said(error: ValidationError) -> str:
    """What validation says, each after the name of its field, where it is about one."""
    if not hasattr(error, "error_dict"):
        return "; ".join(error.messages)
    return "; ".join(
        message if field == NON_FIELD_ERRORS else f"{field}: {message}"
        for field, messages in error.message_dict.items()
        for message in messages
    )


def _effect(effect: str, limits: tuple[Definition, ...]) -> PolicyEffect:
    if effect == PolicyEffect.LIMITS and not limits:
        raise InvalidLimit("a policy without limits admits everything: say so with effect='unlimited'")
    return PolicyEffect(effect)


def policies_of(resource: str | None, entity: str | None) -> QuerySet[Policy]:
    """All policies of a scope: the one that always holds, and those with dates or hours."""
    policies = Policy.objects.using(home()).select_related("resource", "entity")
    of_resource = policies.filter(resource=None) if resource is None else policies.filter(resource__name=resource)
    return of_resource.filter(entity=None) if entity is None else of_resource.filter(entity__identifier=entity)


def _made(wanted: R) -> R:
    """The row with this name, made where there is none."""
    model, name = type(wanted), getattr(wanted, wanted.named_by)
    found = model.objects.using(router.db_for_write(model)).filter(**{wanted.named_by: name}).first()
    if found is not None:
        return found
    wanted.full_clean()
    wanted.save()
    return wanted

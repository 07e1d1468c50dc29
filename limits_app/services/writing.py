"""Writing limits: validate, save and audit in one transaction; they count once it is committed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from django.core.exceptions import ValidationError
from django.db import router, transaction

from limits_app import audit
from limits_app.core.amounts import shown
from limits_app.core.errors import InvalidLimit
from limits_app.core.keys import check_entity, check_resource
from limits_app.core.limits import Limit as Definition
from limits_app.models import Entity, Limit, Policy, PolicyEffect, Resource, Verb

__all__ = [
    "delete_entity_limits",
    "delete_resource_limits",
    "delete_system_limits",
    "set_entity_limits",
    "set_resource_limits",
    "set_system_limits",
]

Limits = Iterable[Definition]
R = TypeVar("R", Resource, Entity)


def set_system_limits(limits: Limits, *, effect: str = "limits", reason: str = "", actor: str = "") -> Policy:
    """Say what holds where nothing more specific is set; replaces what was said before.

    `effect` is `limits`, or `blocked` or `unlimited`, which have no limits.
    Raises InvalidLimit (a ValueError) with everything that is wrong; then nothing has changed.
    """
    return _set(None, None, limits, effect=effect, reason=reason, actor=actor)


def set_resource_limits(
    resource: str, limits: Limits, *, effect: str = "limits", reason: str = "", actor: str = ""
) -> Policy:
    """Say what holds on a resource, which is made where it does not exist. See `set_system_limits`."""
    return _set(check_resource(resource), None, limits, effect=effect, reason=reason, actor=actor)


def set_entity_limits(
    entity: str,
    limits: Limits,
    *,
    resource: str | None = None,
    effect: str = "limits",
    reason: str = "",
    actor: str = "",
) -> Policy:
    """Say what holds for an entity on a resource (None: on all), each made where it does not exist.

    See `set_system_limits`.
    """
    name = None if resource is None else check_resource(resource)
    return _set(name, check_entity(entity), limits, effect=effect, reason=reason, actor=actor)


def delete_system_limits(*, reason: str = "", actor: str = "") -> bool:
    """Take back what `set_system_limits` said; False when nothing was."""
    return _delete(None, None, reason=reason, actor=actor)


def delete_resource_limits(resource: str, *, reason: str = "", actor: str = "") -> bool:
    """Take back what `set_resource_limits` said; False when nothing was."""
    return _delete(resource, None, reason=reason, actor=actor)


def delete_entity_limits(entity: str, *, resource: str | None = None, reason: str = "", actor: str = "") -> bool:
    """Take back what `set_entity_limits` said; False when nothing was."""
    return _delete(resource, entity, reason=reason, actor=actor)


def _set(resource: str | None, entity: str | None, limits: Limits, *, effect: str, reason: str, actor: str) -> Policy:
    try:
        with transaction.atomic(using=router.db_for_write(Policy)):
            return _saved(resource, entity, tuple(limits), effect=effect, reason=reason, actor=actor)
    except ValidationError as error:
        raise InvalidLimit("; ".join(error.messages)) from error


def _saved(
    resource: str | None, entity: str | None, limits: tuple[Definition, ...], *, effect: str, reason: str, actor: str
) -> Policy:
    policy = _find(resource, entity)
    before = None if policy is None else audit.snapshot(policy)
    if policy is None:
        policy = Policy(
            resource=None if resource is None else _made(Resource(name=resource), "name", actor),
            entity=None if entity is None else _made(Entity(identifier=entity), "identifier", actor),
        )
    policy.effect, policy.reason = _effect(effect, limits), reason
    policy.full_clean()
    policy.save()
    policy.limits.all().delete()
    for definition in limits:
        row = Limit.from_definition(policy, definition)
        row.full_clean()
        row.save()
    audit.record(
        Verb.CREATE if before is None else Verb.UPDATE,
        policy,
        before=before,
        after=audit.snapshot(policy),
        actor=actor,
        source="service",
        reason=reason,
    )
    return policy


def _effect(effect: str, limits: tuple[Definition, ...]) -> PolicyEffect:
    if effect not in PolicyEffect.values:
        raise InvalidLimit(f"effect {shown(effect)} must be one of {', '.join(PolicyEffect.values)}")
    if effect == PolicyEffect.LIMITS and not limits:
        raise InvalidLimit("a policy without limits admits everything: say so with effect='unlimited'")
    return PolicyEffect(effect)


def _delete(resource: str | None, entity: str | None, *, reason: str, actor: str) -> bool:
    with transaction.atomic(using=router.db_for_write(Policy)):
        policy = _find(resource, entity)
        if policy is None:
            return False
        before = audit.snapshot(policy)
        audit.record(Verb.DELETE, policy, before=before, after=None, actor=actor, source="service", reason=reason)
        policy.delete()
    return True


def _find(resource: str | None, entity: str | None) -> Policy | None:
    policies = Policy.objects.using(router.db_for_write(Policy)).select_for_update(of=("self",))
    of_resource = policies.filter(resource=None) if resource is None else policies.filter(resource__name=resource)
    found = of_resource.filter(entity=None) if entity is None else of_resource.filter(entity__identifier=entity)
    return found.first()


def _made(wanted: R, field: str, actor: str) -> R:
    """The row with this name, made and audited where there is none."""
    model, name = type(wanted), getattr(wanted, field)
    found = model.objects.using(router.db_for_write(model)).filter(**{field: name}).first()
    if found is not None:
        return found
    wanted.full_clean()
    wanted.save()
    audit.record(Verb.CREATE, wanted, before=None, after=audit.snapshot(wanted), actor=actor, source="service")
    return wanted

"""Writing limits: validate, save and audit in one transaction; they count once it is committed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypedDict, TypeVar, Unpack

from django.core.exceptions import ValidationError
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
from limits_app.models.moments import as_setting

__all__ = [
    "PolicyOptions",
    "checked_moment",
    "grant_boost",
    "policies_of",
    "set_entity_limits",
    "set_resource_limits",
    "set_system_limits",
]

Limits = Iterable[Definition]
R = TypeVar("R", Resource, Entity)


class PolicyOptions(TypedDict, total=False):
    """What a policy says besides its limits; the names are those of the model, where each is explained.

    `effect` is `limits`, or `blocked` or `unlimited`, which have no limits.
    `extends` adds the limits to those of the next broader policy; `shared` are the keys of which there is one bucket
    for everybody. `enforcement` is `enforce`, `shadow` or `off`, for `rollout_percent` of the entities.
    `on_unavailable` is `block`, `allow` or `local`, for while the store is down; empty: as the settings say.
    With dates or weekly hours it is a policy beside the one that always holds; with an end alone it begins now.
    """

    effect: str
    extends: bool
    shared: Collection[str]
    enforcement: str
    rollout_percent: int
    on_unavailable: str
    valid_from: datetime | None
    valid_until: datetime | None
    weekly_hours: str
    time_zone: str
    reason: str
    actor: str


_DEFAULTS: Final[Mapping[str, Any]] = PolicyOptions(
    effect="limits",
    extends=False,
    shared=(),
    enforcement="enforce",
    rollout_percent=100,
    on_unavailable="",
    valid_from=None,
    valid_until=None,
    weekly_hours="",
    time_zone="",
    reason="",
    actor="",
)


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
    fields = _fields(options)
    unshared = sorted(set(fields["shared"]) - {definition.key for definition in definitions})
    if unshared:
        raise InvalidLimit(f"{', '.join(unshared)} cannot be shared: the policy has no such limit")
    fields["effect"] = _effect(fields["effect"], definitions)
    try:
        with audit.acting(actor=fields.pop("actor"), source="service"):
            return _saved(resource, entity, definitions, fields)
    except ValidationError as error:
        raise InvalidLimit("; ".join(error.messages)) from error


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
            raise InvalidLimit(f"{shown(one)} is no limit: use RateLimit, CallLimit, QuotaLimit or ResourceLimit")
    return found


def _fields(options: PolicyOptions) -> dict[str, Any]:
    """All options, those that were not said as they are by default; an end without a beginning begins now."""
    fields: dict[str, Any] = {**_DEFAULTS, **options}
    unknown = fields.keys() - _DEFAULTS.keys()
    if unknown:
        raise TypeError(f"{', '.join(sorted(unknown))} is no option of a policy; there are {', '.join(_DEFAULTS)}")
    for name, usual in _DEFAULTS.items():
        if isinstance(usual, str) and not isinstance(fields[name], str):
            raise InvalidLimit(f"{name} must be text, not {shown(fields[name])}")
        if usual is None and fields[name] is not None:
            fields[name] = checked_moment(name, fields[name])
    if isinstance(fields["shared"], str) or not isinstance(fields["shared"], Collection):
        raise InvalidLimit(f"shared must be several keys, such as ['tpm'], not {shown(fields['shared'])}")
    if fields["valid_until"] is not None and fields["valid_from"] is None:
        fields["valid_from"] = timezone.now()
    return fields


def checked_moment(name: str, moment: object) -> datetime:
    """Give a moment as the site's settings have it; InvalidLimit where it is none."""
    if not isinstance(moment, datetime):
        raise InvalidLimit(f"{name} must be a datetime, not {shown(moment)}")
    return as_setting(moment)


def _effect(effect: str, limits: tuple[Definition, ...]) -> PolicyEffect:
    if effect not in PolicyEffect.values:
        raise InvalidLimit(f"effect {shown(effect)} must be one of {', '.join(PolicyEffect.values)}")
    if effect == PolicyEffect.LIMITS and not limits:
        raise InvalidLimit("a policy without limits admits everything: say so with effect='unlimited'")
    return PolicyEffect(effect)


def policies_of(resource: str | None, entity: str | None) -> QuerySet[Policy]:
    """All policies of a scope: the one that always holds, and those with dates or hours."""
    policies = Policy.objects.using(router.db_for_write(Policy)).select_related("resource", "entity")
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

"""Writing policies: set, delete and list them; each write is validated and audited in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, TypedDict, Unpack

from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from django.utils import timezone

from limits_app import audit
from limits_app.engine import Account, Noted, check_entity, check_resource, parse_limit, parse_limits, shown
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import AnyLimit, LimitDefinition
from limits_app.models import Counted, Entity, Policy, write_alias
from limits_app.models.policy_rules import not_ended, weakened
from limits_app.models.users import entity_name
from limits_app.services import definitions
from limits_app.services.field_values import moment
from limits_app.services.listing import NamedScope
from limits_app.services.policy_warnings import warnings_of

logger = logging.getLogger("limits_app")

LimitsInput = Iterable[LimitDefinition | Noted | str] | str
"""Limits as values or as text such as `"tpm=1M/day"`, or all of them as one text."""


class PolicyOptions(TypedDict, total=False):
    """The fields of a policy besides its limits, with the names of the model, where each is explained.

    `effect` is `limits`, or `blocked` or `unlimited`, which have no limits.
    `counted` is `each` (resource by itself), or `total`: the limits are over all resources together, and apply in
    addition to those of the resources.
    `extends` adds the limits to those of the next broader policy; `shared` has the keys of limits with one bucket for
    all entities. `enforcement` is `enforce`, `shadow` or `off`, for `rollout_percent` of the entities.
    `on_unavailable` is `block`, `allow` or `local`, for an unavailable store; empty: the setting of the site.
    `slice_seconds` is how long a process may hold capacity that it has charged in advance; 0: not at all.
    With dates or weekly hours it is a policy beside the one that always holds; with an end alone it begins now.
    `actor` is the name of the user for the audit log.
    """

    effect: str
    counted: str
    extends: bool
    shared: Collection[str]
    enforcement: str
    rollout_percent: int
    on_unavailable: str
    slice_seconds: int
    valid_from: datetime | None
    valid_until: datetime | None
    weekly_hours: str
    time_zone: str
    reason: str
    actor: str


class EntityFields(TypedDict, total=False):
    """The fields of an entity, with the names of the model, where each is explained.

    `parent` is the entity above it, and with `cascade` the limits of the parent apply too. `plan` names a plan.
    An entity that is `unlimited` has no limits, and one that is `blocked` is always rejected. `billing_from` is when
    its billing began, for quotas whose periods begin with the client.
    """

    name: str
    parent: str | Account | None
    plan: str | None
    cascade: bool
    unlimited: bool
    blocked: bool
    billing_from: datetime | None
    metadata: Mapping[str, Any]


def set_system_limits(limits: LimitsInput, **options: Unpack[PolicyOptions]) -> Policy:
    """Set the limits that hold where nothing more specific is set, in place of those set before.

    The options are those of `PolicyOptions`. A warning in the log names the limits of replaced policies that it drops.
    Raises InvalidLimit (a ValueError) with everything that is wrong; then nothing has changed.
    """
    return set_policy(NamedScope(), limits, options)


def set_resource_limits(resource: str, limits: LimitsInput, **options: Unpack[PolicyOptions]) -> Policy:
    """Set the limits of a resource, which is made where it does not exist. See `set_system_limits`."""
    return set_policy(NamedScope(check_resource(resource)), limits, options)


def set_entity_limits(
    entity: str | Account, limits: LimitsInput, *, resource: str | None = None, **options: Unpack[PolicyOptions]
) -> Policy:
    """Set the limits of an entity on a resource (None: on all), each made where it does not exist.

    See `set_system_limits`.
    """
    name = None if resource is None else check_resource(resource)
    return set_policy(NamedScope(name, check_entity(entity_name(entity))), limits, options)


def set_plan_limits(
    plan: str, limits: LimitsInput, *, resource: str | None = None, **options: Unpack[PolicyOptions]
) -> Policy:
    """Set the limits of a plan on a resource (None: on all), each made where it does not exist.

    Each entity on the plan has its own buckets. See `set_system_limits`.
    """
    name = None if resource is None else check_resource(resource)
    return set_policy(NamedScope(name, plan=plan), limits, options)


def set_entity(entity: str | Account, *, reason: str = "", actor: str = "", **fields: Unpack[EntityFields]) -> Entity:
    """Set fields of an entity, which is made where it does not exist; other fields stay as they are.

    `entity` and the parent are identifiers or users. A parent that does not exist is made.
    Raises InvalidLimit (a ValueError) with everything that is wrong; then nothing has changed.
    """
    data: dict[str, Any] = {**fields}
    if data.get("parent") is not None:
        data["parent"] = check_entity(entity_name(data["parent"]))
    name = check_entity(entity_name(entity))
    with audit.acting(actor=actor, source="service", reason=reason, using=write_alias()) as unit:
        rows = unit.read(Entity.objects.filter(identifier=name).order_by())
        row = rows[0] if rows else Entity(identifier=name)
        definition = definitions.read(row, data, partial=True, find=_entity_or_stored)
        definitions.save(definition)
    stored: Entity = definition.row
    return stored


def _entity_or_stored(model: type[Model], name: str) -> Model:
    """Return the row of a name; entities are made where they do not exist, plans must exist."""
    find = definitions.find_or_new if model is Entity else definitions.find_stored
    return find(model, name)


def checked_datetime(name: str, value: object) -> datetime:
    """Return a datetime in the site's time zone; raises InvalidDefinition with the name for other values."""
    try:
        return moment(value)
    except ValidationError as error:
        raise definitions.InvalidDefinition({(name,): error.messages}) from error


def set_policy(scope: NamedScope, limits: LimitsInput, options: PolicyOptions) -> Policy:
    """Set the policy of a scope, which is made where it does not exist. See `set_system_limits`."""
    fields: dict[str, Any] = {**options}
    unknown = fields.keys() - PolicyOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"{', '.join(sorted(unknown))} is not an option of a policy")
    actor = fields.pop("actor", "")
    fields |= {
        **scope._asdict(),
        "limits": _with_shared(limits, fields.pop("shared", ())),
        "valid_from": _beginning(fields),
    }
    hours = fields.get("weekly_hours", "")
    with audit.acting(actor=actor, source="service", using=write_alias()) as unit:
        policies = scope.policies(str(fields.get("counted", Counted.EACH)))
        rows = unit.read(policies.filter(valid_from=fields["valid_from"], weekly_hours=str(hours)).order_by())
        stored = rows[0] if rows else Policy(rollout_percent=0)
        before = {name: getattr(stored, name) for name in ("enforcement", "rollout_percent")}
        definition = definitions.read(stored, fields, find=definitions.find_known(stored, definitions.find_or_new))
        definitions.save(definition)
    policy: Policy = definition.row
    if why := weakened(before, vars(policy)):
        logger.warning("%s: %s", policy, why)
    for message in warnings_of(policy, [limit.row.key for limit in definition.parts or ()]):
        logger.warning(message)
    return policy


def _beginning(fields: dict[str, Any]) -> datetime | None:
    """When a policy begins; one that has an end alone begins now."""
    if fields.get("valid_from") is not None:
        return checked_datetime("valid_from", fields["valid_from"])
    return None if fields.get("valid_until") is None else timezone.now()


def _with_shared(limits: object, shared: object) -> list[object]:
    if isinstance(limits, AnyLimit) or not isinstance(limits, Iterable):
        raise InvalidLimit(f"limits must be several, such as [CallLimit.per_minute(10)], not {shown(limits)}")
    if not isinstance(shared, Collection) or isinstance(shared, str):
        raise InvalidLimit(f"shared must be several keys, such as ['tpm'], not {shown(shared)}")
    given_limits = [*(parse_limits(limits) if isinstance(limits, str) else limits)]
    if not shared:
        return given_limits
    given_limits = [parse_limit(limit) if isinstance(limit, str) else limit for limit in given_limits]
    noted = [Noted(limit) if isinstance(limit, LimitDefinition) else limit for limit in given_limits]
    unshared = sorted({*shared} - {noted_limit.limit.key for noted_limit in noted if isinstance(noted_limit, Noted)})
    if unshared:
        raise InvalidLimit(f"{', '.join(unshared)} cannot be shared: the policy has no such limit")
    return [
        Noted(limit.limit, True) if isinstance(limit, Noted) and limit.limit.key in shared else limit for limit in noted
    ]


class DeleteOptions(TypedDict, total=False):
    """Which policy of a scope is deleted: the one that always applies, counted for each resource.

    With `weekly_hours`, as written, it is the one with these hours; with `valid_at`, the one with dates that applies
    at that time; with `counted="total"`, the one over all resources. `reason` and `actor` are for the audit log.
    """

    valid_at: datetime | None
    weekly_hours: str
    counted: str
    reason: str
    actor: str


def delete_system_limits(**options: Unpack[DeleteOptions]) -> bool:
    """Delete the policy of the system; returns False if it does not exist. The options are those of `DeleteOptions`."""
    return delete_policy(NamedScope(), options)


def delete_resource_limits(resource: str, **options: Unpack[DeleteOptions]) -> bool:
    """Delete the policy of a resource; returns False if it does not exist. See `delete_system_limits`."""
    return delete_policy(NamedScope(resource), options)


def delete_entity_limits(
    entity: str | Account, *, resource: str | None = None, **options: Unpack[DeleteOptions]
) -> bool:
    """Delete the policy of an entity; returns False if it does not exist. See `delete_system_limits`."""
    return delete_policy(NamedScope(resource, check_entity(entity_name(entity))), options)


def delete_plan_limits(plan: str, *, resource: str | None = None, **options: Unpack[DeleteOptions]) -> bool:
    """Delete the policy of a plan; returns False if it does not exist. See `delete_system_limits`."""
    return delete_policy(NamedScope(resource, plan=plan), options)


def end_boost(entity: str | Account, resource: str | None, *, reason: str = "", actor: str = "") -> bool:
    """Delete the current boost of an entity on a resource (None: on all); returns False if it does not exist.

    A policy with dates that replaces others, such as a freeze, is not a boost: use `delete_entity_limits` for it.
    """
    which = _which(timezone.now()) & Q(extends=True)
    policies = NamedScope(resource, check_entity(entity_name(entity))).policies()
    return _deleted(policies.filter(which), reason=reason, actor=actor)


def _which(valid_at: datetime | None, weekly_hours: str = "") -> Q:
    """The filter for at most one policy of a scope, since policies with dates do not overlap."""
    if valid_at is None:
        return Q(valid_from=None, weekly_hours=weekly_hours)
    moment = checked_datetime("valid_at", valid_at)
    holds = Q(valid_from__lte=moment) & not_ended(moment)
    return holds & Q(weekly_hours=weekly_hours) if weekly_hours else holds


def delete_policy(scope: NamedScope, options: DeleteOptions) -> bool:
    """Delete a policy of a scope; returns False if it does not exist. See `delete_system_limits`."""
    unknown = options.keys() - DeleteOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"{', '.join(sorted(unknown))} is not an option: pass valid_at or weekly_hours")
    which = _which(options.get("valid_at"), options.get("weekly_hours", ""))
    policies = scope.policies(options.get("counted", Counted.EACH)).filter(which)
    return _deleted(policies, reason=options.get("reason", ""), actor=options.get("actor", ""))


def _deleted(policies: QuerySet[Policy], *, reason: str, actor: str) -> bool:
    with audit.acting(actor=actor, source="service", reason=reason):
        policy = policies.first()
        if policy is None:
            return False
        policy.delete()
    return True

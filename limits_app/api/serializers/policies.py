"""Policies, pools, and the limits that are parts of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from django.utils.translation import gettext as _
from rest_framework import serializers

from limits_app.api.serializers.strict import NameField, RowSerializer, checked, errors_by_field
from limits_app.core.limits import Limit as Definition
from limits_app.models import Entity, Limit, Policy, PolicyEffect, PolicyScope, Pool, PoolMember, Resource

__all__ = [
    "MOST_PARTS",
    "LimitSerializer",
    "PolicyLimitSerializer",
    "PolicySerializer",
    "PoolSerializer",
    "definition_of",
    "several",
]

MOST_PARTS: Final = 100
"""How many limits a policy, and members a pool, can be sent with."""

_LIMIT_FIELDS: Final = (
    "key",
    "kind",
    "capacity",
    "window_seconds",
    "algorithm",
    "burst",
    "max_hold_seconds",
    "period",
    "time_zone",
    "session_seconds",
    "soft",
)


def several(serializer: Any, **options: Any) -> Any:
    """Parts of a row, not endlessly many."""
    return serializer(**{"many": True, "required": False, "max_length": MOST_PARTS, **options})


class LimitSerializer(RowSerializer[Limit]):
    """One limit; which fields it has depends on its kind, the others are empty."""

    class Meta:
        model = Limit
        fields: tuple[str, ...] = _LIMIT_FIELDS
        validators = ()


class PolicyLimitSerializer(LimitSerializer):
    """One limit of a policy, which can be one for everybody."""

    class Meta(LimitSerializer.Meta):
        fields = (*_LIMIT_FIELDS, "shared")


class PolicySerializer(RowSerializer[Policy]):
    """What holds for whom, with its limits; it is written as a whole, or not at all."""

    scope = serializers.ChoiceField(PolicyScope.choices, read_only=True)
    resource = NameField(slug_field="name", queryset=Resource.objects.all(), required=False, allow_null=True)
    entity = NameField(slug_field="identifier", queryset=Entity.objects.all(), required=False, allow_null=True)
    limits = several(PolicyLimitSerializer)

    class Meta:
        model = Policy
        fields = (
            "id",
            "scope",
            "resource",
            "entity",
            "effect",
            "extends",
            "limits",
            "enforcement",
            "rollout_percent",
            "valid_from",
            "valid_until",
            "weekly_hours",
            "time_zone",
            "on_unavailable",
            "reason",
            "created_at",
            "updated_at",
        )
        validators = ()

    def written(self, row: Policy, values: dict[str, Any]) -> Policy:
        """Save the policy, and its limits as they are to be from now on."""
        limits: list[dict[str, Any]] | None = values.pop("limits", None if self.partial else [])
        policy = super().written(row, values)
        if limits is None:
            limits = [_values(limit) for limit in policy.limits.all()]
        if policy.effect == PolicyEffect.LIMITS and not limits:
            raise serializers.ValidationError({"limits": [_("Add a limit, or choose “unlimited” or “blocked”.")]})
        _replace_limits(limits, policy=policy)
        return policy


class PoolMemberSerializer(RowSerializer[PoolMember]):
    """One of those that can serve a request."""

    limits = several(LimitSerializer)

    class Meta:
        model = PoolMember
        fields = ("name", "weight", "order", "config", "enabled", "limits")
        validators = ()


class PoolSerializer(RowSerializer[Pool]):
    """Interchangeable members with their limits; it is written as a whole, or not at all."""

    members = several(PoolMemberSerializer)

    class Meta:
        model = Pool
        fields = ("id", "name", "description", "load_balancing", "failover", "members")
        validators = ()

    def written(self, row: Pool, values: dict[str, Any]) -> Pool:
        """Save the pool, and its members as they are to be from now on; one with a name that is there is that one."""
        members: list[dict[str, Any]] | None = values.pop("members", None if self.partial else [])
        pool = super().written(row, values)
        if members is None:
            return pool
        pool.members.exclude(name__in=[given.get("name", "") for given in members]).delete()
        there = {member.name: member for member in pool.members.all()}
        for number, given in enumerate(members):
            name = given.get("name", "")
            member = there.pop(name) if name in there else PoolMember(pool=pool)
            with _within("members", number):
                _write_member(member, given)
        return pool


def _write_member(member: PoolMember, given: dict[str, Any]) -> None:
    limits = given.pop("limits", [])
    PoolMemberSerializer().fill(member, given)
    checked(member).save()
    _replace_limits(limits, member=member)


def _replace_limits(limits: Sequence[Mapping[str, Any]], **owner: Policy | PoolMember) -> None:
    """Delete the limits of an owner, and make others."""
    Limit.objects.filter(**owner).delete()
    for number, given in enumerate(limits):
        with _within("limits", number):
            limit = Limit(**owner)
            PolicyLimitSerializer().fill(limit, given)
            checked(limit).save()


def definition_of(given: Mapping[str, Any], number: int) -> Definition:
    """Give a limit that was sent as an immutable value."""
    limit = Limit(policy=Policy())  # whose it will be is not known yet
    LimitSerializer().fill(limit, given)
    with _within("limits", number), errors_by_field():
        limit.clean_fields(exclude={"policy"})
        limit.clean()
    return limit.definition()


def _values(limit: Limit) -> dict[str, Any]:
    return {name: getattr(limit, name) for name in PolicyLimitSerializer.Meta.fields}


@contextmanager
def _within(parts: str, number: int) -> Iterator[None]:
    """Say of which part it is that an error is told."""
    try:
        yield
    except serializers.ValidationError as error:
        raise serializers.ValidationError({parts: {str(number): error.detail}}) from error

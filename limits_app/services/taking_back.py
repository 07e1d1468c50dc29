"""Taking limits back: what always holds, what holds at hours, and what holds between dates, such as a boost."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q
from django.utils import timezone

from limits_app import audit
from limits_app.services.writing import checked_datetime, policies_of

__all__ = ["delete_entity_limits", "delete_resource_limits", "delete_system_limits", "end_boost"]


def delete_system_limits(
    *, valid_at: datetime | None = None, weekly_hours: str = "", reason: str = "", actor: str = ""
) -> bool:
    """Take back what `set_system_limits` said; False when nothing was.

    That is the policy that always holds; with `weekly_hours`, as they were written, the one of these hours;
    with `valid_at`, a moment, the one with dates that holds then.
    """
    return _delete(None, None, _which(valid_at, weekly_hours), reason=reason, actor=actor)


def delete_resource_limits(
    resource: str, *, valid_at: datetime | None = None, weekly_hours: str = "", reason: str = "", actor: str = ""
) -> bool:
    """Take back what `set_resource_limits` said; False when nothing was. See `delete_system_limits`."""
    return _delete(resource, None, _which(valid_at, weekly_hours), reason=reason, actor=actor)


def delete_entity_limits(
    entity: str,
    *,
    resource: str | None = None,
    valid_at: datetime | None = None,
    weekly_hours: str = "",
    reason: str = "",
    actor: str = "",
) -> bool:
    """Take back what `set_entity_limits` said; False when nothing was. See `delete_system_limits`."""
    return _delete(resource, entity, _which(valid_at, weekly_hours), reason=reason, actor=actor)


def end_boost(entity: str, resource: str | None, *, reason: str = "", actor: str = "") -> bool:
    """Take back the boost that an entity has now on a resource (None: on all); False when it has none.

    A policy with dates that replaces others, such as a freeze, is no boost: `delete_entity_limits` takes it back.
    """
    return _delete(resource, entity, _which(timezone.now()) & Q(extends=True), reason=reason, actor=actor)


def _which(valid_at: datetime | None, weekly_hours: str = "") -> Q:
    """Of the policies of a scope at most one, because those with dates do not overlap."""
    if valid_at is None:
        return Q(valid_from=None, weekly_hours=weekly_hours)
    moment = checked_datetime("valid_at", valid_at)
    holds = Q(valid_from__lte=moment) & (Q(valid_until=None) | Q(valid_until__gt=moment))
    return holds & Q(weekly_hours=weekly_hours) if weekly_hours else holds


def _delete(resource: str | None, entity: str | None, which: Q, *, reason: str, actor: str) -> bool:
    with audit.acting(actor=actor, source="service", reason=reason):
        policy = policies_of(resource, entity).filter(which).first()
        if policy is None:
            return False
        policy.delete()
    return True

"""The audit log: one event for each object that changed, in the transaction of the change."""

from __future__ import annotations

from copy import deepcopy
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from django.db import models

from limits_app.models import AuditEvent, Configuration, Limit, Policy, Verb

__all__ = ["Snapshot", "record", "snapshot"]

Snapshot = dict[str, Any]
"""An object as JSON can say it: fields by name, related objects by their names."""

_LEFT_OUT: Final = {"id", "policy", "created_at", "updated_at"}


def snapshot(item: Configuration) -> Snapshot:
    """Give an object as it is now; a policy has its `scope`, and its `limits` as they stand in the database."""
    taken = {
        field.name: _plain(getattr(item, field.name))
        for field in item._meta.concrete_fields
        if field.name not in _LEFT_OUT
    }
    if isinstance(item, Policy):
        limits = Limit.objects.using(item._state.db).filter(policy=item)
        return {"scope": item.scope.value} | taken | {"limits": [_without_empty(snapshot(limit)) for limit in limits]}
    return taken


def record(
    verb: Verb,
    item: Configuration,
    *,
    before: Snapshot | None,
    after: Snapshot | None,
    actor: str,
    source: str,
    reason: str = "",
) -> AuditEvent | None:
    """Append the event of one change, in the database of the object; None where nothing changed.

    A deletion is recorded before it is done, while the object still has its primary key.
    """
    if before == after:
        return None
    return AuditEvent.objects.using(item._state.db).create(
        actor=actor,
        source=source,
        verb=verb,
        object_type=item._meta.model_name or "",
        object_id=str(item.pk),
        object_label=str(item),
        before=before,
        after=after,
        reason=reason,
    )


def record_state(
    verb: Verb, change: Snapshot, *, actor: str, source: str, reason: str, idempotency_key: str | None
) -> AuditEvent:
    """Append the event of state that is forgotten or credited, of the entity and the resource that `change` names.

    IntegrityError where the key was used before.
    """
    resource, entity = change["resource"], change["entity"]
    return AuditEvent.objects.create(
        actor=actor,
        source=source,
        verb=verb,
        object_type="state",
        object_id="",
        object_label=resource if entity is None else f"{entity} on {resource}",
        before=None,
        after=change,
        reason=reason,
        idempotency_key=idempotency_key,
    )


def _plain(value: object) -> object:
    if isinstance(value, models.Model):
        return str(value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value.isoformat() if isinstance(value, datetime) else deepcopy(value)


def _without_empty(taken: Snapshot) -> Snapshot:
    return {name: value for name, value in taken.items() if value is not False and value not in {None, ""}}

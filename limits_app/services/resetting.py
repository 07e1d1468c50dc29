"""Resetting: forgetting what was used."""

from __future__ import annotations

from collections.abc import Collection

from limits_app import audit
from limits_app.core.errors import InvalidRequest
from limits_app.core.keys import check_entity, check_resource, scope_of
from limits_app.services.acquiring import limit_set
from limits_app.stores.guards import guard_of

__all__ = ["reset"]


def reset(
    resource: str,
    *,
    entity: str | None = None,
    keys: Collection[str] | None = None,
    reason: str = "",
    actor: str = "",
    source: str = "service",
) -> None:
    """Forget what an entity (None: the site itself) has used of a resource: of the limits named, or of all.

    Permits stay with their holders. It is audited before it happens.
    Raises InvalidLimit for names that cannot be, InvalidRequest for a key that is not limited there,
    StoreUnavailable while the store is down.
    """
    check_resource(resource)
    if entity is not None:
        check_entity(entity)
    limits = {limit.key for limit in limit_set(resource, entity)}
    unknown = sorted(set(keys or ()) - limits)
    if unknown:
        there = ", ".join(sorted(limits)) or "none"
        raise InvalidRequest(f"{', '.join(unknown)} is not limited there; limited are: {there}")
    audit.record_reset(resource, entity, sorted(keys or limits), actor=actor, source=source, reason=reason)
    guard = guard_of()
    with guard.asking():
        guard.store().reset([scope_of(resource, entity).key], keys)

"""Policy resolution for many entities on many resources, for lists.

Only the policies of each entity itself: the entities above it, which are charged too, are left to `resolve`.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from itertools import islice
from typing import Final

from limits_app.core.plan import ScopedLimits
from limits_app.core.store import Store
from limits_app.models import Entity, Resource
from limits_app.models.policy_lookup import Subject, policies_of_each
from limits_app.resolver.policies import Choice, choose
from limits_app.resolver.resolution import home
from limits_app.resolver.resolved_set import scopes_of

__all__ = ["Pair", "choices", "scopes", "total_scopes"]

Pair = tuple[Resource | None, Entity | None]
"""A resource (None: all resources), and an entity (None: the site itself)."""

_BATCH: Final = 100
"""Number of pairs per query: databases limit the number of parameters, and an address is in many networks."""


def choices(pairs: Collection[Pair], now: datetime) -> list[Choice]:
    """Choose the policies of each pair, in the order of the pairs."""
    subjects = iter([Subject(_name(resource), _name(entity)) for resource, entity in pairs])
    found = []
    while some := list(islice(subjects, _BATCH)):
        found += [choose(one.links[0], now) for one in policies_of_each(some, home(), now)]
    return found


def _name(row: Resource | Entity | None) -> str | None:
    return None if row is None else str(row)


def scopes(resource: str, choice: Choice, store: Store) -> list[ScopedLimits]:
    """The limits of a choice on a resource, each in the scope in which a store keeps its state; totals are left out."""
    return [one for one in scopes_of(resource, [choice], store) if not one.scope.total]


def total_scopes(entity: str | None, store: Store, now: datetime) -> list[ScopedLimits]:
    """The totals of an entity over all resources, each in the scope in which a store keeps its state.

    Those of None are the totals of the site itself, and those that all entities share.
    """
    choice = choose(policies_of_each([Subject(None, entity)], home(), now)[0].links[0], now)
    return [one for one in scopes_of("", [choice], store) if one.scope.total]

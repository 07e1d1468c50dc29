"""The policies that may hold for an entity on a resource, in one query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any, Final

from django.db import connections

from limits_app.core.limits import Limit as Definition
from limits_app.models.entity import Entity
from limits_app.models.limit import Limit
from limits_app.models.limit_columns import COLUMNS, definition_of
from limits_app.models.policy import Policy, PolicyEffect
from limits_app.models.resource import Resource

__all__ = ["OWN", "Candidate", "candidates"]

OWN: Final = "entity_row"
"""The level of an entity that is blocked or unlimited itself."""

Row = Sequence[Any]

_QUERY: Final = """
    SELECT p.id, p.resource_id, p.entity_id, p.effect, {columns}
    FROM {policy} p LEFT JOIN {limit} l ON l.policy_id = p.id
    WHERE COALESCE(p.resource_id, 0) IN (0, (SELECT r.id FROM {resource} r WHERE r.name = %s))
      AND COALESCE(p.entity_id, 0) IN (0, (SELECT e.id FROM {entity} e WHERE e.identifier = %s))
    UNION ALL
    SELECT NULL, NULL, e.id, CASE WHEN e.blocked THEN 'blocked' ELSE 'unlimited' END, {nothing}
    FROM {entity} e WHERE e.identifier = %s AND (e.blocked OR e.unlimited)
"""
"""Its conditions are those of the unique index over policies, so that their number does not matter."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one policy says: at which level, to what effect, with which limits.

    `policy_id` is None for an entity that is blocked or unlimited itself.
    """

    level: str
    effect: PolicyEffect
    limits: tuple[Definition, ...]
    policy_id: int | None


def candidates(resource: str, entity: str | None, using: str) -> list[Candidate]:
    """Give what the database says about an entity (None: the site itself) on a resource, in no particular order."""
    identifier = entity if entity is not None and _can_be_stored(entity) else None
    with connections[using].cursor() as cursor:
        cursor.execute(_sql(connections[using].vendor), [resource, identifier, identifier])
        rows = cursor.fetchall()
    by_policy: dict[int | None, list[Row]] = {}
    for row in rows:
        by_policy.setdefault(row[0], []).append(row)
    return [_candidate(found) for found in by_policy.values()]


def _candidate(rows: list[Row]) -> Candidate:
    policy_id, resource_id, entity_id, effect = rows[0][:4]
    level = OWN if policy_id is None else Policy(resource_id=resource_id, entity_id=entity_id).scope.value
    # Always in the same order, since every process must compile the same layout.
    found = sorted((row[4:] for row in rows if row[4] is not None), key=itemgetter(1))
    limits = tuple(definition_of(*columns) for columns in found)
    return Candidate(level, PolicyEffect(effect), limits, policy_id)


def _can_be_stored(identifier: str) -> bool:
    """Whether there can be a row with this identifier: databases know neither NUL nor half a surrogate pair."""
    return "\0" not in identifier and not any("\ud800" <= character <= "\udfff" for character in identifier)


@cache
def _sql(vendor: str) -> str:
    """The query; only names of the app's own tables and columns are put in, and what a caller says is a parameter."""
    names = {model.__name__.lower(): model._meta.db_table for model in (Policy, Limit, Resource, Entity)}
    quote = "`" if vendor == "mysql" else '"'
    columns = ", ".join(f"l.{quote}{column}{quote}" for column in COLUMNS)
    return _QUERY.format(columns=columns, nothing=", ".join(["NULL"] * len(COLUMNS)), **names)

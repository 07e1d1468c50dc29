"""Reads the policies that may apply to an entity and its ancestors on a resource, in one query."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from operator import itemgetter
from typing import Any, Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from limits_app.conf import OnUnavailable
from limits_app.core.limits import Limit as Definition
from limits_app.models.emergency import ENFORCED, Emergency, EmergencySwitch
from limits_app.models.entity import MAX_LEVELS, Entity
from limits_app.models.fields import from_column, to_column
from limits_app.models.limit import Limit
from limits_app.models.limit_rules import COLUMNS, definition_of
from limits_app.models.policy import Policy, scope_by_keys
from limits_app.models.policy_rules import Enforcement, PolicyEffect
from limits_app.models.pool import Pool
from limits_app.models.resource import Resource
from limits_app.models.weekly_hours import WeeklyHours

logger = logging.getLogger("limits_app")

__all__ = ["ENTITY_FLAGS", "EntityPolicies", "PolicyChain", "PolicyValue", "policies_for"]

ENTITY_FLAGS: Final = "entity_row"
"""The level of the flags `blocked` and `unlimited` of an entity."""

Row = Sequence[Any]

_QUERY: Final = """
    WITH RECURSIVE chain (level, id, identifier, blocked, unlimited, cascades, parent_id) AS (
        SELECT 0, e.id, e.identifier, e.blocked, e.unlimited, e.{cascade}, e.parent_id
        FROM {entity} e WHERE e.identifier = %s
        UNION ALL
        SELECT c.level + 1, e.id, e.identifier, e.blocked, e.unlimited, e.{cascade}, e.parent_id
        FROM chain c JOIN {entity} e ON e.id = c.parent_id WHERE c.cascades AND c.level < {most}
    ), whose (level, id, identifier, blocked, unlimited) AS (
        SELECT -1, 0, NULL, NULL, NULL
        UNION ALL SELECT level, id, identifier, blocked, unlimited FROM chain
    )
    SELECT w.level, w.identifier, w.blocked, w.unlimited, p.id, p.resource_id, p.entity_id, p.effect,
           p.on_unavailable, p.extends, p.enforcement, p.rollout_percent, p.valid_from, p.valid_until,
           p.weekly_hours, p.time_zone,
           (SELECT q.name FROM {resource} s JOIN {pool} q ON q.id = s.pool_id WHERE s.name = %s),
           (SELECT s.store FROM {resource} s WHERE s.name = %s), l.shared, {columns},
           x.mode, x.until
    FROM whose w
    LEFT JOIN {emergencyswitch} x ON x.id = 1
    LEFT JOIN {policy} p ON {about}
        AND COALESCE(p.resource_id, 0) IN (0, (SELECT r.id FROM {resource} r WHERE r.name = %s))
        AND (p.valid_until IS NULL OR p.valid_until > %s)
    LEFT JOIN {limit} l ON l.policy_id = p.id
"""
"""It uses the unique index of policies, so that it stays fast with many policies."""

_MODELS: Final = (Policy, Limit, Resource, Entity, Pool, EmergencySwitch)
_EVERYBODY: Final = -1
_POLICY: Final = slice(4, 16)
_POOL: Final = 16
_STORE: Final = 17
_SHARED: Final = 18
_KEY: Final = 20
_LIMIT: Final = slice(_SHARED + 1, -2)
_EMERGENCY: Final = slice(-2, None)

_definition_of: Final = lru_cache(maxsize=4096)(definition_of)
"""Most entities share the same limits, which are immutable."""


@dataclass(frozen=True, slots=True)
class PolicyValue:
    """A policy as a value: level, effect, limits, and when it is enforced.

    `policy_id` is None for the flags of an entity and for limits passed by a call. `on_unavailable` is None if the
    policy does not set it. `shared` contains the keys of shared limits.
    """

    level: str
    effect: PolicyEffect
    limits: tuple[Definition, ...]
    policy_id: int | None
    on_unavailable: OnUnavailable | None = None
    extends: bool = False
    shared: frozenset[str] = frozenset()
    enforcement: Enforcement = Enforcement.ENFORCE
    rollout_percent: int = 100
    valid_from: datetime | None = None
    valid_until: datetime | None = None
    hours: WeeklyHours | None = None


@dataclass(frozen=True, slots=True)
class EntityPolicies:
    """An entity (None: the site itself), and the policies that may apply to it, in no particular order."""

    entity: str | None
    policies: tuple[PolicyValue, ...]


@dataclass(frozen=True, slots=True)
class PolicyChain:
    """All who are charged, the entity itself first, the name of the pool that serves the resource, if any does, and
    the alias of the store in which the resource is counted (None: the default one); `known` says whether it has a row.
    `emergency` is the emergency switch, as it is in force.
    """

    links: list[EntityPolicies]
    pool: str | None
    store: str | None = None
    known: bool = True
    emergency: Emergency = ENFORCED


def policies_for(resource: str, entity: str | None, using: str, now: datetime) -> PolicyChain:
    """Give an entity (None: the site itself) and, as far as each cascades, those above it, with what the database
    says about them on a resource; policies that have ended by now are left out.
    """
    connection = connections[using]
    identifier = entity if entity is not None and _can_be_stored(entity) else None
    with connection.cursor() as cursor:
        cursor.execute(_sql(connection.vendor), [identifier, resource, resource, resource, to_column(now, connection)])
        rows = cursor.fetchall()
    levels: dict[int, list[Row]] = {0: []}
    for row in rows:
        levels.setdefault(row[0], []).append(row)
    everybody = _policy_values(levels.pop(_EVERYBODY), connection)
    links = [
        EntityPolicies(found[0][1] if found else entity, (*_own(found), *_policy_values(found, connection), *everybody))
        for _, found in sorted(levels.items())
    ]
    store, (mode, until) = rows[0][_STORE], rows[0][_EMERGENCY]
    switch = Emergency(Enforcement(mode), until=from_column(until, connection)) if mode else ENFORCED
    return PolicyChain(links, rows[0][_POOL], store or None, known=store is not None, emergency=switch.at(now))


def _own(rows: Sequence[Row]) -> Iterable[PolicyValue]:
    """What the row of an entity itself says."""
    for _, _, blocked, unlimited, *_ in rows[:1]:
        if blocked or unlimited:
            yield PolicyValue(ENTITY_FLAGS, PolicyEffect.BLOCKED if blocked else PolicyEffect.UNLIMITED, (), None)


def _policy_values(rows: Sequence[Row], connection: BaseDatabaseWrapper) -> list[PolicyValue]:
    by_policy: dict[int, list[Row]] = {}
    for row in rows:
        if row[4] is not None:
            by_policy.setdefault(row[4], []).append(row)
    return [_policy_value(found, connection) for found in by_policy.values()]


def _policy_value(rows: Sequence[Row], connection: BaseDatabaseWrapper) -> PolicyValue:
    policy_id, resource_id, entity_id, effect, on_unavailable, *when = rows[0][_POLICY]
    extends, enforcement, percent, valid_from, valid_until, hours, zone = when
    # Always in the same order, because every process must compile the same layout.
    found = sorted((row for row in rows if row[_KEY] is not None), key=itemgetter(_KEY))
    return PolicyValue(
        level=scope_by_keys(resource_id, entity_id).value,
        effect=PolicyEffect(effect),
        limits=tuple(_definition_of(*row[_LIMIT]) for row in found),
        policy_id=policy_id,
        on_unavailable=OnUnavailable(on_unavailable) if on_unavailable else None,
        extends=bool(extends),
        shared=frozenset(row[_KEY] for row in found if row[_SHARED]),
        enforcement=Enforcement(enforcement),
        rollout_percent=percent,
        valid_from=from_column(valid_from, connection),
        valid_until=from_column(valid_until, connection),
        hours=_hours(hours, zone, policy_id) if hours else None,
    )


def _hours(text: str, zone: str, policy_id: int) -> WeeklyHours:
    try:
        return WeeklyHours.parse(text, zone)
    except ValueError as error:  # written past the validation of the model
        logger.warning("policy %s never holds, because its hours cannot be read: %s", policy_id, error)
        return WeeklyHours.NEVER


def _can_be_stored(identifier: str) -> bool:
    """Whether there can be a row with this identifier: databases know neither NUL nor half a surrogate pair."""
    return "\0" not in identifier and not any("\ud800" <= character <= "\udfff" for character in identifier)


@cache
def _sql(vendor: str) -> str:
    """The query; only names of the app's own tables and columns are put in, and what a caller says is a parameter."""
    names = {model.__name__.lower(): model._meta.db_table for model in _MODELS}
    quote = "`{}`" if vendor == "mysql" else '"{}"'
    columns = ", ".join("l." + quote.format(column) for column in COLUMNS)
    # MariaDB has no indexes over expressions, so there the one of the foreign key has to do.
    about = "p.entity_id <=> NULLIF(w.id, 0)" if vendor == "mysql" else "COALESCE(p.entity_id, 0) = w.id"
    return _QUERY.format(columns=columns, cascade=quote.format("cascade"), about=about, most=MAX_LEVELS - 1, **names)

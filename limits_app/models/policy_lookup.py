"""Reads the policies that may apply to entities and the entities above them, in one query."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

from django.contrib.auth import get_user_model
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from limits_app.conf import OnUnavailable
from limits_app.core.errors import InvalidLimit
from limits_app.models.candidate import Candidate, CandidateState, CandidateValue
from limits_app.models.emergency import ENFORCED, Emergency, EmergencySwitch
from limits_app.models.entity import MAX_LEVELS, Entity
from limits_app.models.fields import from_column, to_column
from limits_app.models.limit import Limit, noted_limits
from limits_app.models.limit_rules import COLUMNS, definition_of
from limits_app.models.patterns import SEPARATORS, is_pattern, networks_of, specificity
from limits_app.models.plan import Plan, PlanGroup, groups_have_plans, memberships, user_key
from limits_app.models.policy import Policy, scope_by_names
from limits_app.models.policy_rules import Enforcement, PolicyEffect
from limits_app.models.policy_values import ENTITY_FLAGS, EntityPolicies, PolicyChain, PolicyValue, Subject
from limits_app.models.pool import CoolDown, Pool
from limits_app.models.resource import Resource
from limits_app.models.weekly_hours import WeeklyHours

logger = logging.getLogger("limits_app")

_QUERY: Final = """
    WITH RECURSIVE request (number, resource, entity, client, plan, person) AS (
        {requests}
    ), chain (number, level, id, identifier, cascades, parent_id, plan_id, is_charged) AS (
        SELECT k.number, 0, e.id, e.identifier, e.{cascade}, e.parent_id, e.plan_id, TRUE
        FROM request k JOIN {entity} e ON e.identifier = k.entity
        UNION ALL
        SELECT c.number, c.level + 1, e.id, e.identifier, e.{cascade}, e.parent_id, e.plan_id,
            c.is_charged AND c.cascades
        FROM chain c JOIN {entity} e ON e.id = c.parent_id WHERE c.level < {most}
    ), client (number, level, identifier, plan_id) AS (
        SELECT k.number, 0, k.client, COALESCE(
            (SELECT c.plan_id FROM chain c
             WHERE c.number = k.number AND c.plan_id IS NOT NULL ORDER BY c.level LIMIT 1),
            (SELECT n.id FROM {plan} n WHERE n.name = k.plan),
            {plan_of_groups})
        FROM request k
        UNION ALL
        SELECT d.number, d.level, d.identifier,
            (SELECT c.plan_id FROM chain c
             WHERE c.number = d.number AND c.level >= d.level AND c.plan_id IS NOT NULL ORDER BY c.level LIMIT 1)
        FROM chain d WHERE d.is_charged AND d.level > 0
    ), prefix (number, level, identifier, size) AS (
        SELECT number, level, identifier, {length}(identifier) FROM client
        UNION ALL
        SELECT number, level, identifier, size - 1 FROM prefix WHERE size > 1
    ), subject (number, level, entity_id, plan_id) AS (
        SELECT number, {everybody}, 0, 0 FROM request
        UNION ALL SELECT number, level, id, 0 FROM chain WHERE is_charged
        UNION ALL SELECT number, level, 0, plan_id FROM client
        UNION ALL SELECT x.number, x.level, (SELECT e.id FROM {entity} e WHERE e.identifier = {pattern}), 0
        FROM prefix x WHERE SUBSTR(x.identifier, x.size, 1) IN ({separators})
        {networks}
    ), place (number, resource_id) AS (
        SELECT number, 0 FROM request
        UNION ALL SELECT k.number, r.id FROM request k JOIN {resource} r ON r.name = k.resource
    )
    SELECT s.number, s.level, e.identifier, e.blocked, e.unlimited, n.name,
           (SELECT q.name FROM request k JOIN {resource} r ON r.name = k.resource JOIN {pool} q ON q.id = r.pool_id
            WHERE k.number = s.number),
           (SELECT r.store FROM request k JOIN {resource} r ON r.name = k.resource WHERE k.number = s.number),
           (SELECT o.until FROM request k JOIN {cooldown} o ON o.pool = k.resource
            WHERE k.number = s.number AND o.member = ''),
           p.id, p.resource_id, p.effect, p.counted, p.on_unavailable, p.extends, p.enforcement, p.rollout_percent,
           p.slice_seconds, p.valid_from, p.valid_until, p.weekly_hours, p.time_zone,
           d.id, d.limits, d.percent, d.state, d.watched_until, x.mode, x.until, l.shared, {columns}
    FROM subject s
    JOIN place ON place.number = s.number
    LEFT JOIN {emergencyswitch} x ON x.id = 1
    LEFT JOIN {entity} e ON e.id = s.entity_id
    LEFT JOIN {plan} n ON n.id = s.plan_id
    LEFT JOIN {policy} p ON {about} AND (p.valid_until IS NULL OR p.valid_until > %s)
    LEFT JOIN {candidate} d ON d.policy_id = p.id AND d.state <> 'reverted'
    LEFT JOIN {limit} l ON l.policy_id = p.id
    WHERE s.entity_id IS NOT NULL AND s.plan_id IS NOT NULL
"""
"""It searches by the unique indexes of entities and policies, so that it stays fast with many of them.

A request is one of several: its number, its resource, the entity as a row (NULL where it can have none) and as text,
the name of the plan that the request has, and the primary key of the user. The chain has the entity with all above it,
which may have its plan, and of which some are charged. Patterns are found by each prefix after a separator.
"""

_NETWORKS: Final = "UNION ALL SELECT {number}, 0, e.id, 0 FROM {entity} e WHERE e.identifier IN ({identifiers})"

_PLAN_OF_GROUPS: Final = """
    (SELECT n.id FROM {members} m JOIN {plangroup} g ON g.group_id = m.{group} JOIN {plan} n ON n.id = g.plan_id
     WHERE m.{user} = k.person ORDER BY n.priority DESC, n.name LIMIT 1)
"""

_EVERYBODY: Final = -1


class _Row(NamedTuple):
    """A policy for a subject, with one of its limits; the fields are None as far as there is none."""

    number: int
    level: int
    identifier: str | None
    blocked: bool | None
    unlimited: bool | None
    plan: str | None
    pool: str | None
    store: str | None
    cooling_until: int | None
    policy_id: int | None
    resource_id: int | None
    effect: str
    counted: str
    on_unavailable: str
    extends: bool
    enforcement: str
    rollout_percent: int
    slice_seconds: int
    valid_from: Any
    valid_until: Any
    weekly_hours: str
    time_zone: str
    candidate_id: int | None
    candidate_limits: str
    candidate_percent: int
    candidate_state: str
    watched_until: Any
    mode: str | None
    until: Any
    shared: bool | None
    limit: tuple[Any, ...]

    @classmethod
    def of(cls, columns: Sequence[Any]) -> _Row:
        """Read the columns of the query; the last ones are those of the limit."""
        size = len(cls._fields) - 1
        return cls._make([*columns[:size], tuple(columns[size:])])

    @property
    def key(self) -> Any:
        """The key of the limit."""
        return self.limit[COLUMNS.index("key")]

    @property
    def is_pattern(self) -> bool:
        """Whether it is about a pattern."""
        return self.identifier is not None and is_pattern(self.identifier)


_definition_of: Final = lru_cache(maxsize=4096)(definition_of)
"""Most entities share the same limits, which are immutable."""


def policies_for(subject: Subject, using: str, now: datetime) -> PolicyChain:
    """Return the policies that may apply to an entity (None: the site itself) on a resource.

    Those of the entities above it are included as far as each cascades, and those that have ended by `now` are not.
    """
    return policies_of_each([subject], using, now)[0]


def policies_of_each(subjects: Sequence[Subject], using: str, now: datetime) -> list[PolicyChain]:
    """Return the policies that may apply to each of several subjects, in their order, in one query."""
    connection = connections[using]
    has_groups = groups_have_plans(using)
    networks = [_networks(one.entity or "") for one in subjects]
    parameters: list[Any] = []
    for resource, entity, plan in subjects:
        client = entity if entity is not None and _can_be_stored(entity) else None
        person = user_key(client) if has_groups and client else None
        exact = None if client and is_pattern(client) else client
        parameters += [resource, exact, client, plan if plan is not None and _can_be_stored(plan) else None]
        if has_groups:
            parameters.append(get_user_model()._meta.pk.get_db_prep_value(person, connection))
    sql = _sql(connection, tuple(map(len, networks)), has_groups=has_groups)
    with connection.cursor() as cursor:
        cursor.execute(sql, [*parameters, *chain.from_iterable(networks), to_column(now, connection)])
        rows = [_Row.of(columns) for columns in cursor.fetchall()]
    by_number: dict[int, list[_Row]] = {}
    for row in rows:
        by_number.setdefault(row.number, []).append(row)
    # Each subject has a row, since `subject` in the query has one for everybody; the switch is in all rows.
    mode, until = rows[0].mode, from_column(rows[0].until, connection)
    switch = Emergency(Enforcement(mode), until=until) if mode else ENFORCED
    return [
        replace(_chain(one.entity, by_number[number], connection), emergency=switch.at(now))
        for number, one in enumerate(subjects)
    ]


def _networks(entity: str) -> list[str]:
    """The patterns of networks that match an entity; its own identifier is looked for anyway."""
    return [network for network in networks_of(entity) if network != entity or is_pattern(entity)]


def _chain(entity: str | None, rows: Sequence[_Row], connection: BaseDatabaseWrapper) -> PolicyChain:
    levels: dict[int, list[_Row]] = {0: []}
    for row in rows:
        levels.setdefault(row.level, []).append(row)
    everybody = _policy_values(levels.pop(_EVERYBODY), connection)
    links = []
    for level, found in sorted(levels.items()):
        own = next((row for row in found if row.identifier is not None and not row.is_pattern), None)
        name = entity if level == 0 or own is None else own.identifier
        links.append(EntityPolicies(name, (*_flags(own), *_policy_values(found, connection), *everybody)))
    store = rows[0].store
    cooling_until = rows[0].cooling_until or 0
    return PolicyChain(links, rows[0].pool, store or None, known=store is not None, cooling_until=cooling_until)


def _flags(row: _Row | None) -> Iterable[PolicyValue]:
    """A policy in place of the `blocked` and `unlimited` fields of an entity; none where both are unset."""
    if row is not None and (row.blocked or row.unlimited):
        yield PolicyValue(ENTITY_FLAGS, PolicyEffect.BLOCKED if row.blocked else PolicyEffect.UNLIMITED, (), None)


def _policy_values(rows: Sequence[_Row], connection: BaseDatabaseWrapper) -> list[PolicyValue]:
    by_policy: dict[int, list[_Row]] = {}
    for row in rows:
        if row.policy_id is not None:
            by_policy.setdefault(row.policy_id, []).append(row)
    return [_policy_value(found, connection) for found in by_policy.values()]


def _policy_value(rows: Sequence[_Row], connection: BaseDatabaseWrapper) -> PolicyValue:
    row = rows[0]
    has_resource = row.resource_id is not None
    level = scope_by_names(
        row.identifier, has_plan=row.plan is not None, has_resource=has_resource, counted=row.counted
    )
    # Always in the same order, because every process must compile the same layout.
    found = sorted((one for one in rows if one.key is not None), key=attrgetter("key"))
    pattern = row.identifier if row.is_pattern else None
    return PolicyValue(
        level=level.value,
        effect=PolicyEffect(row.effect),
        limits=tuple(_definition_of(*one.limit) for one in found),
        policy_id=row.policy_id,
        on_unavailable=OnUnavailable(row.on_unavailable) if row.on_unavailable else None,
        extends=bool(row.extends),
        shared=frozenset(one.key for one in found if one.shared),
        enforcement=Enforcement(row.enforcement),
        rollout_percent=row.rollout_percent,
        slice_seconds=row.slice_seconds,
        valid_from=from_column(row.valid_from, connection),
        valid_until=from_column(row.valid_until, connection),
        hours=_hours(row.weekly_hours, row.time_zone, row.policy_id) if row.weekly_hours else None,
        subject=row.plan or pattern or "",
        specificity=specificity(pattern) if pattern else 0,
        candidate=None if row.candidate_id is None else _candidate(row, connection),
    )


def _candidate(row: _Row, connection: BaseDatabaseWrapper) -> CandidateValue | None:
    """The candidate of a policy; None for one that was promoted and is not watched, or has invalid limits."""
    until = from_column(row.watched_until, connection)
    if row.candidate_state == CandidateState.PROMOTED and until is None:
        return None
    try:
        noted = noted_limits(row.candidate_limits)
    except InvalidLimit as error:  # written past the validation of the model
        logger.warning("the candidate of policy %s is not evaluated: %s", row.policy_id, error)
        return None
    limits, shared = tuple(one.limit for one in noted), frozenset(one.limit.key for one in noted if one.shared)
    return CandidateValue(row.candidate_id or 0, limits, shared, row.candidate_percent, until)


def _hours(text: str, zone: str, policy_id: int | None) -> WeeklyHours:
    try:
        return WeeklyHours.parse(text, zone)
    except ValueError as error:  # written past the validation of the model
        logger.warning("policy %s never applies, because its hours are invalid: %s", policy_id, error)
        return WeeklyHours.NEVER


def _can_be_stored(name: str) -> bool:
    """Whether a row can have this name: databases store neither NUL nor half a surrogate pair."""
    return "\0" not in name and not any("\ud800" <= character <= "\udfff" for character in name)


def _sql(connection: BaseDatabaseWrapper, networks: tuple[int, ...], *, has_groups: bool) -> str:
    """The query for several subjects; `networks` is the number of networks that may match each."""
    person_type = None
    if has_groups and connection.vendor == "postgresql":  # which would take NULL for text
        person_type = get_user_model()._meta.pk.rel_db_type(connection)
    return _composed(connection.vendor, networks, person_type, has_groups=has_groups)


@lru_cache(maxsize=1024)
def _composed(vendor: str, networks: tuple[int, ...], person_type: str | None, *, has_groups: bool) -> str:
    """The query; only names of tables and columns are inserted, and values are parameters."""
    is_mysql = vendor == "mysql"
    quote = "`{}`" if is_mysql else '"{}"'
    tables = {model.__name__.lower(): model._meta.db_table for model in _TABLES}
    person = f"CAST(%s AS {person_type})" if person_type else "%s" if has_groups else "NULL"
    of_networks = [
        _NETWORKS.format(number=number, entity=tables["entity"], identifiers=", ".join(["%s"] * count))
        for number, count in enumerate(networks)
        if count
    ]
    return _QUERY.format(
        **tables,
        requests=" UNION ALL ".join(f"SELECT {number}, %s, %s, %s, %s, {person}" for number in range(len(networks))),
        networks=" ".join(of_networks),
        plan_of_groups=_plan_of_groups(tables, quote) if has_groups else "NULL",
        columns=", ".join("l." + quote.format(column) for column in COLUMNS),
        cascade=quote.format("cascade"),
        length="CHAR_LENGTH" if is_mysql else "LENGTH",
        pattern="CONCAT(SUBSTR(x.identifier, 1, x.size), '*')"
        if is_mysql
        else "SUBSTR(x.identifier, 1, x.size) || '*'",
        separators=", ".join(f"'{one}'" for one in SEPARATORS),
        about=" AND ".join(_is_about(column, owner, is_mysql=is_mysql) for column, owner in _ABOUT),
        most=MAX_LEVELS - 1,
        everybody=_EVERYBODY,
    )


_TABLES: Final = (Policy, Limit, Resource, Entity, Pool, Plan, PlanGroup, EmergencySwitch, Candidate, CoolDown)
_ABOUT: Final = (("resource_id", "place"), ("entity_id", "s"), ("plan_id", "s"))


def _is_about(column: str, owner: str, *, is_mysql: bool) -> str:
    """A condition for the policies of a subject, whose column is 0 where that of the policy is NULL."""
    # MariaDB has no indexes over expressions, so there it uses the indexes of the foreign keys.
    if is_mysql:
        return f"p.{column} <=> NULLIF({owner}.{column}, 0)"
    return f"COALESCE(p.{column}, 0) = {owner}.{column}"


def _plan_of_groups(tables: Mapping[str, str], quote: str) -> str:
    """The part of the query for the plan that the groups of a user have."""
    field = memberships()
    through = field.remote_field.through
    return _PLAN_OF_GROUPS.format(
        **tables,
        members=quote.format(through._meta.db_table),
        user=quote.format(through._meta.get_field(field.m2m_field_name()).column),
        group=quote.format(through._meta.get_field(field.m2m_reverse_field_name()).column),
    )

"""Reads the policies that may apply to entities and the entities above them, in one query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from itertools import chain
from typing import Any, Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from limits_app.models.candidate import Candidate
from limits_app.models.emergency import EmergencySwitch
from limits_app.models.entity import MAX_LEVELS, Entity
from limits_app.models.fields import to_column
from limits_app.models.in_tests import are_empty_in_test
from limits_app.models.limit import Limit
from limits_app.models.own_queries import read
from limits_app.models.patterns import SEPARATORS, is_pattern, other_networks_of
from limits_app.models.plan import Plan, PlanGroup, groups_have_plans, memberships, plan_order_sql
from limits_app.models.policy import Policy
from limits_app.models.pool import CoolDown, Pool
from limits_app.models.price import Price
from limits_app.models.resource import Resource
from limits_app.models.users import user_key, user_model
from limits_app.policies.chain import ABOVE, EVERYBODY, PolicyChain, Row, StoredChain, Subject

_QUERY: Final = """
    WITH RECURSIVE request (number, resource, entity, client, plan, person) AS (
        {requests}
    ), chain (number, level, id, identifier, cascades, parent_id, plan_id, billing_from, is_charged) AS (
        SELECT k.number, 0, e.id, e.identifier, e.{cascade}, e.parent_id, e.plan_id, e.billing_from, TRUE
        FROM request k JOIN {entity} e ON e.identifier = k.entity
        UNION ALL
        SELECT c.number, c.level + 1, e.id, e.identifier, e.{cascade}, e.parent_id, e.plan_id, e.billing_from,
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
    ), subject (number, level, entity_id, plan_id, billing_from) AS (
        SELECT d.number, CASE WHEN d.is_charged THEN d.level ELSE {above} END, d.id, 0,
            (SELECT c.billing_from FROM chain c
             WHERE c.number = d.number AND c.level >= d.level AND c.billing_from IS NOT NULL ORDER BY c.level LIMIT 1)
        FROM chain d
        UNION ALL SELECT number, {everybody}, 0, 0, NULL FROM request
        UNION ALL SELECT number, level, 0, plan_id, NULL FROM client
        UNION ALL SELECT x.number, x.level, (SELECT e.id FROM {entity} e WHERE e.identifier = {pattern}), 0, NULL
        FROM prefix x WHERE SUBSTR(x.identifier, x.size, 1) IN ({separators})
        {networks}
    ), place (number, resource_id) AS (
        SELECT number, 0 FROM request
        UNION ALL SELECT k.number, r.id FROM request k JOIN {resource} r ON r.name = k.resource
    )
    SELECT s.number, s.billing_from, s.level, e.blocked, e.unlimited, q.name, r.store, r.request_priority, o.until,
           o.length, x.mode, x.until, EXISTS (SELECT 1 FROM {price}), n.request_priority, e.identifier, n.name, p.id,
           p.resource_id, p.effect, p.counted, p.on_unavailable, p.extends, p.enforcement, p.rollout_percent,
           p.slice_seconds, p.valid_from, p.valid_until, p.weekly_hours, p.time_zone, d.id, d.limits, d.percent,
           d.state, d.watched_until, l.shared, l.{key}, l.text
    FROM subject s
    JOIN place ON place.number = s.number
    JOIN request k ON k.number = s.number
    LEFT JOIN {resource} r ON r.name = k.resource
    LEFT JOIN {pool} q ON q.id = r.pool_id
    LEFT JOIN {cooldown} o ON o.pool = k.resource AND o.member = ''
    LEFT JOIN {emergencyswitch} x ON x.id = 1
    LEFT JOIN {entity} e ON e.id = s.entity_id
    LEFT JOIN {plan} n ON n.id = s.plan_id
    LEFT JOIN {policy} p ON {about} AND s.level <> {above} AND (p.valid_until IS NULL OR p.valid_until > %s)
    LEFT JOIN {candidate} d ON d.policy_id = p.id AND d.state <> 'reverted'
    LEFT JOIN {limit} l ON l.policy_id = p.id
    WHERE s.entity_id IS NOT NULL AND s.plan_id IS NOT NULL
"""
"""It searches by the unique indexes of entities and policies, so that it stays fast with many of them.

A request is one of several: its number, its resource, the entity as a row (NULL where it can have none) and as text,
the name of the plan that the request has, and the primary key of the user. The chain has the entity with all above it,
which may have its plan or its billing date, and of which some are charged; of the others, only the identifiers are
returned. Patterns are found by each prefix after a separator.
"""

_NETWORKS: Final = "UNION ALL SELECT {number}, 0, e.id, 0, NULL FROM {entity} e WHERE e.identifier IN ({identifiers})"

_PLAN_OF_GROUPS: Final = """
    (SELECT n.id FROM {members} m JOIN {plangroup} g ON g.group_id = m.{group} JOIN {plan} n ON n.id = g.plan_id
     WHERE m.{user} = k.person ORDER BY {order} LIMIT 1)
"""


def policies_for(subject: Subject, using: str, now: datetime) -> PolicyChain:
    """Return the policies that may apply to an entity (None: the site itself) on a resource; see `read` for errors.

    Those of the entities above it are included as far as each cascades, and those that have ended by `now` are not.
    """
    return policies_of_each([subject], using, now)[0]


def policies_of_each(subjects: Sequence[Subject], using: str, now: datetime) -> list[PolicyChain]:
    """Return the policies that may apply to each of several subjects, in their order, in one query."""
    return [stored.chain() for stored in stored_chains(subjects, using, now)]


def stored_chains(subjects: Sequence[Subject], using: str, now: datetime) -> list[StoredChain]:
    """`policies_of_each` as rows, for callers who may know already what they mean."""
    connection = connections[using]
    if are_empty_in_test(_TABLES, using):
        return [StoredChain(subject.entity, [], now, connection) for subject in subjects]
    has_groups = groups_have_plans(using)
    networks = [other_networks_of(subject.entity or "") for subject in subjects]
    parameters: list[Any] = []
    for resource, entity, plan in subjects:
        client = entity if entity is not None and can_be_stored(entity) else None
        person = user_key(client) if has_groups and client else None
        exact = None if client and is_pattern(client) else client
        parameters += [resource, exact, client, plan if plan is not None and can_be_stored(plan) else None]
        if has_groups:
            parameters.append(None if person is None else user_model()._meta.pk.get_db_prep_value(person, connection))
    sql = _sql(connection, tuple([len(identifiers) for identifiers in networks]), has_groups=has_groups)
    values = [*parameters, *chain.from_iterable(networks), to_column(now, connection)]
    # Each subject has a row, since `subject` in the query always has one.
    rows: list[Row] = read(using, lambda: _rows(connection, sql, values), [])
    by_number: list[list[Row]] = [[] for _ in subjects]
    for row in rows:
        by_number[row.number].append(row)
    return [StoredChain(subject.entity, own, now, connection) for subject, own in zip(subjects, by_number, strict=True)]


def _rows(connection: BaseDatabaseWrapper, sql: str, values: Sequence[Any]) -> list[Row]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return [Row._make(columns) for columns in cursor.fetchall()]


def can_be_stored(name: str) -> bool:
    """Whether a row can have this name: databases store neither NUL nor half a surrogate pair."""
    if name.isascii():
        return "\0" not in name
    return "\0" not in name and not any("\ud800" <= character <= "\udfff" for character in name)


def _sql(connection: BaseDatabaseWrapper, networks: tuple[int, ...], *, has_groups: bool) -> str:
    """The query for several subjects; `networks` is the number of networks that may match each."""
    person_type = None
    if has_groups and connection.vendor == "postgresql":  # which would take NULL for text
        person_type = _key_type(user_model(), connection.alias)
    return _composed(connection.vendor, networks, person_type, has_groups=has_groups)


@cache
def _key_type(model: Any, using: str) -> str | None:
    """The type of a column that refers to a model."""
    column_type: str | None = model._meta.pk.rel_db_type(connections[using])
    return column_type


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
        plan_of_groups=_plan_of_groups(tables, quote, vendor) if has_groups else "NULL",
        key=quote.format("key"),
        cascade=quote.format("cascade"),
        length="CHAR_LENGTH" if is_mysql else "LENGTH",
        pattern="CONCAT(SUBSTR(x.identifier, 1, x.size), '*')"
        if is_mysql
        else "SUBSTR(x.identifier, 1, x.size) || '*'",
        separators=", ".join(f"'{separator}'" for separator in SEPARATORS),
        about=" AND ".join(_is_about(column, owner, is_mysql=is_mysql) for column, owner in _ABOUT),
        most=MAX_LEVELS - 1,
        everybody=EVERYBODY,
        above=ABOVE,
    )


_TABLES: Final = (
    *(Policy, Limit, Resource, Entity, Pool, Plan, PlanGroup, EmergencySwitch, Candidate, CoolDown, Price),
)
_ABOUT: Final = (("resource_id", "place"), ("entity_id", "s"), ("plan_id", "s"))


def _is_about(column: str, owner: str, *, is_mysql: bool) -> str:
    """A condition for the policies of a subject, whose column is 0 where that of the policy is NULL."""
    # MariaDB has no indexes over expressions, so there it uses the indexes of the foreign keys.
    if is_mysql:
        return f"p.{column} <=> NULLIF({owner}.{column}, 0)"
    return f"COALESCE(p.{column}, 0) = {owner}.{column}"


def _plan_of_groups(tables: Mapping[str, str], quote: str, vendor: str) -> str:
    """The part of the query for the plan that the groups of a user have."""
    field = memberships()
    through = field.remote_field.through
    return _PLAN_OF_GROUPS.format(
        **tables,
        order=plan_order_sql(vendor, "n"),
        members=quote.format(through._meta.db_table),
        user=quote.format(through._meta.get_field(field.m2m_field_name()).column),
        group=quote.format(through._meta.get_field(field.m2m_reverse_field_name()).column),
    )

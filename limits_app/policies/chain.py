"""The policies of a client in the order of its entities, and how the rows of the query become them."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from limits_app.acquiring import Cooling
from limits_app.engine import CLIENT_START, Noted
from limits_app.engine.errors import InvalidLimit, UnknownTimeZone
from limits_app.engine.limits import LimitDefinition, QuotaLimit
from limits_app.models.candidate import CandidateState, CandidateValue
from limits_app.models.emergency import ENFORCED, Emergency
from limits_app.models.fields import from_column
from limits_app.models.limit import noted_limits
from limits_app.models.limit_rules import stored_definition
from limits_app.models.own_queries import known_time_zones
from limits_app.models.patterns import is_pattern
from limits_app.models.policy_rules import Enforcement
from limits_app.policies.kept import Aged, Kept
from limits_app.policies.policy_values import EntityPolicies, PolicyValue, policy_of_flags, policy_value

logger = logging.getLogger("limits_app")

EVERYBODY: Final = -1
"""The level of rows that apply to all entities."""
ABOVE: Final = -2
"""The level of entities that are above the entity and not charged."""


@dataclass(frozen=True, slots=True)
class PolicyChain:
    """The entities that are charged, the entity itself first, the name of the pool that serves the resource (None: no
    pool), and the alias of the store in which the resource is counted (None: the default one); `known` says whether
    the resource has a row. `emergency` is the emergency switch, as it is in force. `cooling` is the
    cool-down of the resource, if there is one. `above` are the identifiers of entities above that are not charged; the
    plan of one of them may apply. `has_row` says whether the entity itself has a row, and `plan` is the name of the
    plan that applies to it (None: no plan), whether it is that of a row, of the request, or of a group. `has_prices`
    says whether there are prices, of any resource. `priority` is that of its requests: that of the plan, else that of
    the resource; empty where neither has one.
    """

    links: list[EntityPolicies]
    pool: str | None
    store: str | None = None
    known: bool = True
    emergency: Emergency = ENFORCED
    cooling: Cooling | None = None
    above: tuple[str, ...] = ()
    has_row: bool = False
    plan: str | None = None
    has_prices: bool = False
    priority: str = ""


class Subject(NamedTuple):
    """What policies are read for: a resource (None: all resources), and an entity (None: the site itself).

    `plan` is the name of the plan of the request; the plan of the entity, or of one above it, precedes it.
    """

    resource: str | None
    entity: str | None
    plan: str | None = None


class Row(NamedTuple):
    """A policy for a subject, with one of its limits; fields are None where one of them is missing.

    `billing_from` is the billing date of the entity of the level, or of one above it.
    """

    number: int
    billing_from: Any
    level: int
    blocked: bool | None
    unlimited: bool | None
    pool: str | None
    store: str | None
    priority: str | None
    cooling_until: int | None
    cooling_length: int | None
    mode: str | None
    until: Any
    has_prices: bool
    plan_priority: str | None
    identifier: str | None
    plan: str | None
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
    shared: bool | None
    key: str | None
    text: str | None

    @property
    def is_pattern(self) -> bool:
        """Whether it is about a pattern."""
        return self.identifier is not None and is_pattern(self.identifier)

    @property
    def has_dates(self) -> bool:
        """Whether the policy or its candidate has dates, whose text depends on the connection."""
        return not (self.valid_from is None and self.valid_until is None and self.watched_until is None)


_LEVEL, _IDENTIFIER, _RESOURCE = map(Row._fields.index, ("level", "identifier", "resource_id"))
_OF_POLICY: Final = _IDENTIFIER
"""The first column that is about the policy; those before are about the subject, and the request."""
_MOST_SHARED: Final = 256
_SHARED: Final[Kept[object, PolicyValue]] = Kept()
"""The policies of resources, plans and the system, by their rows: every client has the same ones."""


@dataclass(frozen=True, slots=True)
class StoredChain:
    """The rows of the query for an entity (None: the site itself); none where the tables were never made."""

    entity: str | None
    rows: Sequence[Row]
    now: datetime
    connection: BaseDatabaseWrapper

    @property
    def identifiers(self) -> set[str]:
        """The identifiers of the rows."""
        return {row.identifier for row in self.rows if row.identifier is not None}

    def content(self, default_limits: Sequence[object] = ()) -> Hashable:
        """What the rows say without the name of the entity: entities with equal contents have the same limits.

        A policy whose decisions are counted, by its primary key, is in the content of no other entity. Of the billing
        dates, it has the start of each quota that begins with the client: most entities share few of these.
        `default_limits` are those that code sets.
        """
        return self._rows_content(), self._starts(default_limits)

    def _starts(self, default_limits: Sequence[object]) -> Hashable:
        dates = {row.level: row.billing_from for row in self.rows if row.billing_from is not None}
        if not dates:
            return None
        limits = [*default_limits, *[limit for row in self.rows for limit in _limits_with_client(row)]]
        quotas = {limit for limit in limits if isinstance(limit, QuotaLimit) and limit.starts_with_client}
        return frozenset(
            [
                (level, quota.started(from_column(date, self.connection)))
                for level, date in dates.items()
                for quota in quotas
            ]
        )

    def _rows_content(self) -> Hashable:
        entity, rows = self.entity, [row for row in self.rows if row.level != ABOVE]
        named = [] if entity is None or is_pattern(entity) else [row for row in rows if row.identifier == entity]
        own = [row for row in named if row.level == 0 and row.enforcement != Enforcement.SHADOW]
        if not own or len(own) < len(named):  # it is above itself, or decisions of its policies are counted
            return frozenset([row[_LEVEL:] for row in rows])
        # The order of their primary keys decides between policies of one level.
        keys = sorted({row.policy_id or 0 for row in own})
        return frozenset(
            [
                (*row[_LEVEL:_IDENTIFIER], "", row.plan, keys.index(row.policy_id or 0), *row[_RESOURCE:])
                if row.level == 0 and row.identifier == entity
                else row[_LEVEL:]
                for row in rows
            ]
        )

    def chain(self) -> PolicyChain:
        """What the rows mean; raises Unresolved where a time zone is missing."""
        if not self.rows:
            return PolicyChain([EntityPolicies(self.entity, ())], None, known=False)
        with known_time_zones():
            return chain_of(self.entity, self.rows, self.now, self.connection)


def chain_of(entity: str | None, rows: Sequence[Row], now: datetime, connection: BaseDatabaseWrapper) -> PolicyChain:
    """Return the policies of an entity (None: the site itself) from all its rows, of which there is at least one."""
    levels: dict[int, list[Row]] = {0: []}
    for row in rows:
        levels.setdefault(row.level, []).append(row)
    everybody = _policy_values(levels.pop(EVERYBODY), connection)
    above = tuple({row.identifier for row in levels.pop(ABOVE, ()) if row.identifier is not None})
    links, has_row = [], False
    for level, of_level in sorted(levels.items()):
        own = next((row for row in of_level if row.identifier is not None and not row.is_pattern), None)
        has_row = has_row or own is not None
        name = entity if level == 0 or own is None else own.identifier
        billing_from = next((row.billing_from for row in of_level if row.billing_from is not None), None)
        policies = (*_own_flags(own), *_policy_values(of_level, connection), *everybody)
        plan = next((row.plan for row in of_level if row.plan is not None), "")
        links.append(EntityPolicies(name, policies, from_column(billing_from, connection), plan))
    first = rows[0]
    until = from_column(first.until, connection)
    switch = Emergency(Enforcement(first.mode), until=until).at(now) if first.mode else ENFORCED
    cooling = None if first.cooling_until is None else Cooling(first.cooling_until, first.cooling_length or 0)
    is_known = first.store is not None
    priority = next((row.plan_priority for row in levels[0] if row.plan_priority), first.priority or "")
    return PolicyChain(
        links,
        first.pool,
        first.store or None,
        is_known,
        switch,
        cooling,
        above,
        has_row,
        links[0].plan or None,
        has_prices=bool(first.has_prices),
        priority=priority,
    )


def _own_flags(row: Row | None) -> tuple[PolicyValue, ...]:
    return () if row is None else policy_of_flags(blocked=row.blocked, unlimited=row.unlimited)


def _policy_values(rows: Sequence[Row], connection: BaseDatabaseWrapper) -> list[PolicyValue]:
    by_policy: dict[int, list[Row]] = {}
    for row in rows:
        if row.policy_id is not None:
            by_policy.setdefault(row.policy_id, []).append(row)
    return [
        _policy_value(of_policy, connection)
        if of_policy[0].identifier is not None or of_policy[0].has_dates
        else _shared_value(of_policy, connection)
        for of_policy in by_policy.values()
    ]


def _shared_value(rows: Sequence[Row], connection: BaseDatabaseWrapper) -> PolicyValue:
    """A policy that clients have in common; the same text is parsed once."""
    key = tuple([row[_OF_POLICY:] for row in rows])
    kept = _SHARED.get(key)
    if kept is None:
        kept = Aged(_policy_value(rows, connection))
        _SHARED.add(key, kept, most=_MOST_SHARED)
    return kept.value


def _policy_value(rows: Sequence[Row], connection: BaseDatabaseWrapper) -> PolicyValue:
    row = rows[0]
    begins, ends = from_column(row.valid_from, connection), from_column(row.valid_until, connection)
    with_limits = [each for each in rows if each.key is not None]
    noted = [Noted(limit, bool(each.shared)) for each in with_limits if (limit := _limit(each)) is not None]
    # In place of an invalid limit, the one of its key of the next broader policy applies.
    extends = bool(row.extends) or len(noted) < len(with_limits)
    return policy_value(
        {**row._asdict(), "valid_from": begins, "valid_until": ends, "extends": extends},
        noted,
        policy_id=row.policy_id or 0,
        identifier=row.identifier,
        plan=row.plan,
        has_resource=row.resource_id is not None,
        candidate=None if row.candidate_id is None else _candidate(row, connection),
    )


def _candidate(row: Row, connection: BaseDatabaseWrapper) -> CandidateValue | None:
    """The candidate of a policy; None for one that was promoted and is not watched, or has invalid limits."""
    until = from_column(row.watched_until, connection)
    if row.candidate_state == CandidateState.PROMOTED and until is None:
        return None
    noted = _candidate_limits(row)
    if noted is None:
        return None
    limits = tuple(definition.limit for definition in noted)
    shared = frozenset(definition.limit.key for definition in noted if definition.shared)
    return CandidateValue(row.candidate_id or 0, limits, shared, row.candidate_percent, until)


def _candidate_limits(row: Row) -> tuple[Noted, ...] | None:
    """The limits of the candidate of a policy; None for invalid ones."""
    try:
        return noted_limits(row.candidate_limits)
    except InvalidLimit as error:  # written past the validation of the model
        logger.warning("the candidate of policy %s is not evaluated: %s", row.policy_id, error)
        return None


def _limits_with_client(row: Row) -> Iterator[LimitDefinition]:
    """The limits of a row and its candidate whose texts may say that periods begin with the client."""
    if row.text and CLIENT_START in row.text and (limit := _limit(row)) is not None:
        yield limit
    if row.candidate_limits and CLIENT_START in row.candidate_limits:
        yield from [noted.limit for noted in _candidate_limits(row) or ()]


def _limit(row: Row) -> LimitDefinition | None:
    """The limit of a row; None for an invalid one."""
    try:
        limit, problem = stored_definition(row.key or "", row.text or "")
    except UnknownTimeZone:
        raise
    except InvalidLimit as error:  # written past the validation of the model
        logger.warning("a limit of policy %s is left out: %s", row.policy_id, error)
        return None
    if problem is not None:
        logger.warning("a limit of policy %s counts as before CURRENCIES was changed: %s", row.policy_id, problem)
    return limit

"""The index of who may be blocked or exempt, so that a request of anyone else is known to be limited without a query.

It has the policies of patterns and of the system as values. Of clients it has 8 bytes each: the policies of such a
client are read when it makes a request.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, reduce
from operator import or_
from typing import Any, Final, NamedTuple

from django.db import connections
from django.db.models import CharField, Exists, Max, OuterRef, Q, QuerySet, Value
from django.db.models.functions import Cast, Coalesce

from limits_app import conf
from limits_app.models import (
    ENFORCED,
    MAX_LEVELS,
    Emergency,
    Enforcement,
    Entity,
    PlanGroup,
    Policy,
    PolicyEffect,
    emergency,
)
from limits_app.models.changes import identifier_digest
from limits_app.models.entity import HAS_FLAG
from limits_app.models.fields import aware, to_column
from limits_app.models.in_tests import are_empty_in_test
from limits_app.models.own_queries import known_time_zones
from limits_app.models.patterns import Patterns, is_pattern, patterns_in
from limits_app.models.plan import groups_have_plans
from limits_app.models.policy_rules import Counted, not_ended
from limits_app.models.prefixes import ADDRESS, kind_of
from limits_app.models.users import identifiers_of_client
from limits_app.policies.policy_values import EntityPolicies, PolicyValue, policy_value

_CLIENT, _FLAG, _POLICY, _GROUP = "client", "flag", "policy", "group"
_PAGE: Final = 10_000
_NOW: Final = object()
_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Takes the index of the present time while a query is prepared."""
_TEXT: Final = CharField()
_NONE: Final = Value("", output_field=_TEXT)
_COLUMNS: Final = (
    "pk", "entity__identifier", "plan__name", "resource__name", "counted", "effect", "extends", "enforcement",
    "rollout_percent", "valid_from", "valid_until", "on_unavailable",
    "slice_seconds",
    "weekly_hours", "time_zone",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AccessIndex:
    """Who may be blocked or exempt.

    `kinds` are what precedes the colon of the identifiers and patterns. `plans` are those that block or are unlimited,
    and `groups` has the plan of each group of users with its priority. `resources` are those that are blocked for some
    clients only. `shared` are the policies that the system has for everyone.
    """

    kinds: frozenset[str] = frozenset()
    plans: frozenset[str] = frozenset()
    groups: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    resources: frozenset[str] = frozenset()
    shared: tuple[PolicyValue, ...] = ()
    switch: Emergency = ENFORCED
    digests: array[int] = field(default_factory=lambda: array("Q"))
    _patterns: Patterns = field(default_factory=Patterns)
    _by_pattern: Mapping[str, Mapping[str, tuple[PolicyValue, ...]]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.kinds or self.plans or self.shared)

    def must_read(self, identity: str, plan: str | None = None) -> bool:
        """Whether the policies of an identity have to be read, since it has its own configuration, or a plan."""
        if plan is not None and (plan in self.plans or identity in self._patterns):
            return True
        return bool(self.digests) and any(map(self._has, identifiers_of_client(identity)))

    def _has(self, identifier: str) -> bool:
        digest = _digest(identifier)
        index = bisect_left(self.digests, digest)
        return index < len(self.digests) and self.digests[index] == digest

    def policies_of(self, identity: str, resource: str | None) -> EntityPolicies | None:
        """The policies of an identity without its own row; None where nothing blocks or exempts it."""
        matching = self._patterns.matching(identity) if self._patterns else []
        if not matching and not self.shared:
            return None
        names = ("",) if resource is None else ("", resource)
        policies = [
            policy for pattern in matching for name in names for policy in self._by_pattern[pattern].get(name, ())
        ]
        return EntityPolicies(identity, (*policies, *self.shared))


NO_ACCESS_INDEX: Final = AccessIndex()


def has_no_access_in_test(using: str) -> bool:
    """Whether a test runs in which no client is blocked or exempt; see `are_empty_in_test`."""
    return are_empty_in_test([Policy, Entity], using)


def read_access_index(using: str, now: datetime) -> AccessIndex:
    """Read the index from a database; one query where nothing is blocked or exempt."""
    rows: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for what, *texts in _summary_rows(using, now):
        rows[what].append(tuple(texts))
    groups = {group: (int(priority), plan) for group, plan, priority in rows[_GROUP]}
    of_policies, of_clients, has_flags = rows[_POLICY], rows[_CLIENT], bool(rows[_FLAG])
    if not (of_policies or of_clients or has_flags):
        return AccessIndex(groups=groups)
    plans = frozenset(plan for _, plan, _ in of_policies if plan)
    patterns = frozenset(identifier for identifier, _, _ in of_policies if identifier)
    resources = frozenset(resource for _, _, resource in (*of_policies, *of_clients) if resource)
    by_pattern, shared = _shared_policies(using, resources, has_patterns=bool(patterns))
    digests, kinds = set(), {kind_of(pattern) for pattern in patterns}
    for identifier in _clients(using, now, plans, patterns, has_policies=bool(of_clients), has_flags=has_flags):
        digests.add(_digest(identifier))
        kinds.add(kind_of(identifier))
    return AccessIndex(
        kinds=frozenset(kinds),
        plans=plans,
        groups=groups,
        resources=resources,
        shared=shared,
        switch=emergency(using, now),
        digests=array("Q", sorted(digests)),
        _patterns=Patterns(by_pattern),
        _by_pattern=by_pattern,
    )


def _summary_rows(using: str, now: datetime) -> Sequence[tuple[str, ...]]:
    """The rows of `_summary`, whose text is made once: that takes longer than the query."""
    connection = connections[using]
    has_groups, prefix = groups_have_plans(using), conf.get(conf.IPV6_PREFIX)
    prepared = _prepared(using, connection.vendor, prefix, has_groups=has_groups)
    values: list[Any] = [to_column(now, connection) if value is _NOW else value for value in prepared.values]
    with connection.cursor() as cursor:
        cursor.execute(prepared.sql, values)
        rows: list[tuple[str, ...]] = cursor.fetchall()
    return rows


class _Prepared(NamedTuple):
    """A query with its parameters, of which _NOW is the present time."""

    sql: str
    values: tuple[Any, ...]


@lru_cache(maxsize=64)
def _prepared(using: str, _vendor: str, _ipv6_prefix: int, *, has_groups: bool) -> _Prepared:
    """The query for the summary in a database; it depends on all of these arguments."""
    connection = connections[using]
    sql, values = _summary(using, _FIRST, has_groups=has_groups).query.get_compiler(using).as_sql()
    first = to_column(_FIRST, connection)
    return _Prepared(sql, tuple([_NOW if value == first else value for value in values]))


def _summary(using: str, now: datetime, *, has_groups: bool) -> QuerySet[Any, Any]:
    """Whether there are clients that are blocked or exempt, and the patterns and plans that are, in one query."""
    policies = _effective(using, now)
    of_resources = Q(entity=None, plan=None, counted=Counted.EACH)
    is_client = Q(entity__isnull=False) & ~patterns_in("entity__identifier")
    flagged = Entity.objects.using(using).filter(HAS_FLAG)
    resource = Coalesce("resource__name", _NONE, output_field=_TEXT)
    parts: tuple[QuerySet[Any, Any], ...] = (
        policies.filter(is_client).values_list(Value(_CLIENT, output_field=_TEXT), _NONE, _NONE, resource),
        policies.exclude(of_resources | is_client).values_list(
            Value(_POLICY, output_field=_TEXT),
            Coalesce("entity__identifier", _NONE, output_field=_TEXT),
            Coalesce("plan__name", _NONE, output_field=_TEXT),
            resource,
        ),
        flagged.values_list(Value(_FLAG, output_field=_TEXT), _NONE, _NONE, _NONE),
    )
    if has_groups:
        groups = PlanGroup.objects.using(using).values_list(
            Value(_GROUP, output_field=_TEXT),
            Cast("group_id", _TEXT),
            Cast("plan__name", _TEXT),
            Cast("plan__priority", _TEXT),
        )
        parts = (*parts, groups)
    first, *others = [part.order_by() for part in parts]
    return first.union(*others).order_by()  # Django 6.1 orders a union by the model otherwise


def _effective(using: str, now: datetime) -> QuerySet[Policy]:
    """The policies that block, or that are unlimited over all resources, now or later."""
    blocked_or_unlimited = Q(effect=PolicyEffect.BLOCKED) | Q(effect=PolicyEffect.UNLIMITED, resource=None)
    rows = Policy.objects.using(using).exclude(enforcement=Enforcement.OFF)
    return rows.filter(not_ended(now), blocked_or_unlimited)


def _shared_policies(
    using: str, resources: Collection[str], *, has_patterns: bool
) -> tuple[Mapping[str, Mapping[str, tuple[PolicyValue, ...]]], tuple[PolicyValue, ...]]:
    """The policies of patterns, by pattern and resource (empty: all), and the blocked totals of the system."""
    condition = Q(entity=None, plan=None, counted=Counted.TOTAL, effect=PolicyEffect.BLOCKED)
    if has_patterns:
        condition |= patterns_in("entity__identifier") & (Q(resource=None) | Q(resource__name__in=resources))
    by_pattern: dict[str, dict[str, tuple[PolicyValue, ...]]] = {}
    shared: tuple[PolicyValue, ...] = ()
    with known_time_zones():
        for row in Policy.objects.using(using).filter(condition).order_by().values(*_COLUMNS):
            value, pattern, resource = _value(row), row["entity__identifier"], row["resource__name"] or ""
            if pattern is None:
                shared += (value,)
            else:
                of_pattern = by_pattern.setdefault(pattern, {})
                of_pattern[resource] = (*of_pattern.get(resource, ()), value)
    return by_pattern, shared


def _value(row: Mapping[str, Any]) -> PolicyValue:
    """A policy as a value without its limits, which make no difference to who is blocked or exempt."""
    dates = {name: row[name] and aware(row[name]) for name in ("valid_from", "valid_until")}
    return policy_value(
        {**row, **dates},
        (),
        policy_id=row["pk"],
        identifier=row["entity__identifier"],
        plan=None,
        has_resource=row["resource__name"] is not None,
    )


def _clients(
    using: str,
    now: datetime,
    plans: Collection[str],
    patterns: Collection[str],
    *,
    has_policies: bool,
    has_flags: bool,
) -> Iterator[str]:
    """The identifiers of the entities whose policies must be read to know whether they are blocked or exempt.

    These are the entities that are blocked or unlimited themselves, those that count for a blocked one, those on a
    plan that is, and those that match a pattern that is and have their own configuration.
    """
    rows = Entity.objects.using(using)
    policies = _effective(using, now)
    if has_policies:
        yield from _identifiers(rows.filter(pk__in=policies.values("entity")))
    if has_flags:
        yield from _identifiers(rows.filter(HAS_FLAG))
    if plans:
        yield from _identifiers(rows.filter(plan__name__in=plans))
    if patterns:
        configured = _has_one(Policy.objects.using(using), "pk") | Q(plan__isnull=False) | Q(parent__isnull=False)
        every = Patterns(patterns)
        stems = [Q(identifier__startswith=stem) for stem in {_stem_of(pattern) for pattern in patterns}]
        for identifier in _identifiers(rows.filter(configured, reduce(or_, stems))):
            if identifier in every:
                yield identifier
    # The highest one, since databases look that up in the index.
    if rows.aggregate(highest=Max("parent"))["highest"] is not None:
        yield from _identifiers_below(
            using, now, plans, {_stem_of(pattern) for pattern in patterns if pattern.endswith("*")}
        )


def _identifiers_below(using: str, now: datetime, plans: Collection[str], stems: Collection[str]) -> Iterator[str]:
    """The identifiers of the entities below others: on the plan of these, or counting for these."""
    rows, policies = Entity.objects.using(using), _effective(using, now)
    for depth in range(1, MAX_LEVELS):
        above = "__".join(["parent"] * depth)
        if plans:
            yield from _identifiers(rows.filter(**{f"{above}__plan__name__in": plans}))
        is_blocked = Q(**{f"{above}__blocked": True}) | _has_one(policies, f"{above}__pk")
        for stem in stems:
            is_blocked |= Q(**{f"{above}__identifier__startswith": stem})
        cascades = ["cascade", *["__".join([*["parent"] * level, "cascade"]) for level in range(1, depth)]]
        yield from _identifiers(rows.filter(is_blocked, **dict.fromkeys(cascades, True)))


def _has_one(policies: QuerySet[Policy], entity: str) -> Q:
    return Q(Exists(policies.filter(entity_id=OuterRef(entity))))


def _identifiers(rows: QuerySet[Entity]) -> Iterator[str]:
    """The identifiers of single clients among some rows, a page at a time."""
    rows, last, is_last = rows.order_by("pk"), 0, False
    while not is_last:
        page = list(rows.filter(pk__gt=last).values_list("pk", "identifier")[:_PAGE])
        yield from (identifier for _, identifier in page if not is_pattern(identifier))
        is_last = len(page) < _PAGE
        last = 0 if is_last else page[-1][0]


def _stem_of(pattern: str) -> str:
    return pattern.removesuffix("*") if pattern.endswith("*") else ADDRESS


def _digest(identifier: str) -> int:
    return int.from_bytes(identifier_digest(identifier))

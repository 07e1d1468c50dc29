"""Status: the live state of an entity or a resource, of the rows of a list, and of the stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from typing import Final

from asgiref.sync import sync_to_async
from django.utils import timezone

from limits_app.acquiring import BreakerState, LimitSet, survey_scopes
from limits_app.conf import OnUnavailable
from limits_app.engine import (
    MICRO,
    NORMAL,
    Amount,
    EntityName,
    ScopedLimits,
    check_resource,
    from_micro,
    known_priority,
    units_of,
)
from limits_app.engine.errors import LimitsError, StaleConfiguration
from limits_app.engine.limits import Blocked
from limits_app.engine.outcome import TOTAL_PREFIX, Stats
from limits_app.models import Entity, PolicyEffect, Resource
from limits_app.models.patterns import patterns_in
from limits_app.models.users import entity_name
from limits_app.policies import (
    Pair,
    PolicyChoice,
    PolicyStatus,
    PooledSet,
    ResolutionKey,
    ResolvedSet,
    StoreVersions,
    VersionedStore,
    choose_each,
    latest_code_limits_of_each,
    resolver,
    resource_scopes,
)
from limits_app.stores.registry import aliases, resilient_store

_TOGETHER: Final = 200
"""How many entities are looked at in one step of the store, since others wait for it."""


MOST_ADDED_UP: Final = 10_000
"""The use of more known entities is not added up."""


@dataclass(frozen=True, slots=True)
class Status:
    """The usage of each limit, by key; the fields of each are those of `LimitSet.get_stats`.

    `in_slices` is what this process has charged in advance and not spent, where there is any.
    The key of a total over all resources begins with `total:`, as in `total:tokens`.

    For a resource as a whole, `entities` says how many known entities were looked at, and `used_by_all` what they and
    the site itself use together. With more than 10,000 known entities, these are None and empty.
    `members` are the limits of each member of the pool that serves the resource, by the member's name.
    `priority` is that of requests that name none.
    """

    resource: str
    entity: str | None
    limits: dict[str, Stats]
    entities: int | None = None
    used_by_all: dict[str, Amount] = field(default_factory=dict)
    members: dict[str, dict[str, Stats]] = field(default_factory=dict)
    priority: str = NORMAL

    def as_dict(self) -> dict[str, object]:
        """The status as plain data, for JSON."""
        return asdict(self)


def status(resource: str, *, entity: EntityName = None, plan: str | None = None) -> Status:
    """Read the state of an entity on a resource; without one, of the site itself and of the resource as a whole.

    The state of the entity is one consistent snapshot; known entities, which are those with a row in the database,
    are read a few hundred at a time. The limits that code used last apply where no policy does. `plan` is the name of
    the plan of an entity that has none. Changes nothing.
    Raises StoreUnavailable while the store is down: an outage must not look like no usage.
    """
    return status_of_each([(resource, entity)], plan=plan)[0]


astatus: Final = sync_to_async(status)
"""`status` for asyncio."""


def status_of_each(places: Sequence[tuple[str, EntityName]], *, plan: str | None = None) -> list[Status]:
    """`status` of several resources and entities, in their order; policies are read in one query for 100 of them."""
    of_code = latest_code_limits_of_each([check_resource(resource) for resource, _ in places])
    keys = [(resource, entity_name(entity), of_code[resource], plan) for resource, entity in places]
    if len(keys) > 1:
        resolver.prefetch(keys)
    return [_status(key) for key in keys]


def _status(key: ResolutionKey) -> Status:
    resource, entity, _, _ = key
    resolved, limits, members = _read(key)
    priority = known_priority(next((scoped.priority for scoped in resolved.own), ""))
    if entity is not None:
        return Status(resource, entity, limits, members=members, priority=priority)
    clients, total = _used_by_all(resource, resolved.alias)
    return Status(resource, None, limits, clients, total, members, priority)


def _read(key: ResolutionKey) -> tuple[ResolvedSet, dict[str, Stats], dict[str, dict[str, Stats]]]:
    """The effective limits of an entity, their state, and that of the limits of the pool's members."""
    while True:
        resolved = resolver.get(key)
        try:
            limits = resolved.in_store()
            members = limits.member_stats() if isinstance(limits, PooledSet) else {}
            return resolved, _with_slices(resolved.alias, limits), members
        except StaleConfiguration:
            resolver.catch_up(key, resolved)


def in_slices(alias: str, scoped: Iterable[ScopedLimits]) -> Iterator[tuple[ScopedLimits, int, Amount]]:
    """What this process holds in slices: each scope, the index of a limit in it, and the amount, if there is any."""
    unspent = resilient_store(alias).slices.unspent()
    for scope in scoped if unspent else ():
        for index, rule in enumerate(scope.schema.rules):
            if parts := unspent.get((scope.key, rule.key)):
                yield scope, index, units_of(rule, parts)


def _with_slices(alias: str, limits: LimitSet) -> dict[str, Stats]:
    """The state of the limits, with what this process holds in slices."""
    stats = limits.get_stats()
    for scoped, index, unspent in in_slices(alias, limits.scoped):
        key = scoped.schema.rules[index].key
        stat = stats[TOTAL_PREFIX + key if scoped.scope.total else key]
        stat["in_slices"] = max(unspent, stat.get("in_slices", 0))
    return stats


def _used_by_all(resource: str, alias: str) -> tuple[int | None, dict[str, Amount]]:
    """The number of known entities, and their use with that of the site itself; shared limits are counted once.

    None and nothing where there are more than `MOST_ADDED_UP`.
    """
    row = Resource(name=resource)
    identifiers = Entity.objects.exclude(patterns_in("identifier")).order_by("pk").values_list("identifier", flat=True)
    if identifiers[MOST_ADDED_UP : MOST_ADDED_UP + 1]:
        return None, {}
    entities = (Entity(identifier=identifier) for identifier in identifiers.iterator(_TOGETHER))
    pairs: Iterator[Pair] = chain([(row, None)], ((row, entity) for entity in entities))
    looked_at, own, shared = 0, Counter[str](), dict[str, Amount]()
    while some := list(islice(pairs, _TOGETHER)):
        looked_at += len(some)
        for state in overview(some):
            if not state.known:
                raise resilient_store(alias).unavailable()
            for limit in state.limits:
                if limit.shared:
                    shared[limit.key] = limit.used or 0
                else:
                    own[limit.key] += limit.used or 0  # type: ignore[assignment]  # amounts need not be whole
    total = {key: own[key] + shared.get(key, 0) for key in sorted({*own, *shared})}
    return looked_at - 1, {key: from_micro(round(amount * MICRO)) for key, amount in total.items()}


@dataclass(frozen=True, slots=True)
class LimitState:
    """One effective limit: the level of its policy, and the used and available amounts (None: unknown).

    A `shared` limit is one for all entities. `in_slices` is what this process has charged in advance and not spent.
    """

    key: str
    level: str
    shared: bool
    capacity: Amount
    used: Amount | None
    available: Amount | None
    in_slices: Amount = 0

    @property
    def share(self) -> float:
        """The share in use, from 0 to 1; above 1 in debt."""
        return self.used / self.capacity if self.used is not None and self.capacity else 0.0


@dataclass(frozen=True, slots=True)
class RowState:
    """The effective limits of an entity on a resource, the tightest first, and the `levels` that they come from.

    `shadow_levels` are those of policies in shadow mode; `standing` is the status of each policy, by its primary key.
    `known` is False while the store is down: an outage must not look like no usage.
    """

    resource: str
    entity: str | None
    limits: tuple[LimitState, ...]
    effect: PolicyEffect
    levels: tuple[str, ...]
    shadow_levels: tuple[str, ...]
    standing: dict[int, PolicyStatus]
    known: bool = True


def overview(pairs: Collection[Pair]) -> list[RowState]:
    """Return the state of entities (None: the site itself) on resources, in their order, one query for 100 of them.

    A pair without a resource is about the policies for all resources, whose limits have no state: they are unused.
    Pairs may be new rows with the names alone. While a store is down, the amounts of its resources are unknown.
    """
    while True:
        versions = StoreVersions()  # before the queries, so that stores reject a change in between
        choices = choose_each(pairs, timezone.now())
        by_store: dict[str | None, dict[int, tuple[Pair, PolicyChoice]]] = {}
        for number, (pair, (choice, alias)) in enumerate(zip(pairs, choices, strict=True)):
            by_store.setdefault(alias, {})[number] = pair, choice
        stats: dict[int, dict[str, Stats] | None] = {}
        try:
            for alias, rows in by_store.items():
                stats |= zip(rows, _stats_of_rows(versions.of(alias), rows.values()), strict=True)
        except StaleConfiguration:
            continue
        return [
            _row(pair, choice, stats[number])
            for number, (pair, (choice, _alias)) in enumerate(zip(pairs, choices, strict=True))
        ]


def _stats_of_rows(
    versioned: VersionedStore, rows: Collection[tuple[Pair, PolicyChoice]]
) -> Iterable[dict[str, Stats] | None]:
    """The state of the limits of each row, by key; None for all rows while their store is down."""
    if not versioned.available:
        return [None] * len(rows)
    try:
        scoped = [
            [] if resource is None else resource_scopes(resource.name, choice, versioned.store)
            for (resource, _), choice in rows
        ]
        unique = {scope_limits.scope.key: scope_limits for some in scoped for scope_limits in some}
        stats = survey_scopes(unique.values(), versioned.store, versioned.version)
        for scoped_limits, index, remaining in in_slices(versioned.alias, unique.values()):
            stats[scoped_limits.key][scoped_limits.schema.rules[index].key]["in_slices"] = remaining
        return [
            {key: value for scope_limits in some for key, value in stats[scope_limits.scope.key].items()}
            for some in scoped
        ]
    except StaleConfiguration:
        raise
    except LimitsError:
        return [None] * len(rows)


def _row(pair: Pair, choice: PolicyChoice, stats: dict[str, Stats] | None) -> RowState:
    resource, entity = pair
    return RowState(
        resource="" if resource is None else resource.name,
        entity=None if entity is None else entity.identifier,
        limits=_limits(choice, stats or {}),
        effect=_effect(choice),
        levels=_levels(choice, PolicyStatus.COUNTS, PolicyStatus.EXTENDED),
        shadow_levels=_levels(choice, PolicyStatus.SHADOW),
        standing={verdict.policy.policy_id or 0: verdict.status for verdict in choice.verdicts},
        known=stats is not None,
    )


def _levels(choice: PolicyChoice, *statuses: PolicyStatus) -> tuple[str, ...]:
    """The levels of the policies with a status, each once, in order of precedence."""
    levels = [verdict.policy.level for verdict in choice.verdicts if verdict.status in statuses]
    return tuple(dict.fromkeys(levels))


def _limits(choice: PolicyChoice, stats: dict[str, Stats]) -> tuple[LimitState, ...]:
    limits = [
        LimitState(
            effective.limit.key,
            effective.policy.level,
            effective.shared,
            effective.limit.capacity,
            _amount(stats.get(effective.limit.key), "used"),
            _amount(stats.get(effective.limit.key), "available"),
            _amount(stats.get(effective.limit.key), "in_slices") or 0,
        )
        for effective in choice.limits
        if not isinstance(effective.limit, Blocked)
    ]
    return tuple(sorted(limits, key=lambda limit: -limit.share))


def _amount(stats: Stats | None, name: str) -> Amount | None:
    amount = None if stats is None else stats.get(name)
    return amount if isinstance(amount, int | float) else None


def _effect(choice: PolicyChoice) -> PolicyEffect:
    """The effect of all policies together; unlimited without policies."""
    if not choice.limits:
        return PolicyEffect.UNLIMITED
    return PolicyEffect.BLOCKED if isinstance(choice.limits[0].limit, Blocked) else PolicyEffect.LIMITS


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """The health of one store, as seen by this process.

    `state` is that of its circuit breaker: closed (available), open (down) or half_open (recovering). `error` is the
    last failure. `degraded` is the number of decisions that each policy made in place of the store since the process
    started, and `unsettled` the number of releases that wait for it.
    """

    state: BreakerState
    error: str | None
    degraded: dict[OnUnavailable, int]
    unsettled: int

    def as_dict(self) -> dict[str, object]:
        """The health as plain data, for JSON."""
        return asdict(self)


def store_health() -> dict[str, StoreHealth]:
    """The health of the store of each alias, also of aliases that are missing in the settings; no store is called."""
    health = {}
    for alias in aliases():
        store = resilient_store(alias)
        degraded = {policy: store.degraded[policy] for policy in OnUnavailable}
        error = None if store.error is None else str(store.error)
        health[alias] = StoreHealth(store.breaker.state, error, degraded, store.unsettled)
    return health

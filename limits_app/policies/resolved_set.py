"""Resolved sets: the chosen policies of a chain of entities, compiled into one limit set over all their scopes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple, Unpack

from limits_app.acquiring import LimitSet, Store
from limits_app.conf import OnUnavailable
from limits_app.engine import (
    BELOW,
    UPSTREAM_LEVEL,
    Amount,
    PriceList,
    Scope,
    ScopedLimits,
    counts_money,
    schema_of,
    scope_of,
    shadow_scope,
    shared_scope,
    shared_total_scope,
    total_scope,
    upstream_scope,
)
from limits_app.engine.limits import AnyLimit, Blocked
from limits_app.models import ENFORCED, Emergency, Enforcement, EvaluationKind, PolicyScope
from limits_app.policies.pools import PooledSet, PoolMembers, SetNames
from limits_app.policies.precedence import PRECEDENCE, EffectiveLimit, PolicyChoice
from limits_app.policies.priced_limits import PRICE_LEVEL, PricedUnits
from limits_app.policies.stores import VersionedStore, schemas_of
from limits_app.stores.registry import resilient_store
from limits_app.stores.slices import sliced

_OF_AN_ENTITY: Final = frozenset(
    {PolicyScope.ENTITY_ON_RESOURCE.value, PolicyScope.ENTITY.value, PolicyScope.ENTITY_TOTAL.value}
)


NO_PRICES: Final = PriceList()
NO_UNITS: Final = PricedUnits()


class Evaluated(NamedTuple):
    """A policy whose decisions are counted, with its candidate (0: none)."""

    policy_id: int
    candidate_id: int
    kind: EvaluationKind


@dataclass(slots=True, eq=False)
class ResolvedSet:
    """The effective limits of a request, and how the request is decided while their store is unavailable.

    `alias` is that of the store in which the limits are counted. `on_unavailable` is that of the policies; None for
    that of the settings. `shadow` are the limits of policies in shadow mode. `available` is False where the store was
    unavailable when the limits were resolved. `fallbacks` caches the sets that decide in bucket of
    this one while the store is unavailable. `evaluated` has the policies whose decisions are counted, by scope and key.
    `template` is the set from which this one was made by changing names or the version; the scopes of both are in the
    same order. Nothing changes a set: it is not frozen, since one is made for each client, and freezing takes longest.
    """

    limit_set: LimitSet
    alias: str
    on_unavailable: OnUnavailable | None = None
    shadow: LimitSet | None = None
    available: bool = True
    evaluated: Mapping[tuple[str, str], Evaluated] = field(default_factory=dict)
    fallbacks: dict[object, LimitSet] = field(default_factory=dict)
    template: ResolvedSet | None = None

    @classmethod
    def of(
        cls,
        own: Iterable[ScopedLimits],
        store_version: VersionedStore,
        members: PoolMembers | None = None,
        *,
        on_unavailable: OnUnavailable | None = None,
        shadow: LimitSet | None = None,
        accepts_all: bool = False,
        evaluated: Mapping[tuple[str, str], Evaluated] | None = None,
        **names: Unpack[SetNames],
    ) -> ResolvedSet:
        """Compile the limits of several scopes, and of the members of a pool where one serves the resource.

        `accepts_all` is that of `LimitSet`.
        """
        alias, store, version = store_version
        limit_set: LimitSet
        if members is None:
            limit_set = LimitSet.composed(own, store, version=version, **names)
        else:
            limit_set = PooledSet.of(own, members, store, version=version, **names)
        limit_set.accepts_all = accepts_all
        return cls(
            limit_set=limit_set,
            alias=alias,
            on_unavailable=on_unavailable,
            shadow=shadow,
            available=store_version.available,
            evaluated=evaluated or {},
        )

    @property
    def store_version(self) -> VersionedStore:
        """The store in which the limits are counted, and the version of the configuration that they come from."""
        return VersionedStore(self.alias, self.limit_set.store, self.limit_set.version or 0)

    def in_store(self) -> LimitSet:
        """The limit set; StoreUnavailable where its store was not available."""
        if not self.available:
            raise resilient_store(self.alias).unavailable()
        return self.limit_set

    @property
    def own(self) -> tuple[ScopedLimits, ...]:
        """The scopes of the limits, without those of the members of a pool."""
        return self.limit_set.own if isinstance(self.limit_set, PooledSet) else self.limit_set.scoped

    @property
    def own_scopes(self) -> tuple[Scope, ...]:
        """The scopes of `own`, without their limits."""
        limits = self.limit_set
        return limits.scopes[: limits.own_number] if isinstance(limits, PooledSet) else limits.scopes

    @property
    def members(self) -> PoolMembers | None:
        """The members of the pool that serves the resource; None without a pool."""
        return self.limit_set.members if isinstance(self.limit_set, PooledSet) else None

    def at_version(self, version: int) -> ResolvedSet:
        """The same set for another version of the configuration, which has left it as it is."""
        shadow = None if self.shadow is None else self.shadow.at_version(version)
        values = self.alias, self.on_unavailable, shadow, self.available, self.evaluated, self.fallbacks
        # By position, which takes a tenth of the time: each client has this after each change of another one.
        return ResolvedSet(self.limit_set.at_version(version), *values, self.template or self)

    def with_scopes(self, scoped: Iterable[ScopedLimits]) -> LimitSet:
        """The limit set with the limits of more scopes, and without slices."""
        old = self.limit_set
        own = [replace(scope, slice_us=0) if scope.slice_us else scope for scope in self.own]
        added = ResolvedSet.of(
            (*own, *scoped),
            self.store_version,
            self.members,
            resource=old.resource,
            identity=old.identity,
            changes_at=old.changes_at,
            accepts_all=old.accepts_all,
        )
        return added.limit_set

    def moved(self, change: Callable[[ScopedLimits], ScopedLimits], store: Store) -> LimitSet:
        """A limit set for another store, with each scope replaced by the result of `change`."""
        store_version = VersionedStore(self.alias, store, store.version(self.limit_set.namespace))
        members = None if self.members is None else self.members.changed(change)
        accepts_all = self.limit_set.accepts_all
        return ResolvedSet.of(map(change, self.own), store_version, members, accepts_all=accepts_all).limit_set

    def ceiling(self, key: str) -> Amount:
        """The most that can ever be admitted of a key."""
        if isinstance(self.limit_set, PooledSet):
            return max(_ceiling(member.scoped, key) for member in self.limit_set.pool if key in member.keys)
        return _ceiling(self.limit_set.scoped, key)


@dataclass(frozen=True, slots=True)
class Resolution:
    """The policies that apply to an entity on a resource, and the set that they are compiled into.

    There is one choice for the entity and one for each entity above it that is charged too. `shadows` are the choices
    as they would be if policies in shadow mode were enforced. A resource that is not `known` has no row.
    `emergency` is the emergency switch; it is off where `LIMITS["ENABLED"]` is False. `priority` is that of requests
    that name none; empty: `normal`.
    """

    resource: str
    entity: str | None
    choices: tuple[PolicyChoice, ...]
    shadows: tuple[PolicyChoice, ...]
    resolved: ResolvedSet
    known: bool = True
    emergency: Emergency = ENFORCED
    priority: str = ""


def compiled(
    resource: str,
    choices: Sequence[PolicyChoice],
    shadows: Sequence[PolicyChoice],
    *,
    store_version: VersionedStore,
    members: PoolMembers | None = None,
    changes_at: float | None = None,
    is_lifted: bool = False,
    cooling_us: int = 0,
    prices: PriceList = NO_PRICES,
    time_us: int = 0,
    priority: str = "",
) -> ResolvedSet:
    """Compile choices into one resolved set; its `on_unavailable` is that of the first choice that has one.

    `is_lifted` says that the emergency switch or the settings lift all limits. The upstream of the resource cools down
    for `cooling_us` microseconds. The prices are those of `time_us`, which is when the policies apply. `priority` is
    that of requests that name none.
    """
    store = store_version.store
    units = NO_UNITS if is_lifted else _priced_units(choices, prices, time_us, members)
    if members is not None and units.of_members:
        members = replace(members, prices={"": units.of_members})
    scopes = scopes_of(resource, choices, store, units=units)
    if cooling_us and not is_lifted:
        schema = schema_of((Blocked(store.clock() + cooling_us),))
        scopes.append(ScopedLimits(upstream_scope(resource), schema, UPSTREAM_LEVEL))
    units = _priced_units(shadows, prices, time_us) if _limit_money(shadows) else NO_UNITS
    of_shadows = scopes_of(resource, shadows, store, counts_usage=False, units=units) if shadows else []
    if priority:
        scopes = [replace(scoped, priority=priority) for scoped in scopes]
        of_shadows = [replace(scoped, priority=priority) for scoped in of_shadows]
        members = None if members is None else members.changed(partial(replace, priority=priority))
    shadow_scopes = [replace(scoped, scope=shadow_scope(scoped.scope)) for scoped in of_shadows]
    return ResolvedSet.of(
        scopes,
        store_version,
        members,
        resource=resource,
        identity=(resource, choices[0].entity),
        changes_at=changes_at,
        on_unavailable=next((choice.on_unavailable for choice in choices if choice.on_unavailable), None),
        shadow=LimitSet.composed(shadow_scopes, store, version=store_version.version) if shadow_scopes else None,
        accepts_all=is_lifted,
        evaluated={} if is_lifted else dict(_evaluated(resource, choices, shadows)),
    )


def _evaluated(
    resource: str, choices: Sequence[PolicyChoice], shadows: Sequence[PolicyChoice]
) -> Iterator[tuple[tuple[str, str], Evaluated]]:
    """The policies whose decisions are counted: promoted candidates, tested ones, and policies in shadow mode."""
    for choice in filter(_has_candidate, choices):
        for scope, effective in _placed(resource, choice):
            policy_id, candidate = effective.policy.policy_id or 0, effective.policy.candidate
            if candidate is not None and candidate.watched_until is not None:
                bucket = scope.key, effective.limit.key
                yield bucket, Evaluated(policy_id, candidate.candidate_id, EvaluationKind.PROMOTED)
    for choice in shadows:
        for scope, effective in _placed(resource, choice):
            policy_id, candidate = effective.policy.policy_id or 0, effective.policy.candidate
            bucket = shadow_scope(scope).key, effective.limit.key
            if candidate is not None and candidate.watched_until is None:
                yield bucket, Evaluated(policy_id, candidate.candidate_id, EvaluationKind.CANDIDATE)
            elif effective.policy.enforcement == Enforcement.SHADOW:
                yield bucket, Evaluated(policy_id, 0, EvaluationKind.SHADOW)


def _has_candidate(choice: PolicyChoice) -> bool:
    return any(verdict.policy.candidate for verdict in choice.verdicts)


def _placed(resource: str, choice: PolicyChoice) -> Iterator[tuple[Scope, EffectiveLimit]]:
    for scope, limits in (*_resource_scopes(resource, choice), *_total_scopes(choice)):
        for effective in limits:
            yield scope, effective


def _priced_units(
    choices: Sequence[PolicyChoice], prices: PriceList, time_us: int, members: PoolMembers | None = None
) -> PricedUnits:
    """The units of the resource that are counted and charged, for the entity of the first choice."""
    own = [effective.limit for effective in choices[0].limits if not effective.shared]
    others: list[AnyLimit] = [effective.limit for choice in choices for effective in (*choice.limits, *choice.totals)]
    if members is not None:
        others += [limit for some in members.scoped.values() for scoped in some for limit in scoped.schema.limits]
    if members is None:
        return PricedUnits.of(prices, time_us, own=own, others=others)
    return PricedUnits.of(prices, time_us, own=own, others=others, members=members.scoped, pool=members.name)


def _limit_money(choices: Sequence[PolicyChoice]) -> bool:
    return any(counts_money(effective.limit) for choice in choices for effective in (*choice.limits, *choice.totals))


def scopes_of(
    resource: str,
    choices: Sequence[PolicyChoice],
    store: Store,
    *,
    counts_usage: bool = True,
    units: PricedUnits = NO_UNITS,
) -> list[ScopedLimits]:
    """Return the scopes of all choices, totals last. One that an entity and its parent share is the entity's.

    The `units` that have prices are counted in the scopes of the entity and of those above it, on the resource.

    Totals do not count usage, which the limits of each resource count: those of an entity count it for its plan,
    and say where they count what entities below it use.
    """
    not_counting = schemas_of(store, counts_usage=False)
    scoped: dict[str, ScopedLimits] = {}
    of_resource: list[tuple[str, Scope, Sequence[EffectiveLimit]]] = []
    counting_keys: set[str] = set()
    for ancestors, choice in enumerate(choices):
        plan, scopes = BELOW + choice.plan if ancestors else choice.plan, [*_resource_scopes(resource, choice)]
        if units.units:
            own = scope_of(resource, choice.entity)
            counting_keys.add(own.key)
            if own not in [scope for scope, _ in scopes]:
                scopes.insert(0, (own, ()))
        of_resource += [(plan, *pair) for pair in scopes]
    of_all = [("", *pair) for choice in choices for pair in _total_scopes(choice)]
    for plan, scope, limits in (*of_resource, *of_all):
        if scope.key not in scoped:
            levels = tuple([effective.policy.level for effective in limits])
            level = min(levels, key=PRECEDENCE.index, default=PRICE_LEVEL)
            counting = schemas_of(store, counts_usage=counts_usage, plan="" if scope.shared else plan)
            schema_for = not_counting if scope.total else counting
            slice_seconds = [effective.policy.slice_seconds if store.remote else 0 for effective in limits]
            sliced_limits, slice_us = sliced(
                [*zip([effective.limit for effective in limits], slice_seconds, strict=True)]
            )
            counted = units.beside(sliced_limits) if scope.key in counting_keys else ()
            scoped[scope.key] = ScopedLimits(
                scope,
                schema_for((*sliced_limits, *counted)),
                level,
                levels=(*levels, *([PRICE_LEVEL] * len(counted))),
                lasting=level in _OF_AN_ENTITY,
                slice_us=slice_us,
                prices=units.prices,
            )
    return list(scoped.values())


def _resource_scopes(resource: str, choice: PolicyChoice) -> Iterator[tuple[Scope, Sequence[EffectiveLimit]]]:
    own = [effective for effective in choice.limits if not effective.shared]
    if own:
        yield scope_of(resource, choice.entity), own
    for effective in choice.limits:
        if effective.shared:
            yield shared_scope(resource, effective.limit.key), [effective]


def _total_scopes(choice: PolicyChoice) -> Iterator[tuple[Scope, Sequence[EffectiveLimit]]]:
    for of_system in (False, True):
        own = [
            effective
            for effective in choice.totals
            if not effective.shared and (effective.policy.level == PolicyScope.SYSTEM_TOTAL) is of_system
        ]
        if own:
            yield total_scope(choice.entity, of_system=of_system), own
    for effective in choice.totals:
        if effective.shared:
            yield shared_total_scope(effective.limit.key), [effective]


def _ceiling(scoped: tuple[ScopedLimits, ...], key: str) -> Amount:
    return min(limit.ceiling for scope_limits in scoped for limit in scope_limits.schema.limits if limit.key == key)

"""Resolving: reading the policies of an entity on a resource in one query, and compiling them.

For lists, the policies of many entities on many resources are read together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from time import time
from typing import Final, NamedTuple, cast

from limits_app import conf
from limits_app.acquiring import Store
from limits_app.engine import (
    EPOCH,
    MICROSECOND,
    PriceList,
    ScopedLimits,
    check_entity,
    check_resource,
    checked_limits,
    shown,
)
from limits_app.engine.errors import InvalidLimit, UnknownPool
from limits_app.engine.limits import Blocked, LimitDefinition
from limits_app.models import (
    CodeLimits,
    Emergency,
    Enforcement,
    Entity,
    PolicyEffect,
    Resource,
    code_limits,
    emergency,
    write_alias,
)
from limits_app.models.fields import aware
from limits_app.models.plan import MAX_PLAN_LENGTH
from limits_app.policies.access_by_policies import without_blocks
from limits_app.policies.chain import PolicyChain, Subject
from limits_app.policies.policy_values import EntityPolicies, PolicyValue
from limits_app.policies.pools import PoolMembers, pool_cache
from limits_app.policies.precedence import (
    CODE,
    PolicyChoice,
    PolicyStatus,
    changes_at,
    is_evaluated,
    judge,
    lifted,
    with_candidates,
    without_others,
)
from limits_app.policies.prices import PriceLists, price_lists, stored_prices
from limits_app.policies.query import policies_for, policies_of_each
from limits_app.policies.resolved_set import Resolution, ResolvedSet, compiled, scopes_of
from limits_app.policies.stores import StoreVersions, VersionedStore

DefaultLimits = tuple[LimitDefinition, ...]

Pair = tuple[Resource | None, Entity | None]
"""A resource (None: all resources), and an entity (None: the site itself)."""


class PairChoice(NamedTuple):
    """The policies that are chosen for a pair, and the alias of the store of the resource (None: the default one)."""

    choice: PolicyChoice
    store: str | None


BATCH: Final = 100
"""Number of pairs per query: databases limit the number of parameters, and an address is in many networks."""

_BLOCKED: Final = (Blocked(),)
_DISABLED: Final = Emergency(Enforcement.OFF, 'LIMITS["ENABLED"] is False')


class PolicySource:
    """The functions that read policies: those of the database, or those of `limits_app.testing`.

    `read` takes a subject, the alias of a database and a time; `code_limits` takes resources.
    """

    def __init__(self) -> None:
        self.read: Callable[[Subject, str, datetime], PolicyChain] = policies_for
        self.code_limits: Callable[..., Sequence[CodeLimits]] = code_limits

    @property
    def is_database(self) -> bool:
        """Whether policies are those of the database, so that clients without rows have the same ones."""
        return self.read is policies_for


policy_source: Final = PolicySource()


def latest_code_limits(resource: str) -> DefaultLimits:
    """Return the limits that code used last on a resource; none where it has set none."""
    return latest_code_limits_of_each([resource])[resource]


def latest_code_limits_of_each(resources: Collection[str]) -> dict[str, DefaultLimits]:
    """`latest_code_limits` of several resources, in one query."""
    latest: dict[str, CodeLimits] = {}
    for row in policy_source.code_limits(*resources):
        latest.setdefault(row.resource, row)
    return {name: latest[name].definitions if name in latest else () for name in resources}


def resolve(
    resource: str,
    entity: str | None,
    default_limits: Sequence[LimitDefinition] | str = (),
    plan: str | None = None,
    *,
    store: Store | None = None,
    now: float | None = None,
    lifts_blocks: bool = False,
) -> Resolution:
    """Read the policies that apply `now` (seconds of the system's clock) in one query, and compile them.

    `plan` is the name of the plan of the request, which applies to an entity without one; an unknown one is ignored.
    They are compiled for the store of the resource, for UNAVAILABLE while that is down, or for `store`. With
    `lifts_blocks`, policies that block clients over all resources are left out.
    Raises InvalidLimit for an invalid resource, entity or default limit.
    """
    check_names(resource, entity)
    check_plan(plan)
    default_limits = checked_defaults(default_limits)
    at = datetime.fromtimestamp(time() if now is None else now, UTC)
    reading = read_policies(Subject(resource, entity, plan), at, StoreVersions(store))
    return resolution_of(reading, resource, default_limits, at, lifts_blocks=lifts_blocks)


class Reading(NamedTuple):
    """The policies that may apply to an entity on a resource, the members of its pool, its store, and its prices."""

    chain: PolicyChain
    members: PoolMembers | None
    store_version: VersionedStore
    prices: PriceList


def resolution_of(
    reading: Reading, resource: str, default_limits: DefaultLimits, at: datetime, *, lifts_blocks: bool = False
) -> Resolution:
    """Judge policies that were read, and compile those that apply at a time."""
    chain, members, store_version, prices = reading
    entity = chain.links[0].entity
    time_us = (at - EPOCH) // MICROSECOND
    cooling_us = 0 if chain.cooling is None else chain.cooling.left_us(time_us)
    links = [without_others(link, at) for link in chain.links]
    if lifts_blocks:
        links = [without_blocks(link) for link in links]
    links[0] = _with_code_limits(links[0], default_limits)
    switch = emergency_of(chain)
    is_lifted = switch.mode != Enforcement.ENFORCE
    choices, shadows = _chosen(links, at, switch.mode)
    dates = [date for date in (switch.until, *(changes_at(link, at) for link in links)) if date is not None]
    if cooling_us:
        dates.append(at + timedelta(microseconds=cooling_us))
    next_price_us = prices.changes_at(time_us)
    if next_price_us is not None:
        dates.append(EPOCH + next_price_us * MICROSECOND)
    resolved = compiled(
        resource,
        choices,
        shadows,
        store_version=store_version,
        members=members.without_limits() if members is not None and is_lifted else members,
        changes_at=min(dates).timestamp() if dates else None,
        is_lifted=is_lifted,
        cooling_us=cooling_us,
        prices=prices,
        time_us=time_us,
        priority=chain.priority,
    )
    return Resolution(resource, entity, choices, shadows, resolved, chain.known, switch, chain.priority)


def resolve_pool(
    pool: str, alias: str | None = None, *, seen: Mapping[str, int] | None = None, generation: int | None = None
) -> ResolvedSet:
    """Read a pool, and compile it for the store of an alias, without the limits of any resource.

    `seen` are versions as in `StoreVersions`, and `generation` is that of `PoolCache`.
    Raises UnknownPool for an unknown name, and InvalidLimit for an invalid one.
    """
    check_resource(pool)
    store_version = StoreVersions(seen=seen).of(alias)
    members = pool_cache.members(pool, write_alias(), store_version.store, generation)
    switch = switch_in_force(datetime.now(UTC))
    is_lifted = switch.mode != Enforcement.ENFORCE
    members = members.without_limits() if is_lifted else members
    until = None if switch.until is None else switch.until.timestamp()
    return ResolvedSet.of(
        (), store_version, members, resource=pool, identity=(pool,), changes_at=until, accepts_all=is_lifted
    )


def switch_in_force(now: datetime) -> Emergency:
    """The emergency switch at a time; off where `LIMITS["ENABLED"]` is False."""
    return emergency(write_alias(), now) if conf.get(conf.ENABLED) else _DISABLED


def emergency_of(chain: PolicyChain) -> Emergency:
    """The emergency switch as it was read with policies, without its reason; off where `LIMITS["ENABLED"]` is False."""
    return chain.emergency if conf.get(conf.ENABLED) else _DISABLED


def check_names(resource: object, entity: object) -> None:
    """Raise InvalidLimit for an invalid resource or entity."""
    check_resource(resource)
    if entity is not None:
        check_entity(entity)


def check_plan(plan: object) -> None:
    """Raise InvalidLimit for a plan of a request that cannot be the name of one."""
    if plan is not None and not (isinstance(plan, str) and len(plan) <= MAX_PLAN_LENGTH):
        most = f"of at most {MAX_PLAN_LENGTH} characters"
        raise InvalidLimit(f"plan must be the name of a plan, {most}, or None, not {shown(plan)}")


def checked_defaults(limits: Iterable[object]) -> DefaultLimits:
    """The `default_limits` of a call as a tuple; raises InvalidLimit for an invalid one.

    A rate of 0 in an integration is a `Blocked` limit, which callers cannot pass otherwise.
    """
    if limits in ((), _BLOCKED):
        return cast("DefaultLimits", limits)
    return checked_limits(limits, "default_limits=[limit]")


def read_policies(
    subject: Subject,
    at: datetime,
    versions: StoreVersions,
    generation: int | None = None,
    *,
    chain: PolicyChain | None = None,
    prices: PriceList | None = None,
) -> Reading:
    """Read the policies of all entities that are charged, the members of the pool of the resource, and the store.

    `generation` is that of `PoolCache`. `chain` and `prices` are what has just been read.
    """
    missing = None
    while True:
        chain = chain or policy_source.read(subject, write_alias(), at)
        try:
            return _reading(chain, subject.resource or "", versions, generation=generation, prices=prices)
        except UnknownPool:
            if chain.pool == missing:
                raise
            missing, chain, prices = chain.pool, None, None  # it may have been renamed between the two queries


def _reading(
    chain: PolicyChain, resource: str, versions: StoreVersions, *, generation: int | None, prices: PriceList | None
) -> Reading:
    store_version, members = versions.of(chain.store), None
    if chain.pool is not None:
        members = pool_cache.members(chain.pool, write_alias(), store_version.store, generation)
    if prices is None:
        prices = stored_prices(resource, chain.pool) if chain.has_prices else PriceList()
    return Reading(chain, members, store_version, prices)


def _chosen(
    links: Sequence[EntityPolicies], now: datetime, mode: Enforcement
) -> tuple[tuple[PolicyChoice, ...], tuple[PolicyChoice, ...]]:
    """The choices of all links, and those that are evaluated in shadow mode, under a mode of the emergency switch."""
    choices = tuple(judge(link, now) for link in links)
    match mode:
        case Enforcement.OFF:
            return tuple(lifted(choice, PolicyStatus.OFF) for choice in choices), ()
        case Enforcement.SHADOW:
            return tuple(lifted(choice, PolicyStatus.SHADOW) for choice in choices), choices
    evaluated = [link for link, choice in zip(links, choices, strict=True) if is_evaluated(choice)]
    return choices, tuple(judge(with_candidates(link), now, shadow=True) for link in evaluated)


def choose_each(
    pairs: Collection[Pair],
    now: datetime,
    plan: str | None = None,
    *,
    of_code: Mapping[str, DefaultLimits] | None = None,
) -> list[PairChoice]:
    """Choose the policies of each pair, in their order, without those of the entities above it.

    `plan` is as in `resolve`, and `of_code` are the limits that code sets, by resource.
    """
    check_plan(plan)
    now, code_limits_of = aware(now), of_code or {}
    subjects = [Subject(_name_of(resource), _name_of(entity), plan) for resource, entity in pairs]
    choices = []
    for chain, subject in zip(_chains(subjects, now), subjects, strict=True):
        link = _with_code_limits(chain.links[0], code_limits_of.get(subject.resource or "", ()))
        choices.append(PairChoice(judge(link, now), chain.store))
    return choices


def resolve_each(
    resources: Sequence[str], entity: str | None, of_code: Mapping[str, DefaultLimits], *, now: float
) -> tuple[list[Resolution], PolicyChain, PriceLists]:
    """`resolve` for an entity on each of several resources, its policies over all resources, and the prices.

    All policies are read in one query for 100 resources, and all prices in one.
    `of_code` are the limits that code sets, by resource.
    """
    for resource in resources:
        check_names(resource, entity)
    at, versions = datetime.fromtimestamp(now, UTC), StoreVersions()
    subjects = [Subject(resource, entity) for resource in resources]
    *chains, over_all = _chains([*subjects, Subject(None, entity)], at)
    places = [(resource, chain.pool) for resource, chain in zip(resources, chains, strict=True) if chain.has_prices]
    resolutions, prices = list[Resolution](), price_lists(places) if places else PriceLists()
    for subject, chain, resource in zip(subjects, chains, resources, strict=True):
        of_resource = prices.get((resource, chain.pool))
        reading = read_policies(subject, at, versions, chain=chain, prices=of_resource)
        resolutions.append(resolution_of(reading, resource, of_code.get(resource, ()), at))
    return resolutions, over_all, prices


def _chains(subjects: Sequence[Subject], now: datetime) -> Iterator[PolicyChain]:
    """The policies of each subject, in their order."""
    waiting = iter(subjects)
    while some := list(islice(waiting, BATCH)):
        yield from policies_of_each(some, write_alias(), now)


def _with_code_limits(link: EntityPolicies, limits: DefaultLimits) -> EntityPolicies:
    """The policies of an entity, followed by the limits that code sets."""
    if not limits:
        return link
    return replace(link, policies=(*link.policies, PolicyValue(CODE, PolicyEffect.LIMITS, limits, None)))


def chain_in_code(entity: str | None, effect: PolicyEffect | None = None, limits: DefaultLimits = ()) -> PolicyChain:
    """What code sets for an entity in place of all policies; without an effect, nothing applies to it."""
    policies = () if effect is None else (PolicyValue(CODE, effect, limits, None),)
    return PolicyChain([EntityPolicies(entity, policies)], None)


def _name_of(row: Resource | Entity | None) -> str | None:
    return None if row is None else str(row)


def resource_scopes(resource: str, choice: PolicyChoice, store: Store) -> list[ScopedLimits]:
    """The limits of a choice on a resource, each in the scope in which a store keeps its state; totals are left out."""
    return [scoped for scoped in scopes_of(resource, [choice], store) if not scoped.scope.total]


def total_scopes(entity: str | None, store: Store, now: datetime, plan: str | None = None) -> list[ScopedLimits]:
    """The totals of an entity over all resources, each in the scope in which a store keeps its state.

    Those of None are the totals of the site itself, and those that all entities share. `plan` is the plan of a
    request, which applies to an entity without one.
    """
    check_plan(plan)
    choice = judge(policies_of_each([Subject(None, entity, plan)], write_alias(), now)[0].links[0], now)
    return [scoped for scoped in scopes_of("", [choice], store) if scoped.scope.total]

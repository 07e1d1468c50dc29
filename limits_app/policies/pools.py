"""Pools: the members that serve a resource, and their limits."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from time import monotonic
from typing import Final, NamedTuple, Self, TypedDict, Unpack

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from limits_app import conf
from limits_app.acquiring import Acquisition, LimitPool, LimitSet, Store, Timeout, on_fork
from limits_app.engine import Namespace, Prices, Requested, Scope, ScopedLimits, lasts, member_scope
from limits_app.engine.errors import UnknownPool
from limits_app.engine.limits import AnyLimit, Blocked
from limits_app.engine.locks import RLock
from limits_app.engine.outcome import Outcome, Stats
from limits_app.models import changes
from limits_app.models.namespaces import current_keys
from limits_app.models.pool import MemberDefinition, PoolDefinition, pool_definition
from limits_app.models.validators import MEMBER_KEY, is_secret_reference
from limits_app.policies.balancing import balancers
from limits_app.policies.stores import schemas_of

MEMBER_LEVEL: Final = "pool_member"
"""The level of the limits of a pool's member."""

_MOST_POOLS: Final = 1024
_REJECTING: Final = MemberDefinition("")
"""The only member of a pool without enabled members; it rejects every request."""

Scopes = tuple[ScopedLimits, ...]


@dataclass(frozen=True, slots=True)
class PoolMembers:
    """The enabled members of a pool, and the limits of each by its name.

    `prices` are those of each member, by its name, for each resource that has any, by the prefix of its keys: limits in
    money of requests for it are charged at the prices of the member that serves.
    """

    definition: PoolDefinition
    scoped: Mapping[str, Scopes]
    is_unlimited: bool = False
    """Whether the limits of the members do not apply, by the emergency switch or the settings."""
    prices: Mapping[str, Mapping[str, Prices]] = field(default_factory=dict)

    @classmethod
    def of(cls, definition: PoolDefinition, store: Store) -> PoolMembers:
        """Compile the members of a pool for a store."""
        schema_of = schemas_of(store)
        scoped: dict[str, Scopes] = {}
        for member in definition.enabled:
            scope = member_scope(definition.name, member.name)
            limits = member.limits
            scoped[member.name] = (ScopedLimits(scope, schema_of(limits), MEMBER_LEVEL),) if limits else ()
        if not scoped:
            scope = member_scope(definition.name, "")._replace(member=None)
            scoped[""] = (ScopedLimits(scope, schema_of((Blocked(),)), MEMBER_LEVEL),)
        return cls(definition, scoped)

    @property
    def name(self) -> str:
        """The name of the pool."""
        return self.definition.name

    @property
    def configs(self) -> Mapping[str, Mapping[str, object]]:
        """The configuration of each member with its name; secrets are references."""
        return {member.name: {**member.config, MEMBER_KEY: member.name} for member in self._served_by}

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of each member."""
        return tuple([member.weight for member in self._served_by])

    @property
    def _served_by(self) -> Sequence[MemberDefinition]:
        return self.definition.enabled or (_REJECTING,)

    def without_limits(self) -> PoolMembers:
        """The same members without limits; a pool without enabled members still rejects."""
        scoped = {name: () if name else some for name, some in self.scoped.items()}
        return replace(self, scoped=scoped, is_unlimited=True)

    def served(self, own: Scopes, name: str) -> Scopes:
        """The `own` limits of a request that a member serves, and those of the member, with its prices."""
        scopes = (*own, *self.scoped[name])
        return tuple([self._at_prices(scoped, name) for scoped in scopes]) if self.prices else scopes

    def _at_prices(self, scoped: ScopedLimits, name: str) -> ScopedLimits:
        first, *more = [
            self.prices[prefix][name] if prefix in self.prices else before
            for prefix, before in zip(
                (scoped.prefix, *scoped.more_prefixes), (scoped.prices or (), *scoped.more_prices), strict=True
            )
        ]
        return replace(scoped, prices=first, more_prices=tuple(more), member=name)

    def changed(self, change: Callable[[ScopedLimits], ScopedLimits]) -> PoolMembers:
        """The same members, with each scope replaced by the result of `change`."""
        return replace(self, scoped={name: tuple(map(change, some)) for name, some in self.scoped.items()})


class _CachedPool(NamedTuple):
    members: PoolMembers
    generation: int
    kept_at: float
    seconds: float

    def is_current(self, generation: int | None) -> bool:
        """Whether it is of a generation of the configuration, and was read recently."""
        return self.generation == generation and lasts(self.kept_at, self.seconds, monotonic())


_PoolKey = tuple[Namespace, str, Store]


class PoolCache:
    """Compiled pools that all resources share, at most `most` of them, each for RESOLVER_TTL_SECONDS."""

    def __init__(self, most: int = _MOST_POOLS) -> None:
        self._most = most
        self._cached: dict[_PoolKey, _CachedPool] = {}
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Make a new lock in a child process, which keeps the pools."""
        self._lock = RLock()  # reentrant, because a finalizer may resolve limits while this thread holds the lock

    def members(self, pool: str, using: str, store: Store, generation: int | None = None) -> PoolMembers:
        """Return the members of a pool, compiled for a store; UnknownPool for an unknown name.

        `generation` is that of the configuration, read before anything that depends on it; None reads the pool again.
        A result is not cached while a transaction of this thread has uncommitted changes of the configuration, or reads
        an older snapshot.
        """
        key = current_keys(), pool, store
        cached = self._cached.get(key)
        if cached is not None and cached.is_current(generation) and not changes.pending(using):
            return cached.members
        definition = pool_definition(pool, using)
        if definition is None:
            raise UnknownPool(f"the pool {pool!r} does not exist: create it in the admin or with manage.py limits pool")
        members = PoolMembers.of(definition, store)
        if generation is not None and changes.may_be_kept(using):
            self._add(key, _CachedPool(members, generation, monotonic(), conf.get(conf.RESOLVER_TTL_SECONDS)))
        return members

    def clear(self) -> None:
        """Forget all pools."""
        self._cached.clear()

    def _add(self, key: _PoolKey, entry: _CachedPool) -> None:
        with self._lock:
            self._cached.pop(key, None)
            self._cached[key] = entry
            for oldest in list(islice(self._cached, max(len(self._cached) - self._most, 0))):
                del self._cached[oldest]


pool_cache: Final = PoolCache()


class SetNames(TypedDict, total=False):
    """What `LimitSet.composed` needs to know of a resolved set."""

    resource: str | None
    identity: Hashable
    changes_at: float | None
    namespace: str | None


class MemberSet(LimitSet):
    """The limits of a request that one member serves: those of the resource, and those of the member.

    `config` is that of the member with its name, and with the secrets that it refers to.
    """

    @property
    def config(self) -> dict[str, object]:
        """A copy of the configuration; ImproperlyConfigured for a secret that is not set."""
        return with_secrets(self._config, f"member {self.member!r} of the pool")

    @property
    def member(self) -> str:
        """The name of the member."""
        return str(self._config[MEMBER_KEY])


class PooledSet(LimitSet):
    """The limits of a resource, and a pool of which one member serves each request, charged in the same step.

    `keys` are all keys that a request may name. Iteration, and `rates`, give the limits that every member has.
    """

    members: PoolMembers
    pool: LimitPool
    own_number: int
    _common: frozenset[str]

    @classmethod
    def of(
        cls,
        own: Iterable[ScopedLimits],
        members: PoolMembers,
        store: Store,
        *,
        version: int | None,
        **names: Unpack[SetNames],
    ) -> PooledSet:
        """Compile the limits of a resource for each member of its pool."""
        scopes = tuple(own)
        member_names = list(members.scoped)
        of_members = dict.fromkeys([of_member for some in members.scoped.values() for of_member in some])
        pooled = cls.composed((*scopes, *of_members), store, version=version, **names)
        pooled.members, pooled.own_number = members, len(scopes)
        keys = {name: _keys(some) for name, some in members.scoped.items()}
        of_any_member = frozenset.union(*keys.values())
        pooled._common = frozenset.intersection(*keys.values()) | (_keys(scopes) - of_any_member)
        pooled.ones = {key: amount for key, amount in (pooled.ones or {}).items() if key in pooled._common} or None
        sets = []
        for name, config in members.configs.items():
            member_set = MemberSet.composed(
                members.served(scopes, name), store, config=config, version=version, **names
            )
            member_set.accepts_all = members.is_unlimited
            # Rates that only other members have need not be requested of this one, even where the resource has them.
            only_others = of_any_member - keys[name]
            member_set.ones = {
                key: amount for key, amount in (member_set.ones or {}).items() if key not in only_others
            } or None
            sets.append(member_set)
        balancer = balancers.find(members.name, members.definition.load_balancing, members.weights)
        pooled.pool = LimitPool.at(balancer, sets, member_names, failover=members.definition.failover)
        return pooled

    def bound(self, scopes: Sequence[Scope], *, version: int | None, identity: Hashable = None) -> Self:
        """See `LimitSet.bound`; the scopes of the members are the same for all clients."""
        bound = super().bound(scopes, version=version, identity=identity)
        bound.members, bound.own_number, bound._common = self.members, self.own_number, self._common
        own, sets = tuple(scopes[: self.own_number]), []
        for member_set in self.pool:
            of_member = member_set.scopes if scopes is self.scopes else (*own, *member_set.scopes[self.own_number :])
            sets.append(member_set.bound(of_member, version=version, identity=identity))
        bound.pool = self.pool.bound(sets)
        return bound

    @property
    def own(self) -> Scopes:
        """The limits of the resource, without those of the members."""
        return self.scoped[: self.own_number]

    def __reduce__(self) -> tuple[object, ...]:
        make = partial(PooledSet.of, version=self.version, namespace=self.namespace)
        return make, (self.own, self.members, self.store)

    def __iter__(self) -> Iterator[AnyLimit]:
        return iter([self[key] for key in self.keys if key in self._common])

    def try_acquire(self, requested: Requested = None, *, priority: str | None = None) -> Acquisition:
        """See `LimitPool.try_acquire`."""
        return self.pool.try_acquire(requested, priority=priority)

    def acquire(
        self, requested: Requested = None, timeout: Timeout = None, *, priority: str | None = None
    ) -> Acquisition:
        """See `LimitPool.acquire`."""
        return self.pool.acquire(requested, timeout, priority=priority)

    async def atry_acquire(self, requested: Requested = None, *, priority: str | None = None) -> Acquisition:
        """See `LimitPool.atry_acquire`."""
        return await self.pool.atry_acquire(requested, priority=priority)

    async def aacquire(
        self, requested: Requested = None, timeout: Timeout = None, *, priority: str | None = None
    ) -> Acquisition:
        """See `LimitPool.aacquire`."""
        return await self.pool.aacquire(requested, timeout, priority=priority)

    def peek(self, requested: Requested = None, *, priority: str | None = None) -> Outcome:
        """See `LimitPool.peek`."""
        return self.pool.peek(requested, priority=priority)

    def get_stats(self) -> dict[str, Stats]:
        """The live state of the limits of the resource, by key, without those of the members."""
        return self._part(self.own).get_stats()

    def member_stats(self) -> dict[str, dict[str, Stats]]:
        """The live state of the limits of each member, by its name."""
        return {name: self._part(some).get_stats() for name, some in self.members.scoped.items()}

    def _part(self, scoped: Scopes) -> LimitSet:
        return LimitSet.composed(scoped, self.store, version=self.version, namespace=self.namespace)


def with_secrets(config: Mapping[str, object], owner: str) -> dict[str, object]:
    """A copy of a configuration with the values of the environment variables and settings that it refers to.

    Raises ImproperlyConfigured, with the `owner` in its message, for one that is not set.
    """
    return {key: _with_secrets(value, f"{owner} needs for {key!r}") for key, value in config.items()}


def _with_secrets(value: object, need: str) -> object:
    if isinstance(value, list):
        return [_with_secrets(item, need) for item in value]
    if not isinstance(value, Mapping):
        return value
    if not is_secret_reference(value):
        return {key: _with_secrets(item, need) for key, item in value.items()}
    [(kind, name)] = value.items()
    if kind == "env":
        if name not in os.environ:
            raise ImproperlyConfigured(f"{need} the environment variable {name}, which is not set")
        return os.environ[name]
    if not hasattr(settings, name):
        raise ImproperlyConfigured(f"{need} the setting {name}, which is not set")
    return getattr(settings, name)


def _keys(scoped: Iterable[ScopedLimits]) -> frozenset[str]:
    return frozenset([scope_limits.keys_of(rule)[0] for scope_limits in scoped for rule in scope_limits.schema.rules])

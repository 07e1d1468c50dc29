"""Pooled sets: limits of a resource's own, and a pool of which one member serves each request."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount, Requested
from limits_app.core.limit_pool import LimitPool
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import AnyLimit
from limits_app.core.outcome import Outcome, Stats
from limits_app.core.plan import ScopedLimits
from limits_app.core.store import Store
from limits_app.models.validators import MEMBER_KEY
from limits_app.resolver.resolved import ResolvedSet
from limits_app.resolver.secrets import looked_up
from limits_app.resolver.supply import Supplying

__all__ = ["MemberSet", "PooledSet"]

Scopes = tuple[ScopedLimits, ...]


class MemberSet(ResolvedSet):
    """What a request is charged that one member serves: the limits of the resource's own, and those of the member.

    Its `config` is that of the member, with the member's name and the secrets that it refers to.
    """

    @property
    def config(self) -> dict[str, object]:
        """A copy of the configuration; ImproperlyConfigured where a secret is missing that it refers to."""
        return looked_up(self._config, f"member {self._config.get(MEMBER_KEY, 'that serves')!r} of the pool")

    def serve(self, others: frozenset[str]) -> None:
        """Leave the rates that only other members have to them, also where the resource itself limits them."""
        self.ones = dict.fromkeys([key for key in self.rates if key not in others], 1) or None


class PooledSet(ResolvedSet):
    """Limits of a resource's own, and a pool of which one member serves each request, charged in the same step.

    Its keys are all that a request may name. What it iterates over, and its `rates`, are the limits that a request
    meets whoever serves it.
    """

    supply: Supplying
    pool: LimitPool
    _own: Scopes
    _members: Mapping[Hashable, MemberSet]
    _common: frozenset[str]

    @classmethod
    def serving(cls, own: Iterable[ScopedLimits], supply: Supplying, store: Store, *, version: int | None) -> PooledSet:
        """Compile the limits of a resource's own for each member of what supplies it."""
        scopes = tuple(own)
        scoped, configs = supply.scoped, supply.configs
        of_members = dict.fromkeys([one for some in scoped.values() for one in some])
        pooled = cls.composed((*scopes, *of_members), store, version=version)
        pooled.supply, pooled._own = supply, scopes
        keys = {name: _keys(some) for name, some in scoped.items()}
        all_have = frozenset.intersection(*keys.values())
        some_have = frozenset.union(*keys.values())
        pooled._common = all_have | (_keys(scopes) - some_have)
        pooled.ones = dict.fromkeys([key for key in pooled.rates if key in pooled._common], 1) or None
        members: dict[Hashable, MemberSet] = {}
        for name, some in scoped.items():
            members[name] = MemberSet.composed((*scopes, *some), store, config=configs[name], version=version)
            members[name].serve(some_have - keys[name])
        pooled._members = members
        pooled.pool = LimitPool.at(supply.desk, members.values(), members, failover=supply.failover)
        return pooled

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (self._own, self.supply, self.store, self.version)

    def __iter__(self) -> Iterator[AnyLimit]:
        return iter([self[key] for key in self.keys if key in self._common])

    @property
    def own(self) -> Scopes:
        """Its scopes, without those of the members."""
        return self._own

    def try_out(self, shadow: LimitSet) -> None:
        """See `ResolvedSet.try_out`."""
        super().try_out(shadow)
        for one in self._members.values():
            one.try_out(shadow)

    def changing_at(self, moment: float | None) -> None:
        """See `ResolvedSet.changing_at`."""
        super().changing_at(moment)
        for one in self._members.values():
            one.changing_at(moment)

    def resolved_for(self, of: object, alias: str | None) -> None:
        """See `ResolvedSet.resolved_for`."""
        super().resolved_for(of, alias)
        for one in self._members.values():
            one.resolved_for(of, alias)

    def changed(self, change: Callable[[ScopedLimits], ScopedLimits], store: Store) -> LimitSet:
        """See `ResolvedSet.changed`."""
        return self.serving(map(change, self._own), self.supply.changed(change), store, version=store.version())

    def ceiling(self, key: str) -> Amount:
        """See `ResolvedSet.ceiling`."""
        return max(one.ceiling(key) for one in self._members.values() if key in one.keys)

    def try_acquire(self, requested: Requested = None) -> Acquisition:
        """See `LimitPool.try_acquire`."""
        return self.pool.try_acquire(requested)

    def acquire(self, requested: Requested = None, timeout: float | None = None) -> Acquisition:
        """See `LimitPool.acquire`."""
        return self.pool.acquire(requested, timeout)

    async def atry_acquire(self, requested: Requested = None) -> Acquisition:
        """See `LimitPool.atry_acquire`."""
        return await self.pool.atry_acquire(requested)

    async def aacquire(self, requested: Requested = None, timeout: float | None = None) -> Acquisition:
        """See `LimitPool.aacquire`."""
        return await self.pool.aacquire(requested, timeout)

    def peek(self, requested: Requested = None) -> Outcome:
        """See `LimitPool.peek`."""
        return self.pool.peek(requested)

    def get_stats(self) -> dict[str, Stats]:
        """The live state of the limits of the resource's own, by key."""
        return LimitSet.composed(self._own, self.store, version=self.version).get_stats()

    def member_stats(self) -> dict[str, dict[str, Stats]]:
        """The live state of each member's own limits, by its name."""
        return {
            str(name): LimitSet.composed(some, self.store, version=self.version).get_stats()
            for name, some in self.supply.scoped.items()
        }


def _keys(scoped: Iterable[ScopedLimits]) -> frozenset[str]:
    return frozenset([one.prefix + rule.key for one in scoped for rule in one.schema.rules])


def _restored(own: Scopes, supply: Supplying, store: Store, version: int | None) -> PooledSet:
    return PooledSet.serving(own, supply, store, version=version)

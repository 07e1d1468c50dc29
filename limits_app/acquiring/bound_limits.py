"""Bound limits: the limits of a set, compiled, with the scopes of a client and their store; and claims for requests."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Self

from limits_app.acquiring.blocks import current_blocks, held_here
from limits_app.acquiring.store import Store
from limits_app.engine import (
    MOST_SHAPES,
    Claim,
    GivenAmount,
    PlanShape,
    RequestKeys,
    RequestPlan,
    Scope,
    ScopedLimits,
    Shapes,
    counts_money,
    digest_in,
    mypyc_attr,
    present,
    shown,
    stats_of,
)
from limits_app.engine.errors import InvalidRequest, StoreUnavailable
from limits_app.engine.limits import AnyLimit
from limits_app.engine.outcome import Stats


@mypyc_attr(allow_interpreted_subclasses=True)
class BoundLimits:
    """Limits that are acquired together, with the claims for requests of them; `LimitSet` has the verbs.

    `version` is the configuration that they come from, None for limits that never change. `changes_at` is the next time
    at which a date or an hour may change them, in seconds of the system's clock; None for never. `resource` names
    limits without scopes; others have the name in their scopes.
    """

    require_usage = True
    """Whether a block must report the usage of rates; if not, what was not reported counts as used as requested."""
    accepts_all = False
    """Whether requests may name any key, since nothing is limited."""

    def _compose(
        self,
        scoped: Iterable[ScopedLimits],
        store: Store,
        config: Mapping[str, object] | None,
        *,
        version: int | None = None,
        namespace: str | None = None,
    ) -> None:
        """Compile limits; both ways to make a set call it."""
        self.store = store
        self.namespace = present().namespace().configuration if namespace is None else namespace
        """That of the configuration, in which stores keep the version."""
        compiled = tuple(scoped)
        self._compiled = compiled
        self.scopes: tuple[Scope, ...] = tuple([scoped.scope for scoped in compiled])
        """The scopes of its limits."""
        self.version = version
        self.changes_at: float | None = None
        self.resource: str | None = None
        self.identity: Hashable = None
        self._config: dict[str, object] = {} if config is None else _copied_config(config)
        self._shapes = Shapes(compiled, self.skip_unknown)
        ones = {key: 0 if counts_money(self._shapes.limits[key]) else 1 for key in self._shapes.rates}
        self.ones: Mapping[str, GivenAmount] | None = ones or None
        """A request for 1 of every limit, not to be changed, and for no money; None where there are no rates."""
        self.no_money: Mapping[str, GivenAmount] = dict.fromkeys(self._shapes.unpriced_totals, 0)
        """A request for no money of the totals that have no price for the resource, not to be changed."""
        self._plans: dict[PlanShape | RequestKeys, RequestPlan] = {}
        """Plans by their shape, or by the keys of requests whose shape depends on nothing else."""

    def bound(self, scopes: Sequence[Scope], *, version: int | None, identity: Hashable = None) -> Self:
        """Return the same limits for another client; nothing is compiled.

        `scopes` take the places of those of this set, in their order; `EntityScopes` makes them. `version` is the
        configuration. Sets of one store with the same `identity` are one set to a nested acquire.
        """
        bound = self.__class__.__new__(self.__class__)
        bound.store, bound.version, bound.identity = self.store, version, identity
        bound.namespace = self.namespace
        bound.changes_at, bound.resource = self.changes_at, self.resource
        bound.require_usage, bound.accepts_all = self.require_usage, self.accepts_all
        bound._compiled, bound._shapes = self._compiled, self._shapes
        bound._config, bound.ones, bound.no_money = self._config, self.ones, self.no_money
        bound.scopes = tuple(scopes)
        if bound.scopes is self.scopes:
            bound._plans = self._plans
        elif len(scopes) == len(self.scopes):
            bound._plans = {}
        else:
            number = len(self.scopes)
            raise InvalidRequest(f"scopes must be one for each of the {number} scopes of the set, not {len(scopes)}")
        return bound

    def at_version(self, version: int) -> Self:
        """Return the same limits for another version of the configuration, which has left them as they are."""
        return self.bound(self.scopes, version=version, identity=self.identity)

    def is_outdated(self) -> bool:
        """Whether the store has another version of the configuration, which it is asked for.

        Limits without a version never are; nor are others as long as their store is unavailable.
        """
        try:
            return self.version not in {None, self.store.version(self.namespace)}
        except StoreUnavailable:
            return False

    @property
    def scoped(self) -> tuple[ScopedLimits, ...]:
        """Its limits, scope by scope."""
        placed = zip(self._compiled, self.scopes, strict=True)
        return tuple([scoped if scoped.scope is scope else replace(scoped, scope=scope) for scoped, scope in placed])

    def __getitem__(self, key: str) -> AnyLimit:
        try:
            limit = self._shapes.limits[key]
        except KeyError:
            keys = ", ".join(self._shapes.limits) or "none"
            raise KeyError(f"the set has no limit {shown(key)}, only: {keys}") from None
        return limit.of_set(partial(self._stats_of, key))

    def __iter__(self) -> Iterator[AnyLimit]:
        return iter(self._shapes.limits.values())

    def __contains__(self, limit: object) -> bool:
        """Whether a limit, or a limit with that key, is in the set."""
        limits = self._shapes.limits
        return limit in limits if isinstance(limit, str) else limit in limits.values()

    def __len__(self) -> int:
        return len(self._shapes.limits)

    @property
    def keys(self) -> list[str]:
        """The keys that a request may name."""
        return list(self._shapes.limits)

    @property
    def rates(self) -> list[str]:
        """The keys whose amounts a request must name."""
        return list(self.ones or ())

    @property
    def config(self) -> dict[str, object]:
        """A copy of the configuration with its dicts and lists; other objects in it are not copied."""
        return _copied_config(self._config)

    @property
    def nesting_key(self) -> Hashable:
        """Equal for sets whose permits need not be taken again from each other."""
        if self.identity is not None:
            return self.store, self.identity, frozenset([digest_in(scope.key) for scope in self.scopes])
        # Only copies of a set with private scopes have the same ones.
        is_private = all(scope.resource is None for scope in self.scopes)
        return (self.store, self.scopes) if is_private else id(self)

    def get_stats(self) -> dict[str, Stats]:
        """Return the live state by key, consistent over all keys; changes nothing. `stats_of` lists the fields."""
        claim = self.claim_of_nothing()
        self.store.peek(claim)
        return stats_of(claim)

    def _stats_of(self, key: str) -> Stats:
        return self.get_stats()[key]

    def claim_of_nothing(self) -> Claim:
        """Return a claim with all limits that requests 0 of each, to read their states."""
        shape = self._shapes.all()
        return Claim(self._plan(shape), [0] * len(shape.limits), self.version)

    def extension_plan(self, requested: Mapping[str, GivenAmount], priority: str | None = None) -> RequestPlan:
        """Return the plan of a request of a class for the named amounts alone; InvalidRequest for invalid keys."""
        return self._plan(self._shapes.extension(requested, priority))

    def whole_plan(self, requested: Mapping[str, GivenAmount]) -> RequestPlan:
        """Return the plan of a request, whatever the running thread or task holds."""
        return self._plan(self._shapes.find(requested, frozenset()))

    def _plan_of(self, keys: RequestKeys, requested: Mapping[str, GivenAmount]) -> RequestPlan:
        """Return the plan of a request; unnamed permits that the running thread or task holds are not taken again.

        `keys` are those of the request, None where it names none.
        """
        buckets = held_here(self) if current_blocks().by_number else frozenset()
        shape = None if buckets else self._shapes.by_keys.get(keys)
        if shape is not None:
            return self._plan(shape, keys)
        positions = enumerate(self.scopes)
        places = [(at, key) for at, scope in positions for scope_key, key in buckets if scope_key == scope.key]
        return self._plan(self._shapes.find(None if keys is None else requested, frozenset(places)))

    def _plan(self, shape: PlanShape, keys: RequestKeys = ()) -> RequestPlan:
        """Return a shape that is bound to the scopes of this set; it is bound once.

        `keys` are those of requests whose shape depends on nothing else.
        """
        kept_as = shape if keys == () else keys
        plan = self._plans.get(kept_as)
        if plan is None:
            if len(self._plans) >= MOST_SHAPES:
                self._plans.clear()
            scopes, positions = self.scopes, shape.positions
            if len(positions) < len(scopes):
                scopes = tuple([scopes[at] for at in positions])
            plan = self._plans[kept_as] = RequestPlan(shape, scopes, self.namespace)
        return plan

    def skip_unknown(self, key: object, *, reported: bool = False) -> None:
        """Warn once that a key is not one of the request's limits; InvalidRequest where the settings say so."""
        if not self.accepts_all:
            name = next((scope.resource for scope in self.scopes if scope.resource), self.resource)
            self._shapes.unknown_keys.report(key, name, reported=reported)

    def check_priced(self, requested: Mapping[str, object]) -> None:
        """Raise InvalidRequest where a limit in money would not be charged, since the resource has no price."""
        self._shapes.check_priced(requested)


def _copied_config(config: Mapping[str, object]) -> dict[str, object]:
    if not isinstance(config, Mapping):
        raise InvalidRequest(f"config must map names to values, as in config={{'region': 'eu'}}, not {shown(config)}")
    return {name: _copied(value) for name, value in config.items()}


def _copied(value: object) -> object:
    """Copy plain data; other objects, such as clients, may be impossible to copy."""
    if type(value) is dict:
        return {key: _copied(entry) for key, entry in value.items()}
    return [_copied(item) for item in value] if type(value) is list else value

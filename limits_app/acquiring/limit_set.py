"""The limit set: limits acquired together, all or nothing."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Self
from weakref import ref

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.alternatives import Alternatives
from limits_app.acquiring.blocking import Timeout, checked_timeout, must_wait, wait_in_task, wait_in_thread
from limits_app.acquiring.extension import cancel_all
from limits_app.acquiring.leases import held_here
from limits_app.acquiring.special_acquisitions import FreeAcquisition, TrackedAcquisition
from limits_app.acquiring.store import RemoteStore, Store, is_remote
from limits_app.engine import mypyc_attr
from limits_app.engine.amounts import Amount, check_amounts, shown
from limits_app.engine.errors import InvalidRequest, LimitTimeout, NeverAdmissible
from limits_app.engine.keys import Scope, digest_in, private_scope
from limits_app.engine.limits import AnyLimit, Limit
from limits_app.engine.modes import HOOKS, Mode, check_store, checked_mode, store_for
from limits_app.engine.notation import checked_limits
from limits_app.engine.outcome import Outcome, Stats, stats_of
from limits_app.engine.plan import MOST_SHAPES, Bucket, Claim, Plan, PlanShape, ScopedLimits
from limits_app.engine.planning import Shapes
from limits_app.engine.record import schema_of


@mypyc_attr(allow_interpreted_subclasses=True)
class LimitSet:
    """Limits that are acquired together: all are checked first, and charged only if all pass.

    `limits` are definitions, or text such as `"100/min tokens=1M/day"`.
    Thread safe. `shared=False` is private state and needs `mode="sync"`;
    with `shared=True` the mode says which users share: `sync`, `thread`, `asyncio` (one process), `process` (one
    machine) and more. With `require_usage=False`, a block need not report the usage of
    rates. `config` travels with every acquisition; `store` replaces the store that the mode would choose.
    `changes_at` is the next time at which a date or an hour may change the limits, in seconds of the system's clock;
    None for never. `resource` names a set without limits; other sets have the name in their scopes.
    Raises InvalidLimit (a ValueError) for repeated keys, ValueError for an invalid mode or store.
    """

    mode: Mode | None = None
    """The mode that chose the store; None for a given store."""
    require_usage = True
    """Whether a block must report the usage of rates; if not, what was not reported counts as used as requested."""
    is_private = False
    """Whether the set was made with `shared=False` and has a store of its own."""
    accepts_all = False
    """Whether requests may name any key, since nothing is limited."""

    def __init__(
        self,
        limits: Iterable[Limit | str] = (),
        *,
        shared: bool = False,
        mode: Mode | str = "sync",
        config: Mapping[str, object] | None = None,
        store: Store | None = None,
        require_usage: bool = True,
    ) -> None:
        checked = checked_mode(mode, shared=shared)
        if store is not None:
            check_store(store)
        chosen = store_for(checked) if store is None else store
        schema = schema_of(checked_limits(limits), chosen.lease_us)
        self._compose([ScopedLimits(private_scope(), schema)] if schema.rules else [], chosen, config, None)
        self.mode = checked if store is None else None
        self.is_private = store is None and not shared
        self.require_usage = require_usage

    @classmethod
    def composed(
        cls,
        scoped: Iterable[ScopedLimits],
        store: Store,
        *,
        config: Mapping[str, object] | None = None,
        version: int | None = None,
        resource: str | None = None,
        identity: Hashable = None,
        changes_at: float | None = None,
        namespace: str | None = None,
    ) -> Self:
        """Make a set of the limits of several scopes; `version` is the configuration that they come from.

        Stores compare the version with theirs. None is for limits that never change. `namespace` is that of the
        configuration, by default the present one.

        `changes_at` and `resource` are those of the class. Sets of one store with the same `identity` are one set to a
        nested acquire: permits of the one are not taken again from the other.
        """
        limit_set = cls.__new__(cls)
        limit_set._compose(scoped, store, config, version, namespace)
        limit_set.resource, limit_set.identity, limit_set.changes_at = resource, identity, changes_at
        return limit_set

    def _compose(  # noqa: PLR0917 - what the two ways to make a set have in common
        self,
        scoped: Iterable[ScopedLimits],
        store: Store,
        config: Mapping[str, object] | None,
        version: int | None,
        namespace: str | None = None,
    ) -> None:
        self.store = store
        self.namespace = HOOKS.namespace().configuration if namespace is None else namespace
        """That of the configuration, in which stores keep the version."""
        compiled = tuple(scoped)
        self._compiled = compiled
        self.scopes: tuple[Scope, ...] = tuple([one.scope for one in compiled])
        """The scopes of its limits."""
        self.version = version
        self.changes_at: float | None = None
        self.resource: str | None = None
        self.identity: Hashable = None
        self._config: dict[str, object] = {} if config is None else _copied_config(config)
        self._shapes = Shapes(compiled, self.skip_unknown)
        self.ones: Mapping[str, Amount] | None = dict.fromkeys(self._shapes.rates, 1) or None
        """A request for 1 of every limit, not to be changed; None where there are no rates."""
        # An extension may take permits that a later version of the configuration has added.
        self._tracks = version is not None or any(scope.schema.permits for scope in compiled)
        self._by_shape: dict[PlanShape, Plan] = {}
        self._by_keys: dict[tuple[str, ...] | None, Plan] = {}
        self._find_free()

    def _find_free(self) -> None:
        # Without limits, and without a configuration that may add some, the store is not called.
        is_free = not self.scopes and self.version is None
        self._free = FreeAcquisition(self, self._plan(self._shapes.all())) if is_free else None

    def bound(self, scopes: Sequence[Scope], *, version: int | None, identity: Hashable = None) -> Self:
        """Return a set with the same limits for another client; nothing is compiled.

        `scopes` take the places of those of this set, in their order; `EntityScopes` makes them. `version` and
        `identity` are those of `composed`.
        """
        bound = self.__class__.__new__(self.__class__)
        bound.store, bound.version, bound.identity = self.store, version, identity
        bound.namespace = self.namespace
        bound.changes_at, bound.resource = self.changes_at, self.resource
        bound.mode, bound.require_usage = self.mode, self.require_usage
        bound.is_private, bound.accepts_all = self.is_private, self.accepts_all
        bound._compiled, bound._shapes = self._compiled, self._shapes
        bound._config, bound.ones = self._config, self.ones
        bound._tracks = self._tracks or version is not None
        if scopes is self.scopes:
            bound.scopes, bound._by_shape, bound._by_keys = self.scopes, self._by_shape, self._by_keys
        else:
            bound.scopes, bound._by_shape, bound._by_keys = _checked_scopes(scopes, self.scopes), {}, {}
        bound._find_free()
        return bound

    def at_version(self, version: int) -> Self:
        """Return the same set for another version of the configuration, which has left its limits as they are."""
        return self.bound(self.scopes, version=version, identity=self.identity)

    @property
    def scoped(self) -> tuple[ScopedLimits, ...]:
        """Its limits, scope by scope."""
        placed = zip(self._compiled, self.scopes, strict=True)
        return tuple([one if one.scope is scope else replace(one, scope=scope) for one, scope in placed])

    def __reduce__(self) -> tuple[object, ...]:
        make = partial(LimitSet.composed, config=self._config, version=self.version, namespace=self.namespace)
        return make, (self.scoped, self.store), (None, {"require_usage": self.require_usage})

    def __getitem__(self, key: str) -> AnyLimit:
        try:
            return self._shapes.limits[key]
        except KeyError:
            known = ", ".join(self._shapes.limits) or "none"
            raise KeyError(f"the set has no limit {shown(key)}, only: {known}") from None

    def __iter__(self) -> Iterator[AnyLimit]:
        return iter(self._shapes.limits.values())

    def __contains__(self, limit: object) -> bool:
        """Whether a limit, or a limit with that key, is in the set."""
        limits = self._shapes.limits
        return limit in limits if isinstance(limit, str) else limit in limits.values()

    def __len__(self) -> int:
        return len(self._shapes.limits)

    def __repr__(self) -> str:
        return f"LimitSet({list(self)!r}, store={self.store!r})"

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

    def is_same(self, other: LimitSet) -> bool:
        """Return whether permits of this set need not be taken again from the other one."""
        if self.identity is not None:
            return (other.store, other.identity, other._counters) == (self.store, self.identity, self._counters)
        # Only copies of a set with private scopes have the same ones.
        is_private = all(scope.resource is None for scope in self.scopes)
        return other is self or (is_private and (other.store, other.scopes) == (self.store, self.scopes))

    @property
    def _counters(self) -> frozenset[bytes]:
        """The namespaces in which it is counted."""
        return frozenset([digest_in(scope.key) for scope in self.scopes])

    def try_acquire(self, requested: Mapping[str, Amount] | None = None) -> Acquisition:
        """Acquire now or not at all; a rejection is a falsy acquisition with the reasons in `outcome`.

        Without `requested`, 1 of every call and resource limit; that is an InvalidRequest where a rate limit is in the
        set. Otherwise the named amounts, and 1 of every call and resource limit that is not named;
        an explicit 0 leaves a resource limit out.
        Raises NeverAdmissible (a ValueError) for more than a limit can ever admit.
        """
        if self._free is not None:
            return self._acquire_free(self._free, requested)
        acquisition = self.prepare(requested)
        try:
            if self.store.acquire(acquisition.claim) and acquisition.claim.shape.permits:
                acquisition.track()
        except BaseException:  # for instance of a signal handler, after the store has admitted the request
            cancel_all([acquisition])
            raise
        return acquisition

    def acquire(self, requested: Mapping[str, Amount] | None = None, timeout: Timeout = None) -> Acquisition:
        """Acquire; by default this waits as long as it takes, unlike `limits.acquire`, which does not wait.

        `timeout` is the longest wait in seconds (0: no waiting).
        Waiters of this process for the same limit are served in the order of their arrival.
        A thread or task inside a block that holds an unnamed permit of this set does not take it again; name the key
        to take one, as in `acquire({"connections": 1})`.
        Raises LimitTimeout (a TimeoutError) with the outcome when the time is up, LimitExceeded immediately for a
        blocked scope, and the errors of `try_acquire`.
        """
        if self._free is not None:
            return self._acquire_free(self._free, requested, timeout)
        acquisition, seconds = self.prepare(requested), checked_timeout(timeout)
        may_try = seconds == 0 or not must_wait(acquisition)
        try:
            admitted = may_try and self.store.acquire(acquisition.claim)
            if not admitted and seconds != 0:
                wait_in_thread(Alternatives([acquisition]), seconds)
                admitted = True
            if admitted:
                acquisition.track()
        except BaseException:
            cancel_all([acquisition])
            raise
        if not admitted:
            raise LimitTimeout.of(acquisition)
        return acquisition

    async def atry_acquire(self, requested: Mapping[str, Amount] | None = None) -> Acquisition:
        """`try_acquire` for asyncio: waits for a store on another machine without blocking the event loop."""
        store = self.store
        if self._free is not None or not is_remote(store):
            return self.try_acquire(requested)
        acquisition = await self.aprepare(requested, store)
        if await store.aacquire(acquisition.claim):
            acquisition.track()
        return acquisition

    async def aacquire(self, requested: Mapping[str, Amount] | None = None, timeout: Timeout = None) -> Acquisition:
        """`acquire` for asyncio: waits without blocking the event loop."""
        if self._free is not None:
            return self._acquire_free(self._free, requested, timeout)
        store, seconds = self.store, checked_timeout(timeout)
        acquisition = await self.aprepare(requested, store) if is_remote(store) else self.prepare(requested)
        admitted = False
        if seconds == 0 or not must_wait(acquisition):
            claim = acquisition.claim
            admitted = await store.aacquire(claim) if is_remote(store) else store.acquire(claim)
        if not admitted:
            if seconds == 0:
                raise LimitTimeout.of(acquisition)
            await wait_in_task(Alternatives([acquisition]), seconds)
        acquisition.track()
        return acquisition

    def peek(self, requested: Mapping[str, Amount] | None = None) -> Outcome:
        """Return what `try_acquire` would decide now; charges nothing."""
        acquisition = self.prepare(requested)
        self.store.peek(acquisition.claim)
        return acquisition.outcome

    def get_stats(self) -> dict[str, Stats]:
        """Return the live state by key, consistent over all keys; changes nothing. `stats_of` lists the fields."""
        shape = self._shapes.all()
        claim = Claim(self._plan(shape), [0] * len(shape.limits), self.version)
        self.store.peek(claim)
        return stats_of(claim)

    def prepare(
        self, requested: Mapping[str, Amount] | None, *, checks: bool = True, is_extension: bool = False
    ) -> Acquisition:
        """Return an acquisition that no store has decided on; one that `is_extension` takes the named amounts only.

        With `checks`, raises NeverAdmissible for amounts that can never be admitted.
        """
        by_keys = self._by_keys
        plan: Plan | None
        if is_extension:
            plan = self._plan(self._shapes.extension(requested))
        elif requested is None:
            plan = by_keys.get(None)
        else:
            plan = by_keys.get(tuple(requested)) if type(requested) is dict else None
        if plan is None or (plan.shape.permits and not is_extension):
            held = held_here(self)
            if plan is None or held:
                plan = self._find(requested, held)
        shape = plan.shape
        amounts, fits = shape.fixed_amounts, shape.fits
        if amounts is None:
            amounts, fits = shape.amounts(requested or {})
        claim = Claim(plan, amounts, self.version)
        acquisition = TrackedAcquisition(self, claim) if self._tracks else Acquisition(self, claim)
        acquisition.requested = requested or acquisition.requested
        if shape.permits:
            acquisition.claim.owner = ref(acquisition)
        if checks and not fits:
            self.store.peek(acquisition.claim)
            raise NeverAdmissible.of(acquisition)
        return acquisition

    def _find(self, requested: Mapping[str, Amount] | None, held: frozenset[Bucket]) -> Plan:
        """Return the plan of a request; permits that are `held` are not taken again, unless they are named."""
        keys = None if requested is None else tuple(requested) if type(requested) is dict else ()
        shape = None if held else self._shapes.by_keys.get(keys)
        if shape is None:
            positions = enumerate(self.scopes)
            places = [(at, key) for at, scope in positions for scope_key, key in held if scope_key == scope.key]
            shape = self._shapes.find(requested, frozenset(places))
        plan = self._plan(shape)
        if self._shapes.by_keys.get(keys) is shape:
            self._by_keys[keys] = plan
        return plan

    def _plan(self, shape: PlanShape) -> Plan:
        """Return a shape that is bound to the scopes of this set; it is bound once."""
        plan = self._by_shape.get(shape)
        if plan is None:
            if len(self._by_shape) >= MOST_SHAPES:
                self._by_shape.clear()
                self._by_keys.clear()
            scopes = tuple([self.scopes[at] for at in shape.positions])
            plan = self._by_shape[shape] = Plan(shape, scopes, self.namespace)
        return plan

    async def aprepare(
        self, requested: Mapping[str, Amount] | None, store: RemoteStore, *, is_extension: bool = False
    ) -> Acquisition:
        """`prepare` with checks, for asyncio."""
        acquisition = self.prepare(requested, checks=False, is_extension=is_extension)
        if not acquisition.claim.can_fit():
            await store.apeek(acquisition.claim)
            raise NeverAdmissible.of(acquisition)
        return acquisition

    def skip_unknown(self, key: object, *, reported: bool = False) -> None:
        """Warn once that a key is not one of the request's limits; InvalidRequest where the settings say so."""
        if not self.accepts_all:
            name = next((scope.resource for scope in self.scopes if scope.resource), self.resource)
            self._shapes.unknown_keys.report(key, name, reported=reported)

    def _acquire_free(
        self, free: Acquisition, requested: Mapping[str, Amount] | None, timeout: Timeout = None
    ) -> Acquisition:
        """Return the acquisition of a set without limits; raises as usual for an invalid request."""
        checked_timeout(timeout)
        if requested is not None:
            check_amounts("requested", requested)
            keys: Iterable[object] = requested
            for key in keys:
                self.skip_unknown(key)
        return free


class Unlimited(LimitSet):
    """The set that is used where limits could not be resolved and requests are allowed: it accepts any key."""

    accepts_all = True


def _checked_scopes(scopes: Sequence[Scope], others: Sequence[Scope]) -> tuple[Scope, ...]:
    checked = tuple(scopes)
    if len(checked) != len(others):
        raise InvalidRequest(f"scopes must be one for each of the {len(others)} scopes of the set, not {len(checked)}")
    return checked


def _copied_config(config: Mapping[str, object]) -> dict[str, object]:
    if not isinstance(config, Mapping):
        raise InvalidRequest(f"config must map names to values, as in config={{'region': 'eu'}}, not {shown(config)}")
    return {name: _copied(value) for name, value in config.items()}


def _copied(value: object) -> object:
    """Copy plain data; other objects, such as clients, may be impossible to copy."""
    if type(value) is dict:
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if type(value) is list else value

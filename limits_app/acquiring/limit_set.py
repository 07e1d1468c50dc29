"""The limit set: limits acquired together, all or nothing."""

from __future__ import annotations

from collections.abc import Coroutine, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Self

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.blocking import Timeout, checked_timeout, must_wait, wait_in_thread
from limits_app.acquiring.blocks import current_blocks
from limits_app.acquiring.bound_limits import BoundLimits
from limits_app.acquiring.choice import Choice
from limits_app.acquiring.free_acquisition import FreeAcquisition
from limits_app.acquiring.in_tasks import acquire_in_task, try_acquire_in_task
from limits_app.acquiring.modes import Mode, checked_mode, store_of
from limits_app.acquiring.store import Store
from limits_app.engine import (
    NOTHING,
    GivenAmount,
    RequestKeys,
    Scope,
    ScopedLimits,
    checked_limits,
    mypyc_attr,
    of_class,
    private_scope,
    schema_of,
)
from limits_app.engine.errors import LimitTimeout, NeverAdmissible
from limits_app.engine.limits import AnyLimit, LimitDefinition
from limits_app.engine.outcome import Outcome


@mypyc_attr(allow_interpreted_subclasses=True)
class LimitSet(BoundLimits):
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
    is_private = False
    """Whether the set was made with `shared=False` and has its own store."""
    _free: FreeAcquisition | None
    """The acquisition of a set without limits, which all callers share; None for others."""

    def __init__(
        self,
        limits: Iterable[LimitDefinition | str] = (),
        *,
        shared: bool = False,
        mode: Mode | str = "sync",
        config: Mapping[str, object] | None = None,
        store: Store | None = None,
        require_usage: bool = True,
    ) -> None:
        checked = checked_mode(mode, shared=shared)
        chosen = store_of(checked, store)
        schema = schema_of(checked_limits(limits), chosen.lease_us)
        self._compose([ScopedLimits(private_scope(), schema)] if schema.rules else [], chosen, config)
        self._share_free()
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
        limit_set._compose(scoped, store, config, version=version, namespace=namespace)
        limit_set._share_free()
        limit_set.resource, limit_set.identity, limit_set.changes_at = resource, identity, changes_at
        return limit_set

    @property
    def limits(self) -> tuple[AnyLimit, ...]:
        """Its limits, as iterating over the set gives them."""
        return tuple(self)

    @property
    def is_free(self) -> bool:
        """Whether it has no limits and never will have any: its store is not called."""
        return self._free is not None

    @property
    def shared(self) -> bool:
        """Whether other threads, processes or machines may share its state, as its mode says."""
        return not self.is_private

    def _share_free(self) -> None:
        # Without limits, and without a configuration that may add some, the store is not called.
        has_none = not self.scopes and self.version is None
        self._free = FreeAcquisition(self, self._plan(self._shapes.all())) if has_none else None

    def bound(self, scopes: Sequence[Scope], *, version: int | None, identity: Hashable = None) -> Self:
        """See `BoundLimits.bound`."""
        bound = super().bound(scopes, version=version, identity=identity)
        bound.mode, bound.is_private = self.mode, self.is_private
        bound._share_free()
        return bound

    def __reduce__(self) -> tuple[object, ...]:
        make = partial(LimitSet.composed, config=self._config, version=self.version, namespace=self.namespace)
        return make, (self.scoped, self.store), (None, {"require_usage": self.require_usage})

    def __repr__(self) -> str:
        return f"LimitSet({list(self)!r}, store={self.store!r})"

    def try_acquire(
        self, requested: Mapping[str, GivenAmount] | None = None, *, priority: str | None = None
    ) -> Acquisition:
        """Acquire now or not at all; a rejection is a falsy acquisition with the reasons in `outcome`.

        Without `requested`, 1 of every call and resource limit; that is an InvalidRequest where a rate limit is in the
        set. Otherwise the named amounts, and 1 of every call and resource limit that is not named;
        an explicit 0 leaves a resource limit out. `priority` is the class of the request, one of
        `LIMITS["PRIORITIES"]`; None for that of the limits, by default `normal`.
        Raises NeverAdmissible (a ValueError) for more than a limit can ever admit.
        """
        if priority is not None:
            requested = of_class(requested, priority)
        if self._free is not None:
            return self._acquire_free(self._free, requested)
        acquisition = self.prepare(requested)
        try:
            if self.store.acquire(acquisition) and acquisition.shape.permits:
                self.store.renewer.add(acquisition)
        except BaseException:  # for instance of a signal handler, after the store has admitted the request
            acquisition.give_up()
            raise
        return acquisition

    def acquire(
        self,
        requested: Mapping[str, GivenAmount] | None = None,
        timeout: Timeout = None,
        *,
        priority: str | None = None,
    ) -> Acquisition:
        """Acquire; by default this waits as long as it takes, unlike `limits.acquire`, which does not wait.

        `timeout` is the longest wait in seconds (0: no waiting).
        Waiters of this process for the same limit are served in the order of their arrival, those of a higher class
        first.
        A thread or task inside a block that holds an unnamed permit of this set does not take it again; name the key
        to take one, as in `acquire({"connections": 1})`.
        Raises LimitTimeout (a TimeoutError) with the outcome when the time is up, LimitExceeded immediately for a
        blocked scope, and the errors of `try_acquire`.
        """
        if priority is not None:
            requested = of_class(requested, priority)
        if self._free is not None:
            return self._acquire_free(self._free, requested, timeout)
        acquisition, seconds = self.prepare(requested), checked_timeout(timeout)
        try:
            admitted = (seconds == 0 or not must_wait(acquisition)) and self.store.acquire(acquisition)
            if not admitted and seconds != 0:
                wait_in_thread(Choice([acquisition]), seconds)
                admitted = True
            if admitted:
                acquisition.track()
        except BaseException:
            acquisition.give_up()
            raise
        if not admitted:
            raise LimitTimeout.of(acquisition)
        return acquisition

    def atry_acquire(
        self, requested: Mapping[str, GivenAmount] | None = None, *, priority: str | None = None
    ) -> Coroutine[object, object, Acquisition]:
        """`try_acquire` for asyncio: waits for a store on another machine without blocking the event loop."""
        return try_acquire_in_task(self, requested, priority)

    def aacquire(
        self,
        requested: Mapping[str, GivenAmount] | None = None,
        timeout: Timeout = None,
        *,
        priority: str | None = None,
    ) -> Coroutine[object, object, Acquisition]:
        """`acquire` for asyncio: waits without blocking the event loop."""
        return acquire_in_task(self, requested, timeout, priority)

    def prepare(self, requested: Mapping[str, GivenAmount] | None, checks: bool = True) -> Acquisition:
        """Return an acquisition that no store has decided on.

        With `checks`, raises NeverAdmissible for amounts that can never be admitted.
        """
        keys: RequestKeys
        if requested is None:
            keys, requested = None, NOTHING
        elif type(requested) is dict:
            keys = tuple(requested)
        else:
            keys = ()
        plan = self._plans.get(keys)
        if plan is None or (plan.shape.permits and current_blocks().by_number):
            plan = self._plan_of(keys, requested)
        shape = plan.shape
        amounts, fits = shape.fixed_amounts, shape.fits
        if amounts is None:
            amounts, fits = shape.amounts(requested)
        acquisition = Acquisition(self, plan, amounts, requested)
        if not fits:
            acquisition.fits = False
            if checks:
                acquisition.check_fits()
        return acquisition

    def peek(self, requested: Mapping[str, GivenAmount] | None = None, *, priority: str | None = None) -> Outcome:
        """Return what would be decided on a request now; charges nothing.

        Raises NeverAdmissible for more than a limit can ever admit.
        """
        acquisition = self.prepare(of_class(requested, priority), checks=False)
        self.store.peek(acquisition)
        if not acquisition.fits:
            raise NeverAdmissible(acquisition.outcome)
        return acquisition.outcome

    def _acquire_free(
        self, free: FreeAcquisition, requested: Mapping[str, GivenAmount] | None, timeout: Timeout = None
    ) -> Acquisition:
        """Return the acquisition of a set without limits; raises as usual for an invalid request."""
        checked_timeout(timeout)
        if requested is not None:
            free.extend(requested)
        return free


class Unlimited(LimitSet):
    """The set that is used where limits could not be resolved and requests are allowed: it accepts any key."""

    accepts_all = True

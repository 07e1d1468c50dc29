"""The limit set: limits acquired together, all or nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Self, cast

from limits_app.core.acquisition import Acquisition, FreeAcquisition, acquisition_of, check_signs
from limits_app.core.amounts import Amount, shown
from limits_app.core.blocking import checked_timeout, wait_in_task, wait_in_thread
from limits_app.core.claim import Claim, next_number
from limits_app.core.errors import InvalidRequest, LimitTimeout, NeverAdmissible
from limits_app.core.holding import NOTHING_HELD, holding_here
from limits_app.core.hooks import HOOKS
from limits_app.core.keys import Scope, private_scope
from limits_app.core.layout import layout_of
from limits_app.core.limits import AnyLimit, Limit, checked_limits
from limits_app.core.modes import check_store, checked_mode, store_for
from limits_app.core.outcome import Outcome
from limits_app.core.parts import ScopedLimits
from limits_app.core.shapes import Shapes, amounts_of
from limits_app.core.stats import Stats, stats_of
from limits_app.core.steps import Alternatives
from limits_app.core.store import RemoteStore, Store, is_remote

__all__ = ["LimitSet", "Unlimited", "forget_warnings"]

logger = logging.getLogger("limits_app")

_MOST_WARNINGS: Final = 256
_WARNED: Final[set[object]] = set()
"""What was warned of in this process of sets that go by the name of a resource."""


class LimitSet:
    """Limits that are acquired together: all are checked first, and charged only if all pass.

    Thread safe. `shared=False` is state of its own and needs `mode="sync"`;
    with `shared=True` the mode says who shares: `sync`, `thread`, `asyncio` (one process) or `process` (one machine).
    `config` travels with every acquisition; `store` takes the place of the one that the mode would choose.
    `changes_at` is when a date or an hour comes that may change the limits, in seconds of the system's clock; None for
    never.
    Raises InvalidLimit (a ValueError) for keys that are there twice, ValueError for a mode or a store that cannot be.
    """

    changes_at: float | None = None
    resource: str | None = None
    """What a set without limits goes by; others have it in their scopes."""

    def __init__(
        self,
        limits: Iterable[Limit] = (),
        *,
        shared: bool = False,
        mode: str = "sync",
        config: Mapping[str, object] | None = None,
        store: Store | None = None,
    ) -> None:
        checked = checked_mode(mode, shared=shared)
        if store is not None:
            check_store(store)
        chosen = store_for(checked) if store is None else store
        layout = layout_of(checked_limits(limits), chosen.lease_us)
        scoped = (ScopedLimits(private_scope(), layout),) if layout.rules else ()
        self._compose(scoped, chosen, config, None)

    @classmethod
    def composed(
        cls,
        scoped: Iterable[ScopedLimits],
        store: Store,
        *,
        config: Mapping[str, object] | None = None,
        version: int | None = None,
    ) -> Self:
        """Put limits of several scopes into one set; `version` is the configuration that they come from."""
        limit_set = cls.__new__(cls)
        limit_set._compose(tuple(scoped), store, config, version)
        return limit_set

    def _compose(
        self,
        scoped: tuple[ScopedLimits, ...],
        store: Store,
        config: Mapping[str, object] | None,
        version: int | None,
    ) -> None:
        self.store = store
        self.scoped = scoped
        self.version = version
        self._config: dict[str, object] = {} if config is None else _copied_config(config)
        self._warned: set[object] = set()
        self._shapes = Shapes(scoped, version, self.skip_unknown)
        self._usual = self._shapes.usual
        self.ones: Mapping[str, Amount] | None = dict.fromkeys(self._shapes.rates, 1) or None
        """What a request takes that wants 1 of every limit, not to be changed; None where there are no rates."""
        self._decide = store.acquire
        # Without limits, and without a configuration that may bring some, there is nothing to ask a store.
        free = not scoped and version is None
        self._free = FreeAcquisition(self, self._shapes.all()) if free else None
        self._plain = None if free else self._shapes.plain()

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (self.scoped, self.store, self._config, self.version)

    def __getitem__(self, key: str) -> AnyLimit:
        try:
            return self._shapes.limits[key]
        except KeyError:
            known = ", ".join(self._shapes.limits) or "none"
            raise KeyError(f"the set has no limit {shown(key)}, only: {known}") from None

    def __iter__(self) -> Iterator[AnyLimit]:
        return iter(self._shapes.limits.values())

    def __contains__(self, limit: object) -> bool:
        """Whether a limit is in the set, or one of that key."""
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
        """The keys of which a request must say how much it takes."""
        return list(self.ones or ())

    @property
    def config(self) -> dict[str, object]:
        """A copy of the configuration, with the dicts and lists in it; other objects are those that were given."""
        return _copied_config(self._config)

    def is_same(self, other: LimitSet) -> bool:
        """Whether who has permits from this set need not take them from another one again."""
        return other is self or (self.is_by_hand and (other.store, other.scopes) == (self.store, self.scopes))

    @property
    def scopes(self) -> list[Scope]:
        """Whose state its limits have."""
        return [one.scope for one in self.scoped]

    @property
    def is_by_hand(self) -> bool:
        """Whether its state is its own, so that only its copies have the same scopes."""
        return all(scope.resource is None for scope in self.scopes)

    def try_acquire(self, requested: Mapping[str, Amount] | None = None) -> Acquisition:
        """Acquire now or not at all; a refusal is a falsy acquisition that says why.

        Nothing requested takes 1 of every call and resource limit, and is an InvalidRequest where a rate limit
        is in the set. Otherwise the amounts named, and 1 of every call and resource limit that is not;
        an explicit 0 leaves a resource limit out.
        Raises NeverAdmissible (a ValueError) for more than a limit can ever admit.
        """
        if requested is None and self._plain is not None:
            acquisition: Acquisition = Acquisition()  # as `acquisition_of` does, which is a call more
            acquisition.plan, acquisition.amounts = self._plain
            acquisition.limit_set = self
            acquisition.admitted = None
            acquisition.settled = False
            acquisition._changes = None
            acquisition._usage = None
            self._decide(acquisition)
            return acquisition
        if self._free is not None:
            return self._free if requested is None else self._freely(requested)
        acquisition = self.claim(requested)
        if self._decide(acquisition) and acquisition.plan.permits:
            acquisition.holding.add(acquisition)
        return acquisition

    def acquire(self, requested: Mapping[str, Amount] | None = None, timeout: float | None = None) -> Acquisition:
        """Acquire, waiting up to `timeout` seconds (None: as long as it takes; 0: not at all).

        First come, first served among those of this process who wait for the same limit.
        A thread or task that has an unnamed permit of this set takes none again: to hand acquisitions on, name the
        key, as in `acquire({"connections": 1})`.
        Raises LimitTimeout (a TimeoutError) with the outcome when the time is up, LimitExceeded at once for whom
        is blocked, and what `try_acquire` raises.
        """
        if self._free is not None:
            return self._freely(requested, timeout)
        acquisition, seconds = self.claim(requested), checked_timeout(timeout)
        if not self._admitted_at_once(acquisition, seconds):
            wait_in_thread(Alternatives([acquisition]), seconds)
        if acquisition.plan.permits:
            acquisition.holding.add(acquisition)
        return acquisition

    async def atry_acquire(self, requested: Mapping[str, Amount] | None = None) -> Acquisition:
        """`try_acquire` for asyncio: waits for a store on another machine without blocking the event loop."""
        store = self.store
        if self._free is not None or not is_remote(store):
            return self.try_acquire(requested)
        acquisition = await self._aclaim(requested, store)
        if await store.aacquire(acquisition) and acquisition.plan.permits:
            acquisition.holding.add(acquisition)
        return acquisition

    async def aacquire(
        self, requested: Mapping[str, Amount] | None = None, timeout: float | None = None
    ) -> Acquisition:
        """`acquire` for asyncio: waits without blocking the event loop."""
        if self._free is not None:
            return self._freely(requested, timeout)
        store, seconds = self.store, checked_timeout(timeout)
        if is_remote(store):
            acquisition = await self._aclaim(requested, store)
            at_once = (seconds == 0 or not store.line.busy) and await store.aacquire(acquisition)
        else:
            acquisition = self.claim(requested)
            at_once = (seconds == 0 or not store.line.busy) and self._decide(acquisition)
        if not at_once:
            if seconds == 0:
                raise LimitTimeout.of(acquisition)
            await wait_in_task(Alternatives([acquisition]), seconds)
        if acquisition.plan.permits:
            acquisition.holding.add(acquisition)
        return acquisition

    def peek(self, requested: Mapping[str, Amount] | None = None) -> Outcome:
        """What `try_acquire` would decide now; charges nothing."""
        acquisition = self.claim(requested)
        self.store.peek(acquisition)
        return acquisition.outcome

    def get_stats(self) -> dict[str, Stats]:
        """The live state by key, consistent over all keys; changes nothing. `stats_of` lists the fields."""
        plan = self._shapes.all()
        claim = Claim(plan, [0] * len(plan.asks))
        self.store.peek(claim)
        return stats_of(claim)

    def skip_unknown(self, key: object, *, reported: bool = False) -> None:
        """Warn once that a key is none of the request's limits; InvalidRequest where that is configured.

        One whose usage is `reported` is warned of by itself, and may also be one that was not requested. That is never
        an error: it would take back what was really used.
        The sets of all entities on a resource warn once together, since anybody may make up more entities.
        """
        raises = not reported and HOOKS.unknown_keys_raise()
        if reported and key in self._shapes.limits:
            message = f"key {shown(key)} was not requested: its usage is not recorded"
        else:
            known = ", ".join(self._shapes.limits) or "none"
            skipped = "" if raises else " and is skipped"
            message = f"key {shown(key)} is none of the limits of this request{skipped}; the set has: {known}"
        if raises:
            raise InvalidRequest(message)
        name = next((scope.resource for scope in self.scopes), self.resource)
        warned = self._warned if name is None else _WARNED
        if (name, reported, key) not in warned and len(warned) < _MOST_WARNINGS:
            warned.add((name, reported, key))
            logger.warning(message)

    def claim(self, requested: Mapping[str, Amount] | None, *, checks: bool = True) -> Acquisition:
        """An acquisition that nobody was asked for yet; NeverAdmissible where `checks` finds it to be so."""
        try:
            plan = self._usual[None if requested is None else tuple(requested)]
        except (KeyError, TypeError):
            plan = None
        here = None
        if plan is None or plan.permits:
            here = holding_here()
            held = here.permits(self) if here.held else NOTHING_HELD
            if plan is None or held:
                plan = self._shapes.plan(requested, held)
        amounts, fits = plan.fixed, plan.fits
        if requested.__class__ is dict and plan.read is not None:  # as `amounts_of` does, which is a call more
            amounts = plan.read(requested)
        if amounts is None:
            amounts, fits = amounts_of(plan, requested or {})
        acquisition = acquisition_of(self, plan, amounts)
        if here is not None and plan.permits:
            acquisition.number = next_number()
            acquisition.holding = here
        if not fits and checks:
            self.store.peek(acquisition)
            raise NeverAdmissible.of(acquisition)
        return acquisition

    def _freely(self, requested: Mapping[str, Amount] | None, timeout: float | None = None) -> Acquisition:
        """What a set without limits hands out, if it is asked for something that could be."""
        checked_timeout(timeout)
        if requested is not None:
            check_signs("requested", requested)
            for key in requested:
                self.skip_unknown(key)
        return cast("Acquisition", self._free)

    async def _aclaim(self, requested: Mapping[str, Amount] | None, store: RemoteStore) -> Acquisition:
        acquisition = self.claim(requested, checks=False)
        if not acquisition.plan.can_fit(acquisition.amounts):
            await store.apeek(acquisition)
            raise NeverAdmissible.of(acquisition)
        return acquisition

    def _admitted_at_once(self, acquisition: Acquisition, seconds: float | None) -> bool:
        """Ask once, unless others wait already; LimitTimeout when there is no time to wait at all."""
        if seconds == 0:
            if not self._decide(acquisition):
                raise LimitTimeout.of(acquisition)
            return True
        return not self.store.line.busy and self._decide(acquisition)


def forget_warnings() -> None:
    """Warn of everything again."""
    _WARNED.clear()


class Unlimited(LimitSet):
    """What stands in where limits might be and none are: it admits whatever could be requested, by any key."""

    def skip_unknown(self, key: object, *, reported: bool = False) -> None:
        """A key is no mistake here."""


def _copied_config(config: Mapping[str, object]) -> dict[str, object]:
    if not isinstance(config, Mapping):
        raise InvalidRequest(f"config must map names to values, as in config={{'region': 'eu'}}, not {shown(config)}")
    return {name: _copied(value) for name, value in config.items()}


def _copied(value: object) -> object:
    """A copy of plain data; what else is in it, such as a client, may be impossible to copy."""
    if type(value) is dict:
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if type(value) is list else value


def _restored(
    scoped: tuple[ScopedLimits, ...], store: Store, config: Mapping[str, object], version: int | None
) -> LimitSet:
    return LimitSet.composed(scoped, store, config=config, version=version)

"""The `limits` option: which limits each worker receives."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.limit_pool import LimitPool
from limits_app.core.limit_set import LimitSet, Unlimited
from limits_app.core.limits import Limit


@runtime_checkable
class Acquirable(Protocol):
    """The methods of `self.limits` of a worker, which is a limit set or a limit pool."""

    def acquire(self, requested: Mapping[str, Amount] | None = None, timeout: float | None = None) -> Acquisition:
        """See `LimitSet.acquire`."""

    def try_acquire(self, requested: Mapping[str, Amount] | None = None) -> Acquisition:
        """See `LimitSet.try_acquire`."""

    async def aacquire(
        self, requested: Mapping[str, Amount] | None = None, timeout: float | None = None
    ) -> Acquisition:
        """See `LimitSet.aacquire`."""

    async def atry_acquire(self, requested: Mapping[str, Amount] | None = None) -> Acquisition:
        """See `LimitSet.atry_acquire`."""

    def get_stats(self) -> Any:
        """The current use of each limit."""


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """The checked `limits` option: at most one of the three is set."""

    private: tuple[Limit, ...] = ()
    """Definitions, of which each worker makes a separate limit set."""
    limit_sets: tuple[LimitSet, ...] = ()
    """Limit sets, over which each worker makes a separate pool."""
    shared: Acquirable | None = None
    """A limit set or pool that all workers share."""

    @classmethod
    def of(cls, limits: Acquirable | Iterable[Limit] | Iterable[LimitSet] | None) -> WorkerLimits:
        """Return the option checked; raises ValueError for other values."""
        if isinstance(limits, Acquirable):
            return cls(shared=limits)
        parts: Collection[object] = tuple(limits) if isinstance(limits, Iterable) else ()
        definitions = tuple(part for part in parts if isinstance(part, Limit))
        limit_sets = tuple(part for part in parts if isinstance(part, LimitSet))
        is_iterable_or_none = limits is None or isinstance(limits, Iterable)
        if is_iterable_or_none and len(definitions) == len(parts):
            return cls(private=definitions)
        if is_iterable_or_none and len(limit_sets) == len(parts):
            return cls(limit_sets=limit_sets)
        raise ValueError(f"limits must be limits, a limit set, limit sets or a limit pool, not {limits!r}")

    def for_worker(self, worker_index: int) -> Acquirable:
        """Return the limits of one worker; called in the thread or process of the worker."""
        if self.shared is not None:
            return self.shared
        if self.limit_sets:
            return LimitPool(self.limit_sets, worker_index=worker_index)
        return LimitSet(self.private) if self.private else Unlimited()

    def check_reach(self, mode: str) -> None:
        """Raise ValueError when workers on several machines would share a store that each machine has for itself."""
        from limits_app.stores.memory import MemoryStore
        from limits_app.stores.process import ProcessStore

        shared = (
            self.shared
            if isinstance(self.shared, Iterable) and not isinstance(self.shared, LimitSet)
            else (self.shared,)
        )
        stores = [one.store for one in (*self.limit_sets, *shared) if isinstance(one, LimitSet)]
        local = [type(store).__name__ for store in stores if isinstance(store, MemoryStore | ProcessStore)]
        if local:
            raise ValueError(
                f"mode {mode!r} has workers on several machines, each of which would use a separate {local[0]}: "
                f"use LimitSet(..., shared=True, mode={mode!r})"
            )

"""Granting: what becomes of the `limits` option in each worker."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.limit_set import LimitSet, Unlimited
from limits_app.core.limits import Limit

__all__ = ["Acquirable", "Grant", "GrantedLimits", "PooledSets", "PrivateLimits", "grant_of"]


@runtime_checkable
class Acquirable(Protocol):
    """What `self.limits` of a worker can do: a limit set, or a limit pool."""

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
        """The live state."""


class Grant(Protocol):
    """Limits on their way to workers."""

    @property
    def limit_sets(self) -> Iterable[object]:
        """Those that workers share."""

    def limits_for(self, worker_index: int) -> Acquirable:
        """What a worker finds in `self.limits`; called where the worker is."""


@dataclass(frozen=True, slots=True)
class PrivateLimits:
    """Every worker has a set of its own, with state of its own."""

    limits: tuple[Limit, ...] = ()

    @property
    def limit_sets(self) -> Iterable[object]:
        """Workers share none."""
        return ()

    def limits_for(self, worker_index: int) -> Acquirable:  # noqa: ARG002 - as `Grant` has it
        """A set that nobody else uses."""
        return LimitSet(self.limits) if self.limits else Unlimited()


@dataclass(frozen=True, slots=True)
class PooledSets:
    """Every worker has a pool of its own, over sets that all share; each begins with another one of them."""

    limit_sets: tuple[LimitSet, ...]

    def limits_for(self, worker_index: int) -> Acquirable:
        """A pool that begins at the worker's index."""
        from limits_app.core.limit_pool import LimitPool

        return LimitPool(self.limit_sets, worker_index=worker_index)


@dataclass(frozen=True, slots=True)
class GrantedLimits:
    """All workers share what was given."""

    limits: Acquirable

    @property
    def limit_sets(self) -> Iterable[object]:
        """What was given, or the sets of a pool."""
        from limits_app.core.limit_pool import LimitPool

        return self.limits if isinstance(self.limits, LimitPool) else (self.limits,)

    def limits_for(self, worker_index: int) -> Acquirable:  # noqa: ARG002 - as `Grant` has it
        """What was given."""
        return self.limits


def check_reach(grant: Grant, mode: str) -> None:
    """ValueError where workers on several machines would share a limit set that each machine has for itself."""
    from limits_app.stores.memory import MemoryStore
    from limits_app.stores.process import ProcessStore

    stores = [limit_set.store for limit_set in grant.limit_sets if isinstance(limit_set, LimitSet)]
    narrow = [type(store).__name__ for store in stores if isinstance(store, MemoryStore | ProcessStore)]
    if narrow:
        raise ValueError(
            f"mode {mode!r} has workers on several machines, each of which has a {narrow[0]} for itself: "
            f"use LimitSet(..., shared=True, mode={mode!r})"
        )


def grant_of(limits: Acquirable | Iterable[Limit] | Iterable[LimitSet] | None) -> Grant:
    """Take the `limits` option; ValueError for what it cannot be."""
    if isinstance(limits, Acquirable):
        return GrantedLimits(limits)
    parts: Collection[object] = tuple(limits) if isinstance(limits, Iterable) else (() if limits is None else (limits,))
    definitions = tuple(part for part in parts if isinstance(part, Limit))
    if len(definitions) == len(parts):
        return PrivateLimits(definitions)
    limit_sets = tuple(part for part in parts if isinstance(part, LimitSet))
    if len(limit_sets) == len(parts):
        return PooledSets(limit_sets)
    raise ValueError(f"limits must be limits, a limit set, limit sets or a limit pool, not {limits!r}")

"""The `limits` option: which limits each worker receives."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

from limits_app.acquiring import Acquisition, LimitPool, LimitSet, Mode, Unlimited
from limits_app.engine import GivenAmount, present
from limits_app.engine.limits import AnyLimit, LimitDefinition
from limits_app.stores.modes import IN_MEMORY


@runtime_checkable
class Acquirable(Protocol):
    """The methods of `self.limits` of a worker, which is a limit set or a limit pool."""

    def acquire(self, requested: Mapping[str, GivenAmount] | None = None, timeout: float | None = None) -> Acquisition:
        """See `LimitSet.acquire`."""

    def try_acquire(self, requested: Mapping[str, GivenAmount] | None = None) -> Acquisition:
        """See `LimitSet.try_acquire`."""

    def aacquire(
        self, requested: Mapping[str, GivenAmount] | None = None, timeout: float | None = None
    ) -> Coroutine[object, object, Acquisition]:
        """See `LimitSet.aacquire`."""

    def atry_acquire(
        self, requested: Mapping[str, GivenAmount] | None = None
    ) -> Coroutine[object, object, Acquisition]:
        """See `LimitSet.atry_acquire`."""

    def get_stats(self) -> Any:
        """The current use of each limit."""


@dataclass(frozen=True, slots=True)
class PrivateSet:
    """The limits and the configuration of a limit set with `shared=False`, of which each worker makes a copy.

    `limits` is None where none are given, or `LIMITS["ENABLED"]` is False, so that nothing is limited.
    """

    limits: tuple[AnyLimit, ...] | None
    config: Mapping[str, object]
    require_usage: bool = True

    @classmethod
    def of(cls, limit_set: LimitSet) -> LimitSet | PrivateSet:
        """Return this form of a private set, and other sets as they are."""
        if not limit_set.is_private:
            return limit_set
        return cls(tuple(limit_set), limit_set.config, limit_set.require_usage)

    def copy(self) -> LimitSet:
        """Return a set with unused limits."""
        if self.limits is None:
            return Unlimited(config=self.config)
        limits = cast("tuple[LimitDefinition, ...]", self.limits)
        return LimitSet(limits, config=self.config, require_usage=self.require_usage)


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """The checked `limits` option.

    `definition` is a set of which each worker makes a copy, a tuple of sets over which each worker makes a pool, or a
    set or pool that all workers share.
    """

    definition: PrivateSet | tuple[LimitSet | PrivateSet, ...] | Acquirable

    @classmethod
    def of(cls, limits: Acquirable | Iterable[LimitDefinition] | Iterable[LimitSet] | None) -> WorkerLimits:
        """Return the option checked, without limits where they are disabled; raises ValueError for other values."""
        checked = cls._checked(limits)
        return checked if present().is_enabled() else checked._without_limits()

    @classmethod
    def _checked(cls, limits: Acquirable | Iterable[LimitDefinition] | Iterable[LimitSet] | None) -> WorkerLimits:
        if isinstance(limits, LimitSet):
            return cls(PrivateSet.of(limits))
        if isinstance(limits, Acquirable):
            return cls(limits)
        parts: Collection[object] = tuple(limits) if isinstance(limits, Iterable) else ()
        definitions = tuple(part for part in parts if isinstance(part, LimitDefinition))
        limit_sets = tuple(part for part in parts if isinstance(part, LimitSet))
        is_iterable_or_none = limits is None or isinstance(limits, Iterable)
        if is_iterable_or_none and len(definitions) == len(parts):
            return cls(PrivateSet(definitions or None, {}))
        if is_iterable_or_none and len(limit_sets) == len(parts):
            return cls(tuple(map(PrivateSet.of, limit_sets)))
        raise ValueError(f"limits must be limits, a limit set, limit sets or a limit pool, not {limits!r}")

    def _without_limits(self) -> WorkerLimits:
        """The same sets without limits; those of resources and pools by name are without limits already."""
        definition = self.definition
        if isinstance(definition, PrivateSet) or (isinstance(definition, LimitSet) and definition.version is None):
            return WorkerLimits(PrivateSet(None, definition.config))
        if isinstance(definition, tuple | LimitPool):
            return WorkerLimits(tuple([PrivateSet(None, limit_set.config) for limit_set in definition]))
        return self

    def for_worker(self, worker_index: int) -> Acquirable:
        """Return the limits of one worker; called in the thread or process of the worker."""
        if isinstance(self.definition, tuple):
            own = [
                limit_set.copy() if isinstance(limit_set, PrivateSet) else limit_set for limit_set in self.definition
            ]
            return LimitPool(own, worker_index=worker_index)
        return self.definition.copy() if isinstance(self.definition, PrivateSet) else self.definition

    def check_mode(self, mode: str) -> None:
        """Raise ValueError for workers in threads of this process, and a limit set that is made for mode `process`."""
        if mode in IN_MEMORY and any(limit_set.mode is Mode.PROCESS for limit_set in self._given_sets()):
            raise ValueError(
                f"mode {mode!r} has workers in this process, but the limit set has mode='process': use "
                f"LimitSet(..., shared=True, mode={mode!r}), or store=open_process_store(...) to share with others"
            )

    def check_reach(self, mode: str) -> None:
        """Raise ValueError when workers on several machines would share a store that each machine has for itself."""
        from limits_app.stores.memory import MemoryStore
        from limits_app.stores.process import ProcessStore

        stores = [limit_set.store for limit_set in self._given_sets()]
        local = [type(store).__name__ for store in stores if isinstance(store, MemoryStore | ProcessStore)]
        if local:
            raise ValueError(
                f"mode {mode!r} has workers on several machines, each of which would use a separate {local[0]}: "
                f"use LimitSet(..., shared=True, mode={mode!r})"
            )

    def _given_sets(self) -> list[LimitSet]:
        """The limit sets that workers do not make themselves."""
        if isinstance(self.definition, LimitSet):
            return [self.definition]
        definition: Iterable[object] = self.definition if isinstance(self.definition, Iterable) else ()
        return [limit_set for limit_set in definition if isinstance(limit_set, LimitSet)]

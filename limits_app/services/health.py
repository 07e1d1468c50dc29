"""Health: how the stores are doing, as far as this process can see."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from limits_app.conf import OnUnavailable
from limits_app.core.breaker import BreakerState
from limits_app.stores.registry import aliases, resilient_store

__all__ = ["StoreHealth", "store_health"]


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """One store: whether it is asked, and what was done without it.

    `state` is closed (all is well), open (down) or half_open (on its way back); `error` the last failure, if any.
    `degraded` counts the decisions that each policy made in its place since the process started;
    `unsettled` are the releases that wait for it.
    """

    state: BreakerState
    error: str | None
    degraded: dict[OnUnavailable, int]
    unsettled: int

    def as_dict(self) -> dict[str, object]:
        """The health as plain data, for JSON."""
        return asdict(self)


def store_health() -> dict[str, StoreHealth]:
    """Say for each store alias how it is doing, also those that are missing in the settings; asks no store."""
    return {alias: _health(alias) for alias in aliases()}


def _health(alias: str) -> StoreHealth:
    store = resilient_store(alias)
    degraded = {policy: store.degraded[policy] for policy in OnUnavailable}
    error = None if store.error is None else str(store.error)
    return StoreHealth(store.breaker.state, error, degraded, store.unsettled)

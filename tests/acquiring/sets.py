"""Limit sets to test with, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.store import Store
from limits_app.engine.limits import CallLimit, LimitDefinition, RateLimit, RateLimitAlgorithm, ResourceLimit

ChangeRuntime = Callable[..., None]
"""Changes fields of the runtime until the test ends."""

TPM = RateLimit("tpm", 100, 60)
RPM = RateLimit("rpm", 10, 60)
CALLS = CallLimit(5, 60)
DB = ResourceLimit("db", 3)

REFUNDING = (RateLimitAlgorithm.TOKEN_BUCKET, RateLimitAlgorithm.GCRA)
KEEPING = (RateLimitAlgorithm.LEAKY_BUCKET, RateLimitAlgorithm.SLIDING_WINDOW, RateLimitAlgorithm.FIXED_WINDOW)


def limit_set(store: Store, *limits: LimitDefinition, **options: object) -> LimitSet:
    """A set on a store; of everything, unless the limits are given."""
    return LimitSet(limits or (TPM, RPM, CALLS, DB), store=store, **options)  # type: ignore[arg-type]


def used(limits: LimitSet) -> dict[str, object]:
    """What is used, by key."""
    return {key: stats["used"] for key, stats in limits.get_stats().items()}


def used_up(limits: LimitSet, key: str) -> Acquisition:
    """Take all that is left of a limit."""
    acquisition = limits.try_acquire({key: limits.get_stats()[key]["available"]})  # type: ignore[dict-item]
    assert acquisition
    return acquisition


def reported(acquisition: Acquisition, usage: Mapping[str, float] | None = None) -> Acquisition:
    """Report usage (by default what was requested) and release."""
    asked = {key: use.requested for key, use in acquisition.acquisitions.items()}
    acquisition.update(asked if usage is None else usage)
    acquisition.release()
    return acquisition

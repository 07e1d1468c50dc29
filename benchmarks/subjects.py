"""What is measured of ours, on whatever store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from benchmarks.harness import Contender
from limits_app import CallLimit, LimitPool, LimitSet, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.acquiring.store import Store
from limits_app.engine.keys import scope_of
from limits_app.engine.limits import LimitDefinition
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits

__all__ = ["OURS", "THREE", "calls", "held", "limits_of", "one_call", "permit", "three_limits"]

OURS: Final = "limits_app"
_PLENTY: Final = 1_000_000_000


def calls(algorithm: RateLimitAlgorithm = RateLimitAlgorithm.TOKEN_BUCKET) -> CallLimit:
    """A call limit that never refuses."""
    return CallLimit(_PLENTY, 3600, algorithm)


THREE: Final = (calls(), RateLimit("tokens", _PLENTY, 3600), ResourceLimit("connections", 10))
"""A call, a rate and a resource limit."""


def limits_of(
    limits: Iterable[LimitDefinition], store: Store, entity: str | None = None, *, counts_usage: bool = False
) -> LimitSet:
    """A set whose state is found again by everybody who names the same entity."""
    schema = schema_of(tuple(limits), store.lease_us, counts_usage)
    return LimitSet.composed([ScopedLimits(scope_of("bench", entity), schema)], store)


def one_call(limits: LimitSet | LimitPool, name: str = OURS) -> Contender:
    """Acquire everything at its default amount and release it, as a context manager."""

    def once() -> None:
        with limits.try_acquire():
            pass

    assert limits.try_acquire()
    return Contender(name, once)


def three_limits(limits: LimitSet, name: str = OURS) -> Contender:
    """Acquire a call, an amount and a permit, report that less was used, and release."""

    def once() -> None:
        with limits.try_acquire({"tokens": 10}) as acquisition:
            acquisition.update({"tokens": 8})

    once()
    assert limits.get_stats()["connections"]["holders"] == 0
    return Contender(name, once)


def held(limits: LimitSet) -> Callable[[], Callable[[], object]]:
    """Take the permit, however long it takes; gives what gives it back."""
    return lambda: limits.acquire().release


def permit(store: Store) -> Callable[[], Callable[[], object]]:
    """The only permit of a limit that is shared by its name."""
    return held(limits_of([ResourceLimit("connections", 1)], store, "permit"))

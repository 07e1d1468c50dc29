"""Timed blocks: the requests of one scope are rejected for a time, once a limit of it was exceeded.

A block is a fixed window of its length with a capacity of 1, in a scope beside that of the limits. While it runs, the
window is in debt, so that it rejects even an amount of 0. More debt does not move its end: it is never extended. Each
request asks for 0 of it, in the step that charges its limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.store import Store
from limits_app.engine import (
    BLOCK_LEVEL,
    Amount,
    Claim,
    PlannedLimit,
    Scope,
    ScopedLimits,
    block_scope,
    counted_scope,
    plan_for,
    schema_of,
    units_of,
)
from limits_app.engine.limits import CallLimit, RateLimitAlgorithm

_PREFIX: Final = f"{BLOCK_LEVEL}:"
_KEY: Final = CallLimit.key
_DEBT: Final = 2
"""The amount that begins a block: more than the capacity, so that nothing is admitted."""


class TimedBlock:
    """The block of one scope, for so many seconds."""

    key: Final = f"{_PREFIX}{_KEY}"
    """The key of which each request asks for 0."""

    def __init__(self, store: Store, scope: Scope, seconds: float) -> None:
        self._store, self._scope = store, scope
        limit = CallLimit(1, seconds, RateLimitAlgorithm.FIXED_WINDOW)
        schema = schema_of((limit,), store.lease_us)
        self.scoped = ScopedLimits(block_scope(scope), schema, BLOCK_LEVEL, prefix=_PREFIX)
        """The limit that requests are charged with."""

    def begins_with(self, rejected: Acquisition) -> bool:
        """Whether a rejection begins the block: a limit of its scope was exceeded, and it does not run yet.

        Not an amount that can never be admitted, permits that are held, or a limit that would have admitted the amount,
        also of a request of another priority.
        """
        if not rejected.can_fit or any(_rejects(rejected, limit) for limit in _of_blocks(rejected)):
            return False
        return any(_rejects(rejected, limit) for limit in self._limits(rejected))

    def start(self) -> None:
        """Begin the block; one that runs ends at the same time as before."""
        claim = Claim(plan_for([self.scoped], {self.key}, left_out=()), [0])
        claim.admitted = True
        self._store.settle(claim, [_DEBT * claim.shape.limits[0].rule.parts_per_unit])

    def count(self, acquisition: Acquisition) -> None:
        """Count what a request whose response counts has used, and begin the block once a limit rejects another one.

        It is counted beside the limits themselves, which are also charged by requests that are still running.
        """
        limits = [*self._limits(acquisition)]
        if not limits:
            return
        schema = schema_of(tuple([limit.rule.limit for limit in limits]), self._store.lease_us)
        counter = LimitSet.composed([ScopedLimits(counted_scope(self._scope), schema)], self._store)
        counted = counter.try_acquire({limit.rule.key: _units(acquisition, limit) for limit in limits})
        counted.release()
        requested = {limit.rule.key: acquisition.amounts[limit.position] for limit in limits}
        if not counted or any(_rejects(counted, limit, requested[limit.key]) for limit in counted.shape.limits):
            self.start()

    def _limits(self, acquisition: Acquisition) -> Iterator[PlannedLimit]:
        """The limits of the scope that can be exceeded; permits are not, since their holders return them."""
        for limit, scope, _ in acquisition.limits():
            if scope.key == self._scope.key and not (limit.is_permit or limit.rule.is_soft):
                yield limit


def _of_blocks(acquisition: Acquisition) -> list[PlannedLimit]:
    return [limit for limit in acquisition.shape.limits if limit.level == BLOCK_LEVEL]


def _rejects(acquisition: Acquisition, limit: PlannedLimit, parts: int | None = None) -> bool:
    """Whether a limit would reject `parts` in any class, by the state of a decision; None is for its own amount."""
    amount, state = acquisition.amounts[limit.position] if parts is None else parts, acquisition.states[limit.position]
    return limit.schema.rules[limit.index].take(state, acquisition.decided_at, amount) is None


def _units(acquisition: Acquisition, limit: PlannedLimit) -> Amount:
    """The used amount of a limit; the requested one, where nothing was reported."""
    return units_of(limit.rule, acquisition.used.get(limit.position, acquisition.amounts[limit.position]))

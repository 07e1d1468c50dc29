"""Requests that a URL rule charges by themselves: those that it may block for a time, or count only by the response."""

from __future__ import annotations

import logging

from limits_app.acquiring import Acquisition, LimitSet, TimedBlock, rejected_acquisition
from limits_app.engine import Requested, ScopedLimits, class_named, of_its_class, scope_of
from limits_app.engine.errors import LimitExceeded, StoreUnavailable
from limits_app.policies import ResolutionKey
from limits_app.services.amounts import RequestedAmounts
from limits_app.services.request import AmountsRequest, SetResolver

logger = logging.getLogger("limits_app")


class RuleRequest(AmountsRequest):
    """A request of a URL rule that blocks for `block_seconds` (0: never), and never uses slices of limits.

    A rejection begins the block, unless `blocks_by_responses`: then counted responses do, reported to `count`.
    """

    _block: TimedBlock | None = None

    def __init__(
        self,
        key: ResolutionKey,
        requested: RequestedAmounts,
        source: SetResolver,
        *,
        block_seconds: float,
        blocks_by_responses: bool,
    ) -> None:
        super().__init__(key, requested, source, is_of_view=True)
        self._block_seconds = block_seconds
        self._blocks_by_responses = blocks_by_responses

    def acquire(self, timeout: float | None = 0) -> Acquisition:
        """See `AmountsRequest.acquire`; a rejection of a request that does not wait may begin the block."""
        try:
            return super().acquire(timeout)
        except LimitExceeded as error:
            if timeout == 0 and not self._blocks_by_responses:
                self._begin_block(error)
            raise

    def count(self, acquisition: Acquisition) -> None:
        """Count a response, before the acquisition of its request is released; begin the block where the limit is full.

        While the store is unavailable the response is not counted.
        """
        if self._block is not None and not acquisition.outcome.degraded:
            try:
                self._block.count(acquisition)
            except StoreUnavailable as error:
                logger.warning("a response could not be counted for a block: %s", error)

    def _begin_block(self, error: LimitExceeded) -> None:
        rejected = rejected_acquisition(error)
        if self._block is None or rejected is None or error.outcome.degraded:
            return
        try:
            if self._block.begins_with(rejected):
                self._block.start()
        except StoreUnavailable as unavailable:
            logger.warning("a block could not be begun: %s", unavailable)

    def _extend(self, limits: LimitSet, _amounts: Requested) -> LimitSet:
        """Return the limits with the block; limits in place of an unavailable store have none."""
        self._block = None
        if self._fallback is not None or self._resolved is None:
            return limits
        own = self._own_scope(limits)
        if own is None or not self._block_seconds:
            return self._resolved.with_scopes([]) if any(scoped.slice_us for scoped in self._resolved.own) else limits
        self._block = TimedBlock(limits.store, own.scope, self._block_seconds)
        return self._resolved.with_scopes([self._block.scoped])

    def _own_scope(self, limits: LimitSet) -> ScopedLimits | None:
        """The limits that are counted for the entity of the request alone; None where it has none that are enforced."""
        key = scope_of(*self._key[:2]).key
        return next((scoped for scoped in limits.scoped if scoped.scope.key == key), None)

    def _try(self, limits: LimitSet, amounts: Requested) -> Acquisition:
        return limits.try_acquire(self._with_block(amounts))

    def _wait(self, limits: LimitSet, amounts: Requested) -> Acquisition:
        return super()._wait(limits, self._with_block(amounts))

    def _with_block(self, amounts: Requested) -> Requested:
        """The amounts, and 0 of the block: the default would be 1, which is all that a block has."""
        if self._block is None:
            return amounts
        return of_its_class({**(amounts or {}), self._block.key: 0}, class_named(amounts))

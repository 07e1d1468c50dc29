"""Acquisitions of sets that may have permits, and of empty sets; neither class is compiled in any build."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from limits_app.acquiring.acquisition import Acquisition
from limits_app.engine.amounts import Amount, check_amounts
from limits_app.engine.plan import Claim, Plan

if TYPE_CHECKING:
    from limits_app.acquiring.limit_set import LimitSet


class TrackedAcquisition(Acquisition):
    """An acquisition that may be referred to weakly, which compiled classes cannot.

    By such a reference, leases know whether they have a holder.
    """


class FreeAcquisition(Acquisition):
    """The acquisition of an empty set, which all callers share: it holds nothing, so there is nothing to settle."""

    def __init__(self, limit_set: LimitSet, plan: Plan) -> None:
        super().__init__(limit_set, Claim(plan, ()))
        self.claim.admitted = True

    def update(self, usage: Mapping[str, Amount]) -> None:
        """Record nothing; InvalidRequest for invalid usage."""
        check_amounts("usage", usage)

    def extend(self, requested: Mapping[str, Amount]) -> None:
        """Take nothing, since nothing limits it; InvalidRequest for invalid amounts."""
        check_amounts("requested", requested)
        keys: Iterable[object] = requested
        for key in keys:
            self.limit_set.skip_unknown(key)

    async def aextend(self, requested: Mapping[str, Amount]) -> None:
        """`extend` for asyncio."""
        self.extend(requested)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the block; there is nothing to release."""

    def _release(self, *, refunds_unreported: bool) -> None:
        """Release nothing."""

    async def _arelease(self, *, refunds_unreported: bool) -> None:
        """Release nothing."""

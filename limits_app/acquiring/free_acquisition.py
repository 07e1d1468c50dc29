"""The acquisition of a set without limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.bound_limits import BoundLimits
from limits_app.engine import GivenAmount, RequestPlan, check_amounts, of_class


class FreeAcquisition(Acquisition):
    """The acquisition of a set without limits, which all callers share: it holds nothing."""

    def __init__(self, limit_set: BoundLimits, plan: RequestPlan) -> None:
        super().__init__(limit_set, plan, ())
        self.admitted = True

    def update(self, usage: Mapping[str, GivenAmount]) -> None:
        """Record nothing, since nothing limits it; InvalidRequest for invalid amounts."""
        check_amounts("usage", usage)

    def extend(self, requested: Mapping[str, GivenAmount], *, priority: str | None = None) -> None:
        """Take nothing, since nothing limits it; InvalidRequest for invalid amounts."""
        check_amounts("requested", of_class(requested, priority))
        keys: Iterable[object] = requested
        for key in keys:
            self.limit_set.skip_unknown(key)

    async def aextend(self, requested: Mapping[str, GivenAmount], *, priority: str | None = None) -> None:
        """`extend` for asyncio."""
        self.extend(requested, priority=priority)

    def release_unless_held(self) -> bool:
        """Return that nothing is held."""
        return False

    def enter_block(self, *, elsewhere: bool = False) -> None:
        """Do nothing, since a block holds nothing of it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def _release(self, refunds_unreported: bool) -> None:
        pass

    async def _arelease(self, *, refunds_unreported: bool) -> None:
        pass

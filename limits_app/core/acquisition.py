"""Acquisitions: amounts that a limit set hands out, held until they are settled and released exactly once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from limits_app.core.amounts import Amount, check_amounts, shown
from limits_app.core.errors import AlreadyReleased, InvalidRequest, UsageNotReported
from limits_app.core.leases import enter_block, leave_block
from limits_app.core.limits import CallLimit
from limits_app.core.modes import HOOKS
from limits_app.core.outcome import Outcome, outcome_of, units_of
from limits_app.core.plan import Amounts, Claim, Plan, PlannedLimit, parts_of
from limits_app.core.runtime import PROCESS
from limits_app.core.store import is_remote

if TYPE_CHECKING:
    from limits_app.core.limit_set import LimitSet

logger = logging.getLogger("limits_app")

_REPORTING: Final = Lock()
_NOT_REFUNDED: Final = "the amounts of a block that raised could not be refunded"


@dataclass(frozen=True, slots=True)
class LimitUse:
    """The amounts of one limit that were requested and used (None: not reported)."""

    requested: Amount
    used: Amount | None


class Acquisition:
    """Amounts that are held, or their rejection; `claim` is the request with the decision of the store.

    Falsy when rejected, and then harmless: it holds nothing and refunds nothing.
    As a context manager, also asynchronous, it releases when the block ends;
    a rate limit whose usage was not reported is then a UsageNotReported (a RuntimeError).
    When the block raises, the caller receives that exception: amounts that were not reported are refunded where the
    algorithm can.
    """

    __slots__ = (
        "__weakref__",
        "_cancelled",
        "_forks",
        "_outcome",
        "_settling",
        "_used",
        "claim",
        "limit_set",
        "lost_lease",
    )

    def __init__(self, limit_set: LimitSet, claim: Claim) -> None:
        self.limit_set = limit_set
        self.claim = claim
        self._used: Sequence[int] = ()
        self._outcome: tuple[object, Outcome] | None = None
        self._cancelled = False
        self._settling = False
        self._forks = PROCESS.forks
        self.lost_lease = False
        """Whether a lease ran out while it was held, so that others may hold the permits."""

    def __bool__(self) -> bool:
        return self.claim.admitted is True

    def __repr__(self) -> str:
        state = {None: "undecided", True: "released" if self.claim.settled else "admitted", False: "rejected"}
        amounts = ", ".join(f"{key}={use.requested}" for key, use in self.acquisitions.items())
        return f"<Acquisition {state[self.claim.admitted]}: {amounts}>"

    @property
    def successful(self) -> bool:
        """Whether the amounts are held, or were until they were released."""
        return self.claim.admitted is True

    @property
    def config(self) -> dict[str, object]:
        """A copy of the configuration of the limit set that decided on the request."""
        return self.limit_set.config

    @property
    def outcome(self) -> Outcome:
        """The decision and its reasons."""
        # A store decides several times on a request that waits.
        if self._outcome is None or self._outcome[0] is not self.claim.states:
            self._outcome = self.claim.states, outcome_of(self.claim)
        return self._outcome[1]

    @property
    def acquisitions(self) -> dict[str, LimitUse]:
        """The requested and used amounts by key; a rejected request has used nothing, whatever was reported."""
        used = self._used if self.claim.admitted else ()
        return {
            limit.key: LimitUse(units_of(limit.rule, self.claim.amounts[limit.place]), _units_used(limit, used))
            for limit in self.claim.plan.limits
        }

    @property
    def fences(self) -> dict[str, int]:
        """A number for each resource limit that grows with each grant; other systems reject late holders by it."""
        if not self.claim.admitted:
            return {}
        return {limit.key: state[2] for limit, _, state in self.claim.limits() if limit.rule.is_permit}

    def update(self, usage: Mapping[str, Amount]) -> None:
        """Report the amounts that were used, by key; the last report of a key counts.

        All keys are checked before any of them is recorded. More than requested of a rate is recorded as debt, with a
        warning; of permits it is only a warning; a key that was not requested is skipped, with a warning. For a
        rejected request nothing is recorded.
        Raises InvalidRequest (a ValueError) for an invalid amount, and AlreadyReleased (a RuntimeError) after release.
        """
        if self.claim.settled:
            raise AlreadyReleased("the acquisition was released: report usage before that")
        if type(usage) is not dict and not isinstance(usage, Mapping):
            raise InvalidRequest(f"usage must map keys to amounts, not {shown(usage)}")
        amounts = self.claim.amounts
        recorded = list(self._used) if self._used else [-1] * len(amounts)
        for key, used in usage.items():
            limits = self.claim.plan.by_key.get(key)
            if limits is None:
                check_amounts("usage", {key: used})
                self.limit_set.skip_unknown(key, reported=True)
                continue
            for limit in limits:
                parts = parts_of(limit, used)
                if parts > amounts[limit.place]:
                    self._check_overuse(limit, amounts[limit.place], used)
                recorded[limit.place] = parts
        self._used = recorded

    def release(self) -> None:
        """Settle the reported usage and return permits; later calls do nothing. Amounts not reported stay spent."""
        self._release(refunds_unreported=False)

    def cancel(self) -> None:
        """Return permits, and refund amounts whose usage was not reported, as a block that raises does.

        Amounts are refunded where the algorithm can; single calls stay charged. No usage has to be reported.
        """
        self._release(refunds_unreported=True)
        self._cancelled = True

    async def arelease(self) -> None:
        """`release` for asyncio."""
        await self._arelease(refunds_unreported=False)

    async def acancel(self) -> None:
        """`cancel` for asyncio."""
        await self._arelease(refunds_unreported=True)
        self._cancelled = True

    def __enter__(self) -> Self:
        if self.claim.plan.permits:
            enter_block(self.claim)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.claim.plan.permits:
            leave_block(self.claim)
        try:
            self._release(refunds_unreported=kind is not None)
        except Exception:
            if kind is None:
                raise
            logger.warning(_NOT_REFUNDED, exc_info=True)
        if kind is None and self.claim.plan.must_report:
            self._check_reported()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.claim.plan.permits:
            leave_block(self.claim)
        try:
            await self._arelease(refunds_unreported=kind is not None)
        except Exception:
            if kind is None:
                raise
            logger.warning(_NOT_REFUNDED, exc_info=True)
        if kind is None:
            self._check_reported()

    def track(self) -> None:
        """Renew the permits that the store has just leased, if any, until they are returned."""
        if self.claim.plan.permits:
            self.limit_set.store.renewer.add(self.claim)

    def on_lease_lost(self) -> None:
        """Warn once that a lease ran out while it was held, and call the hooks."""
        with _REPORTING:
            if self.lost_lease:
                return
            self.lost_lease = True
        keys = ", ".join(sorted(self.claim.plan.permit_keys))
        logger.warning("the lease of %s ran out while it was held: other holders may have the permit now", keys)
        for hook in HOOKS.lease_lost:
            try:
                hook(self)
            except Exception:
                logger.exception("a lease_lost hook failed")

    def _release(self, *, refunds_unreported: bool) -> None:
        claim = self.claim
        if claim.plan.needs_settling or self._used:
            changes = self._changes(refunds_unreported)
            if changes is not None:
                self.limit_set.store.settle(claim, changes)
        if not self._settling:
            claim.settled = True

    async def _arelease(self, *, refunds_unreported: bool) -> None:
        store = self.limit_set.store
        if not is_remote(store):
            self._release(refunds_unreported=refunds_unreported)
            return
        changes = self._changes(refunds_unreported)
        if changes is not None:
            self._settling = True
            try:
                await store.asettle(self.claim, changes)
            except Exception:
                self._settling = False
                raise
            self._settling = False
        # A task that was cancelled meanwhile has left settling to the store.
        if not self._settling:
            self.claim.settled = True

    def _changes(self, refunds_unreported: bool) -> Amounts | None:
        """Return the changes to settle, None where there is nothing to do; permits are not renewed from here on.

        A forked child has nothing to do: its parent holds the amounts and releases them.
        """
        claim = self.claim
        if claim.settled or not claim.admitted or self._settling or self._forks != PROCESS.forks:
            return None
        plan = claim.plan
        changes = plan.changes(self._used, claim.amounts, refunds_unreported=refunds_unreported)
        if plan.permits:
            self.limit_set.store.renewer.discard(claim)
            return changes
        return changes if any(changes) else None

    def _check_reported(self) -> None:
        """Raise UsageNotReported where usage had to be reported and was not."""
        if self.claim.admitted and not self._cancelled:
            used, reporting = self._used, self.claim.plan.reporting
            for limit in reporting:
                if not used or used[limit.place] < 0:
                    raise UsageNotReported(sorted({one.key for one in reporting if not used or used[one.place] < 0}))

    def _check_overuse(self, limit: PlannedLimit, amount: int, used: Amount) -> None:
        requested = units_of(limit.rule, amount)
        if isinstance(limit.rule.limit, CallLimit):
            raise InvalidRequest(f"usage of {limit.key!r} must be between 0 and the {requested} requested, not {used}")
        if self.claim.admitted:
            effect = "the rest is not counted" if limit.rule.is_permit else "the rest is recorded as debt"
            logger.warning("%s: %s used, but only %s requested: %s", limit.key, used, requested, effect)


def _units_used(limit: PlannedLimit, used: Sequence[int]) -> Amount | None:
    return units_of(limit.rule, used[limit.place]) if used and used[limit.place] >= 0 else None


class FreeAcquisition(Acquisition):
    """The acquisition of an empty set, which all callers share: it holds nothing, so there is nothing to settle."""

    __slots__ = ()

    def __init__(self, limit_set: LimitSet, plan: Plan) -> None:
        super().__init__(limit_set, Claim(plan, ()))
        self.claim.admitted = True

    def update(self, usage: Mapping[str, Amount]) -> None:
        """Record nothing; InvalidRequest for invalid usage."""
        check_amounts("usage", usage)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the block; there is nothing to release."""

    def _release(self, *, refunds_unreported: bool) -> None:
        """Release nothing."""

    async def _arelease(self, *, refunds_unreported: bool) -> None:
        """Release nothing."""

"""Acquisitions: amounts that a limit set hands out, held until they are settled and released exactly once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from threading import Lock
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Final, Self

from limits_app.acquiring.extension import LimitsSource, aextend, extend
from limits_app.acquiring.leases import enter_block, leave_block
from limits_app.acquiring.reported import charged_for, record_usage, requested_of, shares, units_used, unreported_keys
from limits_app.acquiring.runtime import PROCESS
from limits_app.acquiring.store import is_remote
from limits_app.engine import mypyc_attr
from limits_app.engine.amounts import Amount, shown
from limits_app.engine.errors import AlreadyReleased, InvalidRequest, UsageNotReported
from limits_app.engine.keys import IDEMPOTENCY_LEVEL
from limits_app.engine.modes import HOOKS
from limits_app.engine.outcome import LimitUse, Outcome, outcome_of, units_of
from limits_app.engine.plan import Claim

if TYPE_CHECKING:
    from limits_app.acquiring.limit_set import LimitSet

logger = logging.getLogger("limits_app")

_REPORTING: Final = Lock()
_NOT_REFUNDED: Final = "the amounts of a block that raised could not be refunded"


@mypyc_attr(allow_interpreted_subclasses=True)
class Acquisition:
    """Amounts that are held, or their rejection; `claim` is the request with the decision of the store.

    Falsy when rejected, and then harmless: it holds nothing and refunds nothing.
    As a context manager, also asynchronous, it releases when the block ends, and then raises UsageNotReported (a
    RuntimeError) for a rate limit whose usage was not reported.
    When the block raises, the caller receives that exception: amounts that were not reported are refunded where the
    algorithm can.
    """

    requested: Mapping[str, Amount] = MappingProxyType({})
    """The requested amounts by key."""
    reports: Mapping[str, object] = MappingProxyType({})
    """The reported use by key."""
    used: Sequence[int] = ()
    """The reported use in parts, by place, also of what extensions charged; -1 where none was reported."""
    is_repeated = False
    """Whether its idempotency key was admitted before, so that it holds only permits and extensions."""
    entered = False
    """Whether the block of the acquisition runs."""
    lost_lease = False
    """Whether a lease ran out while it was held, so that others may hold the permits."""
    _config: dict[str, object] | None = None
    _outcome: tuple[object, Outcome] | None = None
    _cancelled = False
    _releasing = False  # from the first call of a release on, even if that fails
    _settling = False  # while a task waits for the store, which settles the claim even if the task is cancelled

    def __init__(self, limit_set: LimitSet, claim: Claim) -> None:
        self.limit_set = limit_set
        self.claim = claim
        self.source: LimitsSource | None = None  # not in the class: compiled code would not set it
        self.requires_usage = limit_set.require_usage
        """Whether a block must report the usage of rates; if not, what was not reported counts as used as requested."""
        self.extensions: list[Acquisition] = []
        """What `extend` has acquired, also while the store decides on it."""
        self._forks = PROCESS.forks

    def __bool__(self) -> bool:
        return self.claim.admitted is True

    def __repr__(self) -> str:
        state = {None: "undecided", True: "released" if self.claim.released else "admitted", False: "rejected"}
        amounts = ", ".join(f"{key}={use.requested}" for key, use in self.acquisitions.items())
        return f"<Acquisition {state[self.claim.admitted]}: {amounts}>"

    @property
    def successful(self) -> bool:
        """Whether the amounts are held, or were until they were released."""
        return self.claim.admitted is True

    @property
    def is_released(self) -> bool:
        """Whether the amounts were released, or are being released, or belong to the process that forked this one."""
        return self._releasing or self.claim.released or self._forks != PROCESS.forks

    @property
    def must_settle(self) -> bool:
        """Whether its release settles something, or returns permits."""
        return bool(self.claim.shape.needs_settling or self.used or self.extensions)

    @property
    def config(self) -> dict[str, object]:
        """A copy of the configuration of the limit set that decided on the request, the same one each time."""
        if self._config is None:
            self._config = self.limit_set.config
        return self._config

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
        uses: dict[str, LimitUse] = {}
        for part in self.parts():
            for limit in part.claim.shape.limits:
                if limit.level == IDEMPOTENCY_LEVEL:
                    continue
                if limit.is_sum:
                    for key in limit.keys:
                        used = self.reports.get(key) if self.successful else None
                        use = LimitUse(requested_of(self, limit, key), used)  # type: ignore[arg-type]  # a number
                        uses.setdefault(key, use)
                else:
                    uses[limit.key] = LimitUse(
                        units_of(limit.rule, charged_for(self, part, limit)), units_used(part, limit)
                    )
        return uses

    @property
    def fences(self) -> dict[str, int]:
        """A number for each resource limit that grows with each grant; other systems reject late holders by it."""
        if not self.claim.admitted:
            return {}
        held = [one for part in self.parts() for one in part.claim.limits()]
        return {limit.key: state[2] for limit, _, state in held if limit.rule.is_permit}

    def parts(self) -> Sequence[Acquisition]:
        """Return this acquisition and its extensions that were admitted, in the order in which they were charged."""
        if not self.extensions:
            return (self,)
        return (self, *[one for one in self.extensions if one.claim.admitted and one.used])

    def extend(self, requested: Mapping[str, Amount]) -> None:
        """Take more of the named limits, all or nothing, without waiting: for streams and agents.

        The amounts belong to this acquisition: `update` reports the use of all of them together, and `release` and
        `cancel` settle all of them. More permits are renewed and returned with the first ones. In a pool, the same
        member serves the extension. What is not named is not charged.
        Raises LimitExceeded with the outcome when a limit rejects it (nothing is charged), NeverAdmissible for more
        than a limit can ever admit, AlreadyReleased after release, InvalidRequest for invalid amounts, and
        StoreUnavailable while the store that admitted the first amounts is unavailable.
        """
        extend(self, requested)

    async def aextend(self, requested: Mapping[str, Amount]) -> None:
        """`extend` for asyncio."""
        await aextend(self, requested)

    def update(self, usage: Mapping[str, Amount]) -> None:
        """Report the amounts that were used, by key; the last report of a key counts.

        All keys are checked before any of them is recorded. More than requested of a rate is recorded as debt, with a
        warning; of permits it is only a warning; a key that was not requested is skipped, with a warning. For a
        rejected request nothing is recorded.
        Raises InvalidRequest (a ValueError) for an invalid amount, and AlreadyReleased (a RuntimeError) after release.
        """
        if self.claim.released:
            raise AlreadyReleased("the acquisition was released: report usage before that")
        if type(usage) is not dict and not isinstance(usage, Mapping):
            raise InvalidRequest(f"usage must map keys to amounts, not {shown(usage)}")
        record_usage(self, usage)

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
        self.entered = True
        if self.claim.shape.permits:
            enter_block(self.claim)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave_block()
        try:
            self._release(refunds_unreported=kind is not None)
        except Exception:
            if kind is None:
                raise
            logger.warning(_NOT_REFUNDED, exc_info=True)
        if kind is None and (self.claim.shape.must_report or self.extensions):
            self._check_reported()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave_block()
        try:
            await self._arelease(refunds_unreported=kind is not None)
        except Exception:
            if kind is None:
                raise
            logger.warning(_NOT_REFUNDED, exc_info=True)
        if kind is None and (self.claim.shape.must_report or self.extensions):
            self._check_reported()

    def track(self) -> None:
        """Renew the permits that the store has just leased, if any, until they are returned."""
        if self.claim.shape.permits:
            self.limit_set.store.renewer.add(self.claim)

    def on_lease_lost(self) -> None:
        """Warn once that a lease ran out while it was held, and call the hooks."""
        with _REPORTING:
            if self.lost_lease:
                return
            self.lost_lease = True
        keys = ", ".join(sorted({key for part in self.parts() for key in part.claim.shape.permit_keys}))
        logger.warning("the lease of %s ran out while it was held: other holders may have the permit now", keys)
        for hook in HOOKS.lease_lost:
            try:
                hook(self)
            except Exception:
                logger.exception("a lease_lost hook failed")

    def _release(self, *, refunds_unreported: bool) -> None:
        if not self.must_settle:
            self.claim.settled = True
            return
        self._releasing = True
        if not self.extensions:
            self._settle(self.used, refunds_unreported)
            return
        with ExitStack() as stack:  # all parts are settled, also when one of them raises
            for part, used in reversed(shares(self)):
                stack.callback(part._settle, used, refunds_unreported)

    async def _arelease(self, *, refunds_unreported: bool) -> None:
        self._releasing = True
        if not self.extensions:
            await self._asettle(self.used, refunds_unreported)
            return
        async with AsyncExitStack() as stack:
            for part, used in reversed(shares(self)):
                stack.push_async_callback(part._asettle, used, refunds_unreported)

    def _settle(self, used: Sequence[int], refunds_unreported: bool) -> None:
        """Settle this part of the acquisition, of which so much was used, and return its permits."""
        changes = self._changes(used, refunds_unreported)
        if changes is not None:
            self.limit_set.store.settle(self.claim, changes)

    async def _asettle(self, used: Sequence[int], refunds_unreported: bool) -> None:
        """`_settle` for asyncio."""
        store = self.limit_set.store
        if not is_remote(store):
            self._settle(used, refunds_unreported)
            return
        changes = self._changes(used, refunds_unreported)
        if changes is not None:
            self._settling = True
            try:
                await store.asettle(self.claim, changes)
            except Exception:
                self._settling = False
                raise
            self._settling = False

    def _changes(self, used: Sequence[int], refunds_unreported: bool) -> Sequence[int] | None:
        """Return the changes to settle, None where there is nothing to do; permits are not renewed from here on.

        A forked child has nothing to do: its parent holds the amounts and releases them.
        """
        claim = self.claim
        if claim.released or self._settling:
            return None
        if claim.admitted and self._forks == PROCESS.forks:
            shape = claim.shape
            changes = shape.changes(
                used, claim.amounts, refunds_unreported=refunds_unreported, is_extended=bool(self.extensions)
            )
            if shape.permits:
                self.limit_set.store.renewer.discard(claim)
                return changes
            if any(changes):
                return changes
        claim.settled = True
        return None

    def _leave_block(self) -> None:
        self.entered = False
        for part in self.parts():
            if part.claim.shape.permits:
                leave_block(part.claim)

    def _check_reported(self) -> None:
        """Raise UsageNotReported where usage had to be reported and was not."""
        if self.claim.admitted and self.requires_usage and not self._cancelled:
            missing = unreported_keys(self)
            if missing:
                raise UsageNotReported(missing)

"""Acquisitions: amounts that a limit set hands out, held until they are settled and released once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self
from weakref import ref

from limits_app.acquiring.blocks import enter_block
from limits_app.acquiring.bound_limits import BoundLimits
from limits_app.acquiring.extending import Extending, LimitsSource
from limits_app.acquiring.held_part import HeldPart
from limits_app.acquiring.held_parts import Companion, HeldParts
from limits_app.acquiring.reported_use import unreported, uses_by_key
from limits_app.acquiring.runtime import lock_over_forks
from limits_app.engine import (
    LEASE_LEVEL,
    NOTHING,
    Amounts,
    GivenAmount,
    LimitUse,
    is_extension_holder,
    present,
    shown,
)
from limits_app.engine.errors import (
    AlreadyReleased,
    InvalidRequest,
    LimitExceeded,
    UsageNotReported,
)
from limits_app.engine.outcome import Outcome

logger = logging.getLogger("limits_app")

_REPORTING: Final = lock_over_forks()
_NOT_REFUNDED: Final = "the amounts of a block that raised could not be refunded"


class Acquisition(HeldPart):
    """Amounts that are held, or their rejection: the claim of a request, with the decision of the store.

    Falsy when rejected, and then harmless: it holds nothing and refunds nothing.
    As a context manager, also asynchronous, it releases when the block ends, and then raises UsageNotReported (a
    RuntimeError) for a rate limit whose usage was not reported.
    When the block raises, the caller receives that exception: amounts that were not reported are refunded where the
    algorithm can.
    """

    requires_usage: bool | None = None
    """Whether a block must report the usage of rates; None: as the limit set says. If not, what was not reported counts
    as used as requested."""
    lost_lease = False
    """Whether a lease ran out while it was held, so that others may hold the permits."""
    source: LimitsSource[Acquisition] | None = None
    _in_block = False
    _parts: HeldParts[Acquisition] | None = None
    """Its parts and companion; None while it is alone."""
    _config: dict[str, object] | None = None

    @classmethod
    def held_elsewhere(
        cls,
        limit_set: BoundLimits,
        requested: Mapping[str, GivenAmount],
        amounts: Amounts,
        *,
        holder: bytes,
        decided_at: int,
    ) -> Self:
        """Return what a token holds, or an extension of it, as a store has admitted it.

        `amounts` are the charged ones in parts, `holder` and `decided_at` those of the claim.
        Raises InvalidRequest where other limits were charged.
        """
        is_extension = is_extension_holder(holder)
        plan = limit_set.extension_plan(requested) if is_extension else limit_set.whole_plan(requested)
        if len(amounts) != len(plan.shape.limits):
            raise InvalidRequest("the limits of the set are not those that were charged")
        acquisition = cls(limit_set, plan, amounts, requested)
        acquisition.admitted, acquisition.holder, acquisition.decided_at = True, holder, decided_at
        return acquisition

    def adopt(self, extension: Acquisition) -> None:
        """Make an extension that is held elsewhere a part."""
        extension.extends = ref(self)
        self._several().add(extension)

    def __bool__(self) -> bool:
        return self.admitted is True

    def __repr__(self) -> str:
        state = {None: "undecided", True: "released" if self.released else "admitted", False: "rejected"}
        amounts = ", ".join(f"{key}={use.requested}" for key, use in self.acquisitions.items())
        return f"<Acquisition {state[self.admitted]}: {amounts}>"

    def __copy__(self) -> Self:
        """Return the acquisition itself: it is held, and settled, once."""
        return self

    @property
    def is_repeated(self) -> bool:
        """Whether its idempotency key was admitted before, so that it holds only permits and extensions."""
        return self._parts is not None and self._parts.is_repeated

    @property
    def extensions(self) -> tuple[Acquisition, ...]:
        """What `extend` has acquired, in the order in which it was charged."""
        return () if self._parts is None else self._parts.extensions

    @property
    def companion(self) -> Companion | None:
        """What is updated, extended and released with it."""
        return None if self._parts is None else self._parts.companion

    def _several(self) -> HeldParts[Acquisition]:
        """Return its parts, which are reported and released together from now on."""
        parts = self._parts
        if parts is None:
            parts = HeldParts(self)
            # Without a call in between, so that another thread cannot set others meanwhile.
            if self._parts is None:
                self._parts, self._is_alone = parts, False
        return self._parts or parts

    @property
    def must_settle(self) -> bool:
        """Whether its release settles something, or returns permits."""
        if self.shape.needs_settling or self.used:
            return True
        return self._parts is not None and self._parts.must_settle

    def release_unless_held(self) -> bool:
        """Release it if its release settles nothing, and returns no permits; return whether it is still held."""
        if self._is_alone and not (self.shape.needs_settling or self.used):
            self.settled = True
            return False
        if not self.must_settle:
            self.release()
        return self.must_settle

    def mark_repeated(self) -> None:
        """Note that its idempotency key was admitted before, so that the first request reports its amounts."""
        self._several().is_repeated = True

    def accompany(self, companion: Companion) -> None:
        """Update, extend and release a companion with it from now on."""
        self._several().companion = companion

    @property
    def config(self) -> dict[str, object]:
        """A copy of the configuration of the limit set that decided on the request, the same one each time."""
        if self._config is None:
            self._config = self.limit_set.config
        return self._config

    def _shown_with_companion(self, outcome: Outcome) -> Outcome:
        companion = self.companion
        return outcome if companion is None else companion.shown_in(outcome)

    @property
    def acquisitions(self) -> dict[str, LimitUse]:
        """The requested and used amounts by key; a rejected request has used nothing, whatever was reported."""
        return uses_by_key(self.parts(), self._reports())

    @property
    def fences(self) -> dict[str, int]:
        """A number for each resource limit that grows with each grant; other systems reject late holders by it."""
        if not self.admitted:
            return {}
        decisions = [decision for part in self.parts() for decision in part.decisions()]
        permits = [
            (limit.key, state) for limit, _, state in decisions if limit.is_permit and limit.level != LEASE_LEVEL
        ]
        return {key: state[2] for key, state in permits}

    def parts(self) -> Sequence[Acquisition]:
        """Return this acquisition and its extensions, in the order in which they were charged."""
        return (self,) if self._parts is None else self._parts.all()

    def _reports(self) -> Mapping[str, object]:
        """Return the reported use by key, where it is kept by key."""
        return NOTHING if self._parts is None else self._parts.reports

    def update(self, usage: Mapping[str, GivenAmount]) -> None:
        """Report the amounts that were used, by key; the last report of a key counts.

        All keys are checked before any of them is recorded. More than requested of a rate is recorded as debt, with a
        warning; of permits it is only a warning; a key that was not requested is skipped, with a warning. For a
        rejected request nothing is recorded.
        Raises InvalidRequest (a ValueError) for an invalid amount, and AlreadyReleased (a RuntimeError) after release.
        """
        if self.settled or self.put_off:
            raise AlreadyReleased("the acquisition was released: report usage before that")
        if type(usage) is not dict and not isinstance(usage, Mapping):
            raise InvalidRequest(f"usage must map keys to amounts, not {shown(usage)}")
        if self._is_alone:
            self.used = self.used_with(usage, usage)
        else:
            self._several().update(usage)

    def extend(self, requested: Mapping[str, GivenAmount], *, priority: str | None = None) -> None:
        """Take more of the named limits, all or nothing, without waiting: for streams and agents.

        The amounts belong to this acquisition: `update` reports the use of all of them together, and `release` and
        `cancel` settle all of them. More permits are renewed and returned with the first ones. In a pool, the same
        member serves the extension. What is not named is not charged. Prices are those of the extension's own time.
        `priority` is the class of the extension, by default that of the acquisition.
        Raises LimitExceeded with the outcome when a limit rejects it (nothing is charged), NeverAdmissible for more
        than a limit can ever admit, AlreadyReleased after release, InvalidRequest for invalid amounts, and
        StoreUnavailable while the store that admitted the first amounts is unavailable.
        """
        extending = Extending(self._several(), self.source, requested, priority)
        self._continue_block(extending.charge())
        if self.companion is not None:
            self.companion.extend(extending.requested)

    async def aextend(self, requested: Mapping[str, GivenAmount], *, priority: str | None = None) -> None:
        """`extend` for asyncio."""
        extending = Extending(self._several(), self.source, requested, priority)
        self._continue_block(await extending.acharge())
        if self.companion is not None:
            await self.companion.aextend(extending.requested)

    def release(self) -> None:
        """Settle the reported usage and return permits; later calls do nothing. Amounts not reported stay spent."""
        self._release(False)

    def cancel(self) -> None:
        """Return permits, and refund amounts whose usage was not reported, as a block that raises does.

        Amounts are refunded where the algorithm can; single calls stay charged. No usage has to be reported.
        """
        self._release(True)
        self.requires_usage = False

    def undo(self, *, has_run: bool = False) -> None:
        """Return permits, and refund all amounts with every algorithm, as if nothing had been charged.

        Usage is not counted either. Later calls do nothing. Amounts that have returned meanwhile are not refunded.
        Where its request `has_run`, requests that were in use before it may have been undone meanwhile: then all that
        has drained since counts as returned, so that buckets are never refunded too much.
        """
        if self._is_ending:
            return
        self._is_ending = True
        try:
            self._several().undo(has_run=has_run)
        except BaseException:
            self._is_ending = False
            raise

    async def arelease(self) -> None:
        """`release` for asyncio."""
        await self._arelease(refunds_unreported=False)

    async def acancel(self) -> None:
        """`cancel` for asyncio."""
        await self._arelease(refunds_unreported=True)
        self.requires_usage = False

    def __enter__(self) -> Self:
        self._in_block = True
        if self.shape.permits:
            self._blocks = enter_block(self, self.limit_set)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shape = self.shape
        if not self._is_alone:
            self.leave_block()
        elif shape.permits:
            self._blocks.pop(self.number, None)
        try:
            self._release(kind is not None)
        except Exception:
            if kind is None:
                raise
            logger.warning(_NOT_REFUNDED, exc_info=True)
        if kind is None and not (self._is_alone and (not shape.reporting or shape.is_reported(self.used))):
            self._check_reported()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._in_block:
            self.leave_block()
        try:
            await self._arelease(refunds_unreported=kind is not None)
        except Exception:
            if kind is None:
                raise
            logger.warning(_NOT_REFUNDED, exc_info=True)
        if kind is None:
            self._check_reported()

    def enter_block(self, *, elsewhere: bool = False) -> None:
        """Begin a block: the running thread or task does not take the permits again.

        `elsewhere` is for a block that may run in another thread or task, as a view does after its middleware.
        """
        self._in_block = True
        for part in self.parts():
            part.hold_in_block(elsewhere=elsewhere)

    def leave_block(self) -> None:
        """End the block."""
        self._in_block = False
        for part in self.parts():
            part.leave_own_block()

    def _continue_block(self, extension: Acquisition) -> None:
        """Hold the permits of an extension in the block of the acquisition."""
        if self._in_block:
            extension.hold_in_block()

    def lose_lease(self) -> None:
        """Warn once that a lease ran out while it was held, and notify the surrounding program."""
        if self.extends is not None:
            extended = self.extends()
            if extended is not None:
                extended.lose_lease()
            return
        with _REPORTING:
            if self.lost_lease:
                return
            self.lost_lease = True
        keys = ", ".join(sorted({key for part in self.parts() for key in part.shape.permit_keys}))
        logger.warning("the lease of %s ran out while it was held: other holders may have the permit now", keys)
        try:
            present().lease_lost(self)
        except Exception:
            logger.exception("the notification of a lost lease failed")

    def _release(self, refunds_unreported: bool) -> None:
        if not (self.shape.needs_settling or self.used) and self._is_alone:
            self.settled = True
            return
        if self._is_ending:
            return
        self._is_ending = True
        try:
            if self._is_alone:
                changes = self.changes(self.used, refunds_unreported)
                if changes is not None:
                    self.limit_set.store.settle(self, changes)
            else:
                self._several().release(refunds_unreported)
        except BaseException:
            self._is_ending = False
            raise

    async def _arelease(self, *, refunds_unreported: bool) -> None:
        if self._is_ending:
            return
        self._is_ending = True
        try:
            if self._is_alone:
                await self.asettle(self.used, refunds_unreported)
            else:
                await self._several().arelease(refunds_unreported)
        except (Exception, KeyboardInterrupt, SystemExit):  # a store settles all the same for a task that is cancelled
            self._is_ending = False
            raise

    def _check_reported(self) -> None:
        """Raise UsageNotReported where usage had to be reported and was not."""
        is_required = self.limit_set.require_usage if self.requires_usage is None else self.requires_usage
        if is_required and self.admitted and (missing := unreported(self.parts(), self._reports())):
            raise UsageNotReported(missing)


def rejected_acquisition(error: BaseException) -> Acquisition | None:
    """Return the acquisition whose rejection an error reports; None where it is not known, as in another process."""
    refused = error.refused if isinstance(error, LimitExceeded) else None
    return refused if isinstance(refused, Acquisition) else None

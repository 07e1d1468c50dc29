"""Acquisitions: amounts that a limit set hands out, held until they are settled and released once."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from types import TracebackType
from typing import Final, Protocol, Self, cast
from weakref import ref

from limits_app.acquiring.blocks import Block, enter_block
from limits_app.acquiring.bound_limits import BoundLimits
from limits_app.acquiring.extension_shares import shares, used_before, used_of_sums
from limits_app.acquiring.reported_use import (
    UsageReport,
    beyond_first_request,
    is_requested,
    is_unrequested,
    unreported,
    uses_by_key,
)
from limits_app.acquiring.runtime import PROCESS, lock_over_forks
from limits_app.acquiring.store import is_remote
from limits_app.engine import (
    LEASE_LEVEL,
    NOTHING,
    Amounts,
    Bucket,
    Claim,
    GivenAmount,
    LimitUse,
    PlannedLimit,
    ReportedUse,
    RequestPlan,
    Scope,
    State,
    class_named,
    extension_holder,
    is_extension_holder,
    is_token_holder,
    of_its_class,
    outcome_of,
    present,
    shown,
)
from limits_app.engine.errors import (
    AlreadyReleased,
    InvalidRequest,
    LimitExceeded,
    NeverAdmissible,
    StaleConfiguration,
    UsageNotReported,
)
from limits_app.engine.outcome import Outcome

logger = logging.getLogger("limits_app")

_REPORTING: Final = lock_over_forks()
NOTHING_USED: Final[ReportedUse] = {}
_NO_BLOCKS: Final[dict[int, Block]] = {}
_NOT_REFUNDED: Final = "the amounts of a block that raised could not be refunded"


class LimitsSource(Protocol):
    """Where the limits of an acquisition come from, when they are resolved from a configuration."""

    def is_over(self, limits: BoundLimits) -> bool:
        """Whether the time of limits is over, since a date, or another price, has come."""

    def latest(self, stale: BoundLimits) -> BoundLimits:
        """Return the limits that replace those of an acquisition, since the configuration has changed."""

    async def alatest(self, stale: BoundLimits) -> BoundLimits:
        """`latest` for asyncio."""

    def report(self, extension: Acquisition, *, in_task: bool) -> None:
        """Count and report the decision on an extension."""


class Companion(Protocol):
    """What is updated, extended and released together with an acquisition, and shown in its outcome."""

    @property
    def must_settle(self) -> bool:
        """Whether its release settles something."""

    def shown_in(self, outcome: Outcome) -> Outcome:
        """Return the outcome of the acquisition with that of the companion."""

    def update(self, usage: Mapping[str, GivenAmount]) -> None:
        """See `Acquisition.update`."""

    def extend(self, requested: Mapping[str, GivenAmount]) -> None:
        """See `Acquisition.extend`."""

    async def aextend(self, requested: Mapping[str, GivenAmount]) -> None:
        """`extend` for asyncio."""

    def end(self, *, refunds_unreported: bool) -> None:
        """Release or cancel it."""

    async def aend(self, *, refunds_unreported: bool) -> None:
        """`end` for asyncio."""

    def undo(self, *, has_run: bool) -> None:
        """See `Acquisition.undo`."""


class Acquisition(Claim):
    """Amounts that are held, or their rejection: the claim of a request, with the decision of the store.

    Falsy when rejected, and then harmless: it holds nothing and refunds nothing.
    As a context manager, also asynchronous, it releases when the block ends, and then raises UsageNotReported (a
    RuntimeError) for a rate limit whose usage was not reported.
    When the block raises, the caller receives that exception: amounts that were not reported are refunded where the
    algorithm can.
    """

    # Those that every acquisition reads are its own: the interpreter finds them faster than defaults of the class.
    is_repeated = False
    """Whether its idempotency key was admitted before, so that it holds only permits and extensions."""
    extensions: tuple[Acquisition, ...] = ()
    """What `extend` has acquired, in the order in which it was charged."""
    companion: Companion | None = None
    requires_usage: bool | None = None
    """Whether a block must report the usage of rates; None: as the limit set says. If not, what was not reported counts
    as used as requested."""
    expects_overuse = False
    """Whether more than requested may be reported of every limit, since the use is known only afterwards."""
    lost_lease = False
    """Whether a lease ran out while it was held, so that others may hold the permits."""
    source: LimitsSource | None = None
    _in_block = False
    _blocks: dict[int, Block] = _NO_BLOCKS
    """The blocks of the thread or task that has entered a block of it last."""
    _extends: ref[Acquisition] | None = None
    """The acquisition of which an extension with permits is a part."""
    _reports: Mapping[str, object] = NOTHING
    """The reported use by key, where a limit adds up the amounts of several keys."""
    _config: dict[str, object] | None = None
    _outcome: tuple[object, Outcome] | None = None

    def __init__(
        self,
        limit_set: BoundLimits,
        plan: RequestPlan,
        amounts: Amounts,
        requested: Mapping[str, GivenAmount] = NOTHING,
    ) -> None:
        Claim.__init__(self, plan, amounts, limit_set.version)  # a third of the time that `super()` takes
        self.limit_set = limit_set
        self.requested = requested
        """The requested amounts by key."""
        self.used: ReportedUse = NOTHING_USED
        """The reported use, also of what extensions charged."""
        self._is_alone = not self.shape.has_sums
        """Whether each of its limits is settled by the use of one key, without extensions or a companion."""
        self._is_ending = False
        """Whether a release is on its way, or was done; a release that has failed may be repeated."""
        self._forks = PROCESS.forks

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
        extension._extends = ref(self)
        self.extensions, self._is_alone = (*self.extensions, extension), False

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
    def claim(self) -> Claim:
        """The acquisition as stores see it."""
        return self

    @property
    def successful(self) -> bool:
        """Whether the amounts are held, or were until they were released."""
        return self.admitted is True

    @property
    def is_released(self) -> bool:
        """Whether the amounts were released, or are being released, or belong to the process that forked this one."""
        return self._is_ending or self.released or self._forks != PROCESS.forks

    @property
    def holds_permits(self) -> bool:
        """Whether it takes permits, which are held until it is released."""
        return bool(self.shape.permits)

    @property
    def has_limits(self) -> bool:
        """Whether anything limits the request."""
        return bool(self.shape.limits)

    @property
    def is_blocked(self) -> bool:
        """Whether a scope of the request is blocked."""
        return self.shape.is_blocked

    @property
    def must_report(self) -> frozenset[str]:
        """The keys whose usage must be reported."""
        return self.shape.must_report

    @property
    def can_fit(self) -> bool:
        """Whether the limits can ever admit the amounts."""
        return self.fits

    @property
    def scopes(self) -> Sequence[Scope]:
        """The scopes in which it is counted."""
        return self.plan.scopes

    def limits(self) -> Iterator[tuple[PlannedLimit, Scope, State]]:
        """Iterate over the limits with their scopes, and their states in the decision."""
        for limit, _, state in self.decisions():
            yield limit, self.plan.scopes[limit.scope_index], state

    def rejecting(self) -> set[Bucket]:
        """Return the buckets that have rejected it; empty when it was admitted."""
        return set() if self.admitted else {*self.refusal()[0]}

    @property
    def must_settle(self) -> bool:
        """Whether its release settles something, or returns permits."""
        if self.shape.needs_settling or self.used or self.extensions:
            return True
        return self.companion is not None and self.companion.must_settle

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
        self.is_repeated, self._is_alone = True, False

    def accompany(self, companion: Companion) -> None:
        """Update, extend and release a companion with it from now on."""
        self.companion, self._is_alone = companion, False

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
        if self._outcome is None or self._outcome[0] is not self.states:
            self._outcome = self.states, outcome_of(self)
        outcome = self._outcome[1]
        return outcome if self.companion is None else self.companion.shown_in(outcome)

    @property
    def acquisitions(self) -> dict[str, LimitUse]:
        """The requested and used amounts by key; a rejected request has used nothing, whatever was reported."""
        return uses_by_key(self.parts(), self._reports)

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
        return (self, *self.extensions) if self.extensions else (self,)

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
            self.used = self._used_with(self, usage, usage)
            return
        own = beyond_first_request(self.extensions, self.requested, usage) if self.is_repeated else usage
        parts = self.parts()
        reports = {**self._reports, **{key: own[key] for key in own if is_requested(parts, key)}}
        for part, used in zip(parts, [self._used_with(part, own, reports) for part in parts], strict=True):
            part.used = {**used, **used_of_sums(parts, part, reports)}
        self._reports = reports
        if self.companion is not None:
            self.companion.update(usage)

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
        limits, requested = self.limit_set, self._of_class(requested, priority)
        if self._is_replaced(limits):
            limits = cast("LimitsSource", self.source).latest(limits)
        while (extension := self._extended(limits, requested)) is None:
            limits = cast("LimitsSource", self.source).latest(limits)
        if self.is_released:  # by another thread, which may not have seen the extension
            extension.give_up()
        self._report_extension(extension, in_task=False)
        if self.companion is not None:
            self.companion.extend(requested)

    async def aextend(self, requested: Mapping[str, GivenAmount], *, priority: str | None = None) -> None:
        """`extend` for asyncio."""
        limits, requested = self.limit_set, self._of_class(requested, priority)
        if self._is_replaced(limits):
            limits = await cast("LimitsSource", self.source).alatest(limits)
        while (extension := await self._aextended(limits, requested)) is None:
            limits = await cast("LimitsSource", self.source).alatest(limits)
        if self.is_released:  # by another task, which may not have seen the extension
            await extension._asettle(NOTHING_USED, True, refunds_all=True)
        self._report_extension(extension, in_task=True)
        if self.companion is not None:
            await self.companion.aextend(requested)

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
            with ExitStack() as stack:
                if self.companion is not None:
                    stack.callback(self.companion.undo, has_run=has_run)
                for part in self.parts():
                    part.undoes, part.has_run = True, has_run
                    stack.callback(part._settle, NOTHING_USED, True, refunds_all=True)
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
            if part.shape.permits:
                part._blocks = enter_block(part, part.limit_set, elsewhere=elsewhere)

    def leave_block(self) -> None:
        """End the block."""
        self._in_block = False
        for part in self.parts():
            if part.shape.permits:
                part._blocks.pop(part.number, None)

    def check_fits(self) -> None:
        """Raise NeverAdmissible for amounts that the limits can never admit."""
        if not self.fits:
            self.limit_set.store.peek(self)
            raise NeverAdmissible.of(self)

    async def acheck_fits(self) -> None:
        """`check_fits` for asyncio."""
        store = self.limit_set.store
        if not self.fits:
            await store.apeek(self) if is_remote(store) else store.peek(self)
            raise NeverAdmissible.of(self)

    def track(self) -> None:
        """Renew the permits that the store has just leased, if any, until they are returned."""
        if self.shape.permits:
            self.limit_set.store.renewer.add(self)

    def give_up(self) -> None:
        """Refund all amounts as well as possible, which no caller uses; errors of the store are logged."""
        try:
            self._settle(NOTHING_USED, True, refunds_all=True)
        except Exception:
            logger.warning("an acquisition could not be refunded after it was interrupted", exc_info=True)

    def lose_lease(self) -> None:
        """Warn once that a lease ran out while it was held, and notify the surrounding program."""
        if self._extends is not None:
            extended = self._extends()
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
        if self._is_alone and not (self.shape.needs_settling or self.used):
            self.settled = True
            return
        if self._is_ending:
            return
        self._is_ending = True
        try:
            if self._is_alone:
                changes = self._changes(self.used, refunds_unreported)
                if changes is not None:
                    self.limit_set.store.settle(self, changes)
                return
            with ExitStack() as stack:  # everything is settled, also when one part of it fails
                if self.companion is not None:
                    stack.callback(self.companion.end, refunds_unreported=refunds_unreported)
                for part, used in reversed(shares(self.parts())):
                    stack.callback(part._settle, used, refunds_unreported)
        except BaseException:
            self._is_ending = False
            raise

    async def _arelease(self, *, refunds_unreported: bool) -> None:
        if self._is_ending:
            return
        self._is_ending = True
        try:
            async with AsyncExitStack() as stack:
                if self.companion is not None:
                    stack.push_async_callback(self.companion.aend, refunds_unreported=refunds_unreported)
                for part, used in reversed(shares(self.parts())):
                    stack.push_async_callback(part._asettle, used, refunds_unreported)
        except (Exception, KeyboardInterrupt, SystemExit):  # a store settles all the same for a task that is cancelled
            self._is_ending = False
            raise

    def _settle(self, used: ReportedUse, refunds_unreported: bool, refunds_all: bool = False) -> None:
        """Settle this part of the acquisition, of which so much was used, and return its permits."""
        if self._is_over():
            return
        changes = self._changes(used, refunds_unreported, refunds_all)
        if changes is not None:
            self.limit_set.store.settle(self, changes)

    async def _asettle(self, used: ReportedUse, refunds_unreported: bool, refunds_all: bool = False) -> None:
        """`_settle` for asyncio."""
        if self._is_over():
            return
        changes, store = self._changes(used, refunds_unreported, refunds_all), self.limit_set.store
        if changes is not None:
            await store.asettle(self, changes) if is_remote(store) else store.settle(self, changes)

    def _is_over(self) -> bool:
        """Whether it extends what a token held, and the lease of that had ended when it was settled."""
        extended = None if self._extends is None else self._extends()
        return extended is not None and extended.is_over

    def _changes(self, used: ReportedUse, refunds_unreported: bool, refunds_all: bool = False) -> Sequence[int] | None:
        """End renewal, and return the changes to settle; None where there is nothing to do.

        A forked child has nothing to do: its parent holds the amounts and releases them.
        """
        if self.settled or self.put_off:
            return None
        if self.admitted and self._forks == PROCESS.forks:
            shape = self.shape
            if shape.permits:
                self.limit_set.store.renewer.claims.pop(self.number, None)
            if refunds_all:
                return [-amount for amount in self.amounts]
            if refunds_unreported:
                changes = shape.changes_of_cancel(used, self.amounts, is_extended=bool(self.extensions))
            else:
                changes = shape.changes(used, self.amounts)
            if shape.permits or any(changes):
                return changes
        self.settled = True
        return None

    def _check_reported(self) -> None:
        """Raise UsageNotReported where usage had to be reported and was not."""
        is_required = self.limit_set.require_usage if self.requires_usage is None else self.requires_usage
        if is_required and self.admitted and (missing := unreported(self.parts(), self._reports)):
            raise UsageNotReported(missing)

    def _used_with(
        self, part: Acquisition, usage: Mapping[str, object], reports: Mapping[str, object]
    ) -> dict[int, int]:
        """Return the use of a part with a report; raises InvalidRequest for an invalid amount.

        `reports` are the reported amounts by key, with those of earlier reports.
        """
        amounts, by_key = part.amounts, part.shape.by_key
        used = {**part.used} if part.used else {}
        for key in usage:
            amount = usage[key]
            if key not in by_key:
                if is_unrequested(self.parts(), key, amount):
                    self.limit_set.skip_unknown(key, reported=True)
                continue
            for limit in by_key[key]:
                parts = amount * limit.rule.parts_per_amount if type(amount) is int else -1
                if not 0 <= parts <= amounts[limit.position] or limit.adds_up:
                    report = UsageReport(part, limit, key, amount, expects_overuse=self.expects_overuse)
                    parts = report.checked_parts(self.parts(), reports)
                used[limit.position] = parts
        return used

    # Extensions.

    def _check_held(self) -> None:
        """Raise LimitExceeded where it was rejected, and AlreadyReleased where it was released."""
        if not self.successful:
            raise LimitExceeded.of(self)
        if self.is_released:
            raise AlreadyReleased("the acquisition was released: extend it before that")

    def _extended(self, limits: BoundLimits, requested: Mapping[str, GivenAmount]) -> Acquisition | None:
        """Charge an extension; None where a source has other limits by now."""
        try:
            extension = self._extension(limits, requested)
        except InvalidRequest:
            if self.source is None or not limits.is_outdated():
                raise
            return None
        try:
            extension.check_fits()
            if limits.store.acquire(extension):
                self._take_in(extension)
        except StaleConfiguration:
            if self.source is None:
                raise
            return None
        except BaseException:
            self._drop(extension)
            raise
        return extension

    async def _aextended(self, limits: BoundLimits, requested: Mapping[str, GivenAmount]) -> Acquisition | None:
        """`_extended` for asyncio."""
        store = limits.store
        try:
            extension = self._extension(limits, requested)
        except InvalidRequest:
            if self.source is None or not await limits.ais_outdated():
                raise
            return None
        try:
            await extension.acheck_fits()
            if await store.aacquire(extension) if is_remote(store) else store.acquire(extension):
                self._take_in(extension)
        except StaleConfiguration:
            if self.source is None:
                raise
            return None
        except BaseException:
            if not store.remote:  # a remote store refunds by itself what a cancelled task was charged
                self._drop(extension)
            raise
        return extension

    def _is_replaced(self, limits: BoundLimits) -> bool:
        """Whether a source has other limits by its clock."""
        return limits.changes_at is not None and self.source is not None and self.source.is_over(limits)

    def _of_class(self, requested: Mapping[str, GivenAmount], priority: str | None) -> Mapping[str, GivenAmount]:
        """Return the amounts of an extension with its class, where it or the acquisition names one."""
        priority = class_named(self.requested) if priority is None else priority
        return of_its_class(requested, priority)

    def _extension(self, limits: BoundLimits, requested: Mapping[str, GivenAmount]) -> Acquisition:
        """Return the request for an extension, undecided."""
        self._check_held()
        plan = limits.extension_plan(requested, class_named(requested))
        amounts, fits = plan.shape.amounts(requested)
        extension = Acquisition(limits, plan, amounts, requested)
        extension.fits = fits
        if is_token_holder(self.holder):
            extension.holder = extension_holder(self.holder)
        if extension.shape.permits:
            extension._extends = ref(self)
        return extension

    def _take_in(self, extension: Acquisition) -> None:
        """Make an extension that was admitted a part with the usage that was reported before, and renew its permits."""
        extension.used = used_before(self.parts(), extension)
        self.extensions, self._is_alone = (*self.extensions, extension), False
        self._add_up()
        if extension.shape.permits:
            extension.track()
            if self._in_block:
                extension._blocks = enter_block(extension, extension.limit_set)

    def _drop(self, extension: Acquisition) -> None:
        """Refund an extension that was interrupted."""
        extension.give_up()
        self.extensions = tuple([part for part in self.extensions if part is not extension])
        self._add_up()

    def _add_up(self) -> None:
        """Add up the use of several keys again: what an extension has requested counts as used until it is reported."""
        parts = self.parts()
        for part in parts if self._reports else ():
            part.used = {**part.used, **used_of_sums(parts, part, self._reports)}

    def _report_extension(self, extension: Acquisition, *, in_task: bool) -> None:
        """Report the decision on an extension; raise where it was rejected, or came too late."""
        if self.source is not None:
            self.source.report(extension, in_task=in_task)
        if not extension.successful:
            raise LimitExceeded.of(extension)
        self._check_held()


def rejected_acquisition(error: BaseException) -> Acquisition | None:
    """Return the acquisition whose rejection an error reports; None where it is not known, as in another process."""
    refused = error.refused if isinstance(error, LimitExceeded) else None
    return refused if isinstance(refused, Acquisition) else None

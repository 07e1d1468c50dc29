"""What is charged in one step and settled in another: the amounts of an acquisition, or of one of its extensions."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from weakref import ref

from limits_app.acquiring.blocks import Block, enter_block
from limits_app.acquiring.bound_limits import BoundLimits
from limits_app.acquiring.reported_use import UsageReport, is_unrequested
from limits_app.acquiring.runtime import PROCESS
from limits_app.acquiring.store import is_remote
from limits_app.engine import (
    NOTHING,
    Amounts,
    Bucket,
    Claim,
    GivenAmount,
    PlannedLimit,
    ReportedUse,
    RequestPlan,
    Scope,
    State,
    outcome_of,
)
from limits_app.engine.errors import NeverAdmissible
from limits_app.engine.outcome import Outcome

logger = logging.getLogger("limits_app")

_NOTHING_USED: Final[ReportedUse] = {}
_NO_BLOCKS: Final[dict[int, Block]] = {}
_init_claim: Final = Claim.__init__  # found faster than through `super()` or the class


class HeldPart(Claim):
    """Amounts that are charged and settled together, each in one step: a claim with its limits and its reported use."""

    # What every acquisition reads is its own: the interpreter finds that faster than defaults of the class.
    expects_overuse = False
    """Whether more than requested may be reported of every limit, since the use is known only afterwards."""
    is_extended = False
    """Whether it has extensions, which are settled with it."""
    extends: ref[Claim] | None = None
    """The acquisition of which an extension with permits is a part."""
    _blocks: dict[int, Block] = _NO_BLOCKS
    """The blocks of the thread or task that has entered a block of it last."""
    _decided: tuple[object, Outcome] | None = None
    """The states of the decision of which the outcome is kept, and the outcome."""

    def __init__(
        self,
        limit_set: BoundLimits,
        plan: RequestPlan,
        amounts: Amounts,
        requested: Mapping[str, GivenAmount] = NOTHING,
    ) -> None:
        _init_claim(self, plan, amounts, limit_set.version)
        self.limit_set = limit_set
        self.requested = requested
        """The requested amounts by key."""
        self.used: ReportedUse = _NOTHING_USED
        """The reported use, also of what extensions charged."""
        self._is_alone = not plan.shape.has_sums
        """Whether each of its limits is settled by the use of one key, without extensions or a companion."""
        self._is_ending = False
        """Whether a release is on its way, or was done; a release that has failed may be repeated."""
        self._forks = PROCESS.forks

    @property
    def claim(self) -> Claim:
        """The part as stores see it."""
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
    def outcome(self) -> Outcome:
        """The decision and its reasons."""
        # A store decides several times on a request that waits.
        if self._decided is None or self._decided[0] is not self.states:
            self._decided = self.states, outcome_of(self)
        return self._decided[1] if self._is_alone else self._shown_with_companion(self._decided[1])

    @abstractmethod
    def _shown_with_companion(self, outcome: Outcome) -> Outcome:
        """Return the outcome of this part with what accompanies it, if anything."""

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

    def hold_in_block(self, *, elsewhere: bool = False) -> None:
        """Have the running thread or task not take the permits again; see `Acquisition.enter_block`."""
        if self.shape.permits:
            self._blocks = enter_block(self, self.limit_set, elsewhere=elsewhere)

    def leave_own_block(self) -> None:
        """End the block, as far as it holds permits of this part."""
        self._blocks.pop(self.number, None)

    def used_with(
        self, usage: Mapping[str, object], reports: Mapping[str, object], parts: Sequence[HeldPart] = ()
    ) -> dict[int, int]:
        """Return the use of the part with a report; raises InvalidRequest for an invalid amount.

        `reports` are the reported amounts by key, with those of earlier reports. `parts` are those of the acquisition,
        where there are several.
        """
        amounts, by_key = self.amounts, self.shape.by_key
        used = {**self.used} if self.used else {}
        for key in usage:
            amount = usage[key]
            if key not in by_key:
                self._skip_unrequested(key, amount, parts or (self,))
                continue
            for limit in by_key[key]:
                use = amount * limit.rule.parts_per_amount if type(amount) is int else -1
                if not 0 <= use <= amounts[limit.position] or limit.adds_up:
                    use = self._checked_use(limit, key, amount, reports=reports, parts=parts or (self,))
                used[limit.position] = use
        return used

    def _skip_unrequested(self, key: str, amount: object, parts: Sequence[HeldPart]) -> None:
        """Warn of a reported key, unless another part has requested it; InvalidRequest for an invalid amount."""
        if is_unrequested(parts, key, amount):
            parts[0].limit_set.skip_unknown(key, reported=True)

    def _checked_use(
        self, limit: PlannedLimit, key: str, amount: object, *, reports: Mapping[str, object], parts: Sequence[HeldPart]
    ) -> int:
        report = UsageReport(self, limit, key, amount, expects_overuse=parts[0].expects_overuse)
        return report.checked_parts(parts, reports)

    def settle(self, used: ReportedUse, refunds_unreported: bool, refunds_all: bool = False) -> None:
        """Settle the part, of which so much was used, and return its permits."""
        if self._is_over():
            return
        changes = self.changes(used, refunds_unreported, refunds_all)
        if changes is not None:
            self.limit_set.store.settle(self, changes)

    async def asettle(self, used: ReportedUse, refunds_unreported: bool, refunds_all: bool = False) -> None:
        """`settle` for asyncio."""
        if self._is_over():
            return
        changes, store = self.changes(used, refunds_unreported, refunds_all), self.limit_set.store
        if changes is not None:
            await store.asettle(self, changes) if is_remote(store) else store.settle(self, changes)

    def settle_all(self) -> None:
        """Refund all amounts, and return the permits."""
        self.settle(_NOTHING_USED, True, refunds_all=True)

    async def asettle_all(self) -> None:
        """`settle_all` for asyncio."""
        await self.asettle(_NOTHING_USED, True, refunds_all=True)

    def give_up(self) -> None:
        """Refund all amounts as well as possible, which no caller uses; errors of the store are logged."""
        try:
            self.settle_all()
        except Exception:
            logger.warning("an acquisition could not be refunded after it was interrupted", exc_info=True)

    def changes(self, used: ReportedUse, refunds_unreported: bool, refunds_all: bool = False) -> Sequence[int] | None:
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
                changes = shape.changes_of_cancel(used, self.amounts, is_extended=self.is_extended)
            else:
                changes = shape.changes(used, self.amounts)
            if shape.permits or any(changes):
                return changes
        self.settled = True
        return None

    def _is_over(self) -> bool:
        """Whether it extends what a token held, and the lease of that had ended when it was settled."""
        extended = None if self.extends is None else self.extends()
        return extended is not None and extended.is_over

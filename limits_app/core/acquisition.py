"""Acquisitions: what a limit set hands out, held until it is settled and released exactly once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from limits_app.core.amounts import Amount
from limits_app.core.claim import Claim, next_number
from limits_app.core.errors import AlreadyReleased, InvalidRequest, StoreUnavailable, UsageNotReported
from limits_app.core.holding import let_go
from limits_app.core.limits import RateLimit
from limits_app.core.outcome import Outcome, outcome_of, units_of
from limits_app.core.plan import Ask, Charges, Plan, parts_of

if TYPE_CHECKING:
    from limits_app.core.limit_set import LimitSet

__all__ = ["Acquisition", "FreeAcquisition", "LimitUse"]

logger = logging.getLogger("limits_app")

_NOTHING: Final[Mapping[str, Amount]] = {}


@dataclass(frozen=True, slots=True)
class LimitUse:
    """What was requested of one limit, and what was used of it (None: not reported)."""

    requested: Amount
    used: Amount | None


class Acquisition(Claim):
    """Amounts that are held, or the refusal of them.

    Falsy when refused, and then harmless: it holds nothing and gives nothing back.
    As a context manager, also asynchronous, it releases when the block ends;
    a rate limit whose usage was never reported is then a UsageNotReported (a RuntimeError).
    When the block raises, that exception is what the caller sees: amounts that were not reported are given back
    where the algorithm can do so.
    """

    __slots__ = ("__weakref__", "_usage", "limit_set", "owner")

    limit_set: LimitSet
    owner: object

    def __init__(self, limit_set: LimitSet, plan: Plan, charges: Charges) -> None:
        self.plan = plan
        self.charges = charges
        self.admitted = None
        self.settled = False
        self.limit_set = limit_set
        self._usage: dict[str, Amount] | None = None
        if plan.permits:
            self.number = next_number()

    def __bool__(self) -> bool:
        return self.admitted is True

    @property
    def successful(self) -> bool:
        """Whether the amounts are held (or were, until released)."""
        return self.admitted is True

    @property
    def config(self) -> dict[str, object]:
        """A copy of the configuration of the set that admitted it."""
        return self.limit_set.config

    @property
    def outcome(self) -> Outcome:
        """What was decided, and why."""
        return outcome_of(self)

    @property
    def acquisitions(self) -> dict[str, LimitUse]:
        """What was requested and used, by key."""
        usage = self._usage or {}
        return {ask.key: LimitUse(units_of(ask.rule, amount), usage.get(ask.key)) for ask, amount in self.charges}

    @property
    def fences(self) -> dict[str, int]:
        """A number for each resource limit that only grows from grant to grant, to turn away late holders elsewhere."""
        return {ask.key: state[2] for ask, _, state in self.asks() if ask.lease_key and self.admitted}

    def update(self, usage: Mapping[str, Amount]) -> None:
        """Report what was really used, by key; the last report of a key counts.

        Everything is checked before anything is taken over.
        More than requested of a rate is recorded as debt, with a warning; a key that was not requested is skipped,
        with a warning.
        Raises InvalidRequest (a ValueError) for an amount that cannot be,
        and AlreadyReleased (a RuntimeError) after release.
        """
        if self.settled:
            raise AlreadyReleased("the acquisition was released: report usage before that")
        taken = self._usage.copy() if self._usage else {}
        for key, used in usage.items():
            places = self.plan.places.get(key)
            if places is None:
                self.limit_set.skip_unknown(key)
                continue
            for place in places:
                ask, amount = self.charges[place]
                # The usual amount is checked here, without a call.
                parts = used * ask.scale if used.__class__ is int and used >= 0 else parts_of(ask, used)
                if parts > amount:
                    _check_overuse(ask, amount, used)
            taken[key] = used
        self._usage = taken

    def release(self) -> None:
        """Settle what was reported and give permits back; again does nothing. What was not reported stays spent."""
        self._release(give_back=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.admitted or not (self.plan.settles or self._usage):
            self.settled = True
            return
        if kind is not None:
            self._release_failed()
            return
        self._release(give_back=False)
        usage = self._usage or _NOTHING
        for key in self.plan.reports:
            if key not in usage:
                raise UsageNotReported(sorted(self.plan.reports - usage.keys()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def cancel(self) -> None:
        """Give back everything that can be given back, as a block does that raises."""
        self._release(give_back=True)

    def _release_failed(self) -> None:
        try:
            self._release(give_back=True)
        except StoreUnavailable:
            logger.warning("what a failed block held could not be given back", exc_info=True)

    def _release(self, *, give_back: bool) -> None:
        if self.settled:
            return
        if self.admitted and (self.plan.settles or self._usage):
            changes = self._changes(give_back=give_back)
            if changes:
                self.limit_set.store.settle(self, changes)
            if self.plan.permits:
                let_go(self)
        self.settled = True

    def _changes(self, *, give_back: bool) -> Charges:
        """What is different from what was charged: by what was used, and by what is given back."""
        usage, plan, charges = self._usage or _NOTHING, self.plan, self.charges
        if plan.returns is None:
            changes = [(ask, -charges[place][1]) for place, ask, _ in plan.leases]
        else:
            changes = plan.returns.copy()
        for key, used in usage.items():
            for place in plan.places[key]:
                ask, amount = charges[place]
                change = (used * ask.scale if used.__class__ is int else parts_of(ask, used)) - amount
                if change and ask.lease_key is None:
                    changes.append((ask, change))
        if give_back:
            changes += [(ask, -amount) for ask, amount in charges if ask.key in plan.reports and ask.key not in usage]
        if len(plan.parts) > 1:
            changes.sort(key=lambda change: plan.parts.index(change[0].part))
        return changes


class FreeAcquisition(Acquisition):
    """What an empty set hands out, to everybody: nothing is held, so there is nothing to settle."""

    __slots__ = ()

    def __init__(self, limit_set: LimitSet, plan: Plan, charges: Charges) -> None:
        super().__init__(limit_set, plan, charges)
        self.admitted = True
        self.decided_at = 0
        self.records = ()

    def _release(self, *, give_back: bool) -> None:
        """Nothing to give back."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to leave."""


def _check_overuse(ask: Ask, amount: int, used: Amount) -> None:
    parts_of(ask, used)  # more than any amount may be is an error of its own
    requested = units_of(ask.rule, amount)
    if not isinstance(ask.rule.limit, RateLimit):
        raise InvalidRequest(f"usage of {ask.key!r} must be between 0 and the {requested} requested, not {used}")
    logger.warning("%s: %s used, but only %s requested: the rest is recorded as debt", ask.key, used, requested)

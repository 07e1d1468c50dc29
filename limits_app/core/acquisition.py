"""Acquisitions: what a limit set hands out, held until it is settled and released exactly once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from limits_app.core.amounts import Amount, shown
from limits_app.core.claim import Claim
from limits_app.core.errors import AlreadyReleased, InvalidRequest, UsageNotReported
from limits_app.core.holding import Holding
from limits_app.core.limits import MeteredLimit
from limits_app.core.outcome import Outcome, outcome_of, units_of
from limits_app.core.parts import Amounts, Ask, parts_of
from limits_app.core.plan import Plan
from limits_app.core.store import is_remote

if TYPE_CHECKING:
    from limits_app.core.limit_set import LimitSet

__all__ = ["Acquisition", "FreeAcquisition", "LimitUse", "acquisition_of", "check_signs"]

logger = logging.getLogger("limits_app")

_NOTHING: Final[Mapping[str, Amount]] = {}
_NOT_GIVEN_BACK: Final = "what a failed block held could not be given back"


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

    __slots__ = ("__weakref__", "_cancelled", "_changes", "_leaving", "_usage", "holding", "limit_set")

    limit_set: LimitSet
    holding: Holding
    """What the thread or task that asked for permits holds."""
    _changes: Amounts | None
    """What is to be settled, as reported last."""
    _usage: dict[str, Amount] | None
    """What was reported, where the changes do not say it."""
    _cancelled: bool
    """Set by `cancel`, and by nobody before it."""
    _leaving: bool
    """Set while a store settles it for a task, and by nobody before it."""

    # `acquisition_of` fills one in: with an initializer to make one would take half as long again.
    __init__ = object.__init__

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
        """What was requested and used, by key; of what was refused nothing was used, whatever was reported."""
        usage = self._reported() if self.admitted else _NOTHING
        return {
            ask.key: LimitUse(units_of(ask.rule, amount), usage.get(ask.key))
            for ask, amount in zip(self.plan.asks, self.amounts, strict=True)
        }

    @property
    def fences(self) -> dict[str, int]:
        """A number for each resource limit that only grows from grant to grant, to turn away late holders elsewhere."""
        return {ask.key: state[2] for ask, _, state in self.asks() if ask.rule.is_permit and self.admitted}

    def update(self, usage: Mapping[str, Amount]) -> None:
        """Report what was really used, by key; the last report of a key counts.

        Everything is checked before anything is taken over.
        More than requested of a rate is recorded as debt, with a warning; a key that was not requested is skipped,
        with a warning. Of a refusal everything is checked, and nothing recorded.
        Raises InvalidRequest (a ValueError) for an amount that cannot be,
        and AlreadyReleased (a RuntimeError) after release.
        """
        if self.settled:
            raise AlreadyReleased("the acquisition was released: report usage before that")
        report = self.plan.report
        try:
            changes = None if report is None or self._usage is not None else report(usage, self.amounts)
        except (AttributeError, TypeError):
            changes = None  # as no mapping does, of which `_checked` says so
        if changes is None:
            self._usage = self._checked(usage)
            self._changes = self.plan.changes(self._usage, self.amounts)
        else:
            self._changes = changes

    def release(self) -> None:
        """Settle what was reported and give permits back; again does nothing. What was not reported stays spent."""
        if self.plan.settles or self._changes is not None:
            self._release(give_back=False)
        else:
            self.settled = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._release_failed()
            return
        plan, changes = self.plan, self._changes
        if self.admitted and (plan.settles or changes is not None):
            if not self.settled:
                settled = plan.given_back(self.amounts) if changes is None else changes
                if plan.permits:  # as `_settle` does, which is a call more
                    self.holding.held.pop(self.number, None)
                    self.limit_set.store.settle(self, settled)
                elif any(settled):
                    self.limit_set.store.settle(self, settled)
            if plan.reports and (changes is None or self._usage is not None):
                unreported = plan.reports - self._reported().keys()
                if unreported and not hasattr(self, "_cancelled"):
                    self.settled = True
                    raise UsageNotReported(sorted(unreported))
        self.settled = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not is_remote(self.limit_set.store):
            self.__exit__(kind, error, trace)
            return
        try:
            await self._arelease(give_back=kind is not None)
        except Exception:
            if kind is None:
                raise
            logger.warning(_NOT_GIVEN_BACK, exc_info=True)
        if kind is None and self.admitted and not hasattr(self, "_cancelled"):
            unreported = self.plan.reports - self._reported().keys()
            if unreported:
                raise UsageNotReported(sorted(unreported))

    async def arelease(self) -> None:
        """`release` for asyncio."""
        await self._arelease(give_back=False)

    async def acancel(self) -> None:
        """`cancel` for asyncio."""
        await self._arelease(give_back=True)
        self._cancelled = True

    def cancel(self) -> None:
        """Give back everything that can be given back, as a block does that raises; nothing need be reported then."""
        self._release(give_back=True)
        self._cancelled = True

    def lapse(self) -> None:
        """Tell, unless that was done, that others may have had its permits while it held them."""
        self.holding.lose(self)

    def _release_failed(self) -> None:
        try:
            self._release(give_back=True)
        except Exception:
            logger.warning(_NOT_GIVEN_BACK, exc_info=True)

    def _release(self, *, give_back: bool) -> None:
        if not self.settled and self.admitted and (self.plan.settles or self._changes is not None):
            self._settle(self.plan.changes(self._reported(), self.amounts, give_back=give_back))
        self.settled = True

    async def _arelease(self, *, give_back: bool) -> None:
        store, plan = self.limit_set.store, self.plan
        if not is_remote(store):
            self._release(give_back=give_back)
            return
        if hasattr(self, "_leaving"):  # a task was cancelled meanwhile, which leaves it to the store
            return
        if not self.settled and self.admitted and (plan.settles or self._changes is not None):
            changes = plan.changes(self._reported(), self.amounts, give_back=give_back)
            if plan.permits:
                self.holding.held.pop(self.number, None)
            if plan.permits or any(changes):
                self._leaving = True
                try:
                    await store.asettle(self, changes)
                except Exception:
                    del self._leaving
                    raise
        self.settled = True

    def _settle(self, changes: Amounts) -> None:
        if self.plan.permits:
            # First of all, since permits that are on their way back are no more to be renewed, nor missed.
            self.holding.held.pop(self.number, None)
            self.limit_set.store.settle(self, changes)
        elif any(changes):
            self.limit_set.store.settle(self, changes)

    def _reported(self) -> Mapping[str, Amount]:
        """What was reported, by key."""
        if self._usage is not None or self._changes is None:
            return self._usage or _NOTHING
        # Just what must be reported, of which the differences were kept.
        return {
            ask.key: units_of(ask.rule, amount + change)
            for ask, amount, change in zip(self.plan.asks, self.amounts, self._changes, strict=True)
            if ask.key in self.plan.reports
        }

    def _checked(self, usage: Mapping[str, Amount]) -> dict[str, Amount]:
        """What was reported by now and before, without keys that are none of the request's."""
        if not isinstance(usage, Mapping):
            raise InvalidRequest(f"usage must map keys to amounts, not {shown(usage)}")
        merged = dict(self._reported())
        for key, used in usage.items():
            places = self.plan.places.get(key)
            if places is None:
                check_signs("usage", {key: used})
                self.limit_set.skip_unknown(key, reported=True)
                continue
            for place in places:
                ask, amount = self.plan.asks[place], self.amounts[place]
                if parts_of(ask, used) > amount:
                    self._check_overuse(ask, amount, used)
            merged[key] = used
        return merged

    def _check_overuse(self, ask: Ask, amount: int, used: Amount) -> None:
        requested = units_of(ask.rule, amount)
        if not isinstance(ask.rule.limit, MeteredLimit):
            raise InvalidRequest(f"usage of {ask.key!r} must be between 0 and the {requested} requested, not {used}")
        if self.admitted:
            logger.warning("%s: %s used, but only %s requested: the rest is recorded as debt", ask.key, used, requested)


def acquisition_of(limit_set: LimitSet, plan: Plan, amounts: Amounts) -> Acquisition:
    """An acquisition that nobody was asked for yet."""
    acquisition: Acquisition = Acquisition()
    acquisition.limit_set = limit_set
    acquisition.plan = plan
    acquisition.amounts = amounts
    acquisition.admitted = None
    acquisition.settled = False
    acquisition._changes = None
    acquisition._usage = None
    return acquisition


class FreeAcquisition(Acquisition):
    """What an empty set hands out, to everybody: nothing is held, so there is nothing to settle."""

    __slots__ = ()

    def __init__(self, limit_set: LimitSet, plan: Plan) -> None:
        self.limit_set = limit_set
        self.plan = plan
        self.amounts = ()
        self.admitted = True
        self.settled = False
        self._changes = None
        self._usage = None
        self.decided_at = 0
        self.records = ()

    def update(self, usage: Mapping[str, Amount]) -> None:
        """Nothing to record; InvalidRequest for usage that cannot be."""
        check_signs("usage", usage)

    def _release(self, *, give_back: bool) -> None:
        """Nothing to give back."""

    async def _arelease(self, *, give_back: bool) -> None:
        """Nothing to give back."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to leave."""


def check_signs(name: str, amounts: object) -> None:
    """Check what concerns no limit: InvalidRequest unless it maps keys to numbers that are not negative."""
    if not isinstance(amounts, Mapping):
        raise InvalidRequest(f"{name} must map keys to amounts, not {shown(amounts)}")
    for key, amount in amounts.items():
        rule = _broken_rule(amount)
        if rule:
            raise InvalidRequest(f"amount of {shown(key)} {rule}, not {shown(amount)}")


def _broken_rule(amount: Amount) -> str | None:
    """What is wrong with an amount whatever it is of; None when nothing is."""
    if isinstance(amount, bool):
        return "must be a number, not a boolean"
    try:
        negative, finite = amount < 0, amount < inf
    except (TypeError, ArithmeticError):  # as decimals raise that are no numbers
        return "must be a number"
    if negative:
        return "must not be negative"
    return None if finite else "must be a finite number"

"""The compiled form of one limit: a rule that decides over a short tuple of integers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from math import ceil
from typing import Any, Final

from limits_app.engine.amounts import MICRO
from limits_app.engine.limit_kinds import counts_money
from limits_app.engine.limits import AnyLimit, Blocked

State = tuple[Any, ...]
"""The stored state of one limit: integers below 2^53, and for a sliding window its log as the last item.

All zeros (and an empty log) mean unused.
"""

LuaRule = tuple[str, *tuple[int, ...]]
"""The name of the algorithm and its parameters, for the Lua implementation."""

FULL_PARTS: Final = 2**50
"""The largest number of parts in a full bucket."""

DEBT_PARTS: Final = 2**52
"""The largest recorded use of a limit, with its debt, in parts."""

NEVER_US: Final = 2**53
"""A time that never comes, in microseconds."""


class Rule(ABC):
    """One limit, compiled: integer arithmetic in parts of a unit and in microseconds of the store's clock.

    No method changes its arguments. Each returns the state to be stored, so that a store can decide on all limits
    first and write all or nothing. `parts_per_unit` parts are one unit; a full limit has `ceiling_parts`. The units of
    money are millionths of a currency; `parts_per_amount` parts are 1 of what requests and definitions name.
    `now` and `taken_at` are microseconds. Subclasses implement one algorithm each.
    """

    is_permit = False
    """Whether amounts are held by leases and returned by release instead of by time."""
    is_counted = False
    """Whether amounts are counted as usage and nothing else, since no limit is set."""
    has_log = False
    """Whether the last item of the state is a log."""
    has_fixed_end = False
    """Whether all recorded use ends at one time, which further use does not move: the end of a window or a period."""
    lua: LuaRule
    """The name and the parameters that the Lua implementation needs to decide alike."""
    lua_format = ""
    """The integers of the state as the Lua implementation stores them, in the letters of `struct`."""

    def __init__(self, limit: AnyLimit, start: State, parts_per_unit: int, ceiling_parts: int) -> None:
        self.limit = limit
        self.key: str = limit.key
        self.start = start
        self.is_money = counts_money(limit)
        self.parts_per_unit = parts_per_unit
        self.parts_per_amount = parts_per_unit * MICRO if self.is_money else parts_per_unit
        self.ceiling_parts = ceiling_parts
        self.most_parts = DEBT_PARTS if limit.soft else ceiling_parts
        """The largest amount of one request; for a soft limit the largest recorded use."""
        self.usable_parts = ceiling_parts
        """What requests of a class may use of the ceiling, at one time."""
        self.kept_parts = 0
        """What requests of a class leave free for higher ones."""
        self.is_soft: bool = limit.soft
        """Whether the limit rejects nothing and records over-use instead."""
        self.lease_us = 0
        """How long a permit is leased without renewal; 0 for other limits."""
        self.hold_us = NEVER_US
        """How long a permit may be held in total."""

    @abstractmethod
    def take(self, state: State, now: int, amount: int) -> State | None:
        """Return the state as it is `current` with `amount` charged, or None when it does not fit now."""

    def charged(self, state: State, now: int, amount: int) -> State | None:
        """Return the state after a request: as `take`, except that a soft limit records over-use as debt."""
        taken = self.take(state, now, amount)
        return self.settle(state, now, amount) if taken is None and self.is_soft else taken

    def current(self, state: State, now: int) -> State:
        """Return the state as it counts now: as it is, unless it was written later than `now` plus the window.

        Then the clock was set back since, and the state counts as written now, with the use that it has. A state that
        is ahead by less stays as it is: the clocks of several servers may differ, and to move it back and forth
        between them would forget use.
        """
        return state

    @abstractmethod
    def wait(self, state: State, now: int, amount: int) -> int:
        """Return the microseconds until `amount`, at most the ceiling, fits; 0 when it fits now."""

    @abstractmethod
    def settle(self, state: State, now: int, change: int, taken_at: int | None = None) -> State:
        """Return the state as it is `current`, after a positive change is charged even beyond the limit, or a negative
        one is refunded where the algorithm can.

        `taken_at` is when the amount was charged (None: now). Refunds apply as of the state's own time.
        """

    def undo(self, state: State, now: int, parts: int, *, taken_at: int, before: int, window: int) -> State:
        """Return the state as if `parts` had not been charged at `taken_at`, when `before` were in use without them.

        `window` is the `window_start` of the state with the charge; 0 where that is not known.
        Unlike a refund by `settle` it works with every algorithm. It never returns more than is left of the charge.
        """
        return self.settle(state, now, -parts, taken_at)

    def window_start(self, state: State) -> int:
        """Return the start of the window that a state counts, which differs from that of other windows; else 0."""
        return 0

    @abstractmethod
    def credit(self, state: State, now: int, parts: int) -> State:
        """Reduce the recorded use by `parts` that no claim holds, down to unused."""

    @abstractmethod
    def used(self, state: State, now: int) -> int:
        """Return the parts in use; more than the ceiling is debt."""

    @abstractmethod
    def restored_at(self, state: State) -> int:
        """Return the time from which the state equals an unused one."""

    def recovers_since(self, state: State) -> int:
        """Return the time from which the use in a state has been returning; by default never.

        Rules whose use returns within a window or gradually return the time; a quota keeps its use until its period
        ends.

        A full store may forget a use of which almost all has returned.
        """
        return NEVER_US

    @abstractmethod
    def carry(self, old: Rule, state: State, now: int) -> State:
        """Return the same use, recorded by another rule, as a state of this rule, rounded up."""

    def boundaries(self, now: int, count: int) -> tuple[int, ...]:
        """Return the last `count` calendar boundaries up to now and the next `count`; empty without a calendar."""
        return ()


class StatelessRule(Rule):
    """A rule whose state is empty: nothing is in use, and nothing returns."""

    def settle(self, state: State, now: int, change: int, taken_at: int | None = None) -> State:
        return ()

    def credit(self, state: State, now: int, parts: int) -> State:
        return ()

    def used(self, state: State, now: int) -> int:
        return 0

    def restored_at(self, state: State) -> int:
        return 0

    def carry(self, old: Rule, state: State, now: int) -> State:
        return ()


class BlockedRule(StatelessRule):
    """Rejects every request until the configuration changes, or a cool-down ends."""

    def __init__(self, limit: Blocked) -> None:
        super().__init__(limit, (), 1, 1)
        self.lua = ("blocked",)
        self._until = limit.until

    def take(self, state: State, now: int, amount: int) -> State | None:
        return None if self._until is None or now < self._until else ()

    def wait(self, state: State, now: int, amount: int) -> int:
        return NEVER_US if self._until is None else max(self._until - now, 0)


def carried_parts(old: Rule, state: State, now: int, rule: Rule) -> int:
    """Return the use recorded by another rule in parts of `rule`, rounded up so that no use is lost.

    Where one of them counts money and the other units, it is rounded up to what `rule` counts: whole units, or
    millionths. Permits are held and not used, so they carry nothing into another kind of limit.
    """
    if old.is_permit:
        return 0
    used = Fraction(old.used(state, now), old.parts_per_unit)
    if old.is_money is not rule.is_money:
        used = Fraction(ceil(used * MICRO if rule.is_money else used / MICRO))
    return min(ceil(used * rule.parts_per_unit), DEBT_PARTS)

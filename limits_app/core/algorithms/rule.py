"""The compiled form of one limit: pure functions over a short tuple of integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Generic, TypeVar

from limits_app.core.limits import AnyLimit, ResourceLimit

__all__ = ["DEBT_PARTS", "FULL_PARTS", "CompiledRule", "Rule", "State", "Twin", "carried_parts"]

Twin = tuple[str, *tuple[int, ...]]
"""What code in another language needs to decide alike: the algorithm's name, and its parameters in a fixed order."""

State = tuple[int, ...]
"""What a store keeps for one limit; all zeros means unused. Every value stays below 2^53."""

S = TypeVar("S")

FULL_PARTS: Final = 2**50
"""The most parts that a full bucket may count."""

DEBT_PARTS: Final = 2**52
"""The most parts that over-use is remembered for."""


@dataclass(frozen=True, eq=False, kw_only=True)
class CompiledRule(Generic[S]):
    """One limit, compiled: what a store asks and does, in whole parts of a unit and whole microseconds.

    No function changes its arguments: each returns the state to be stored, so that a store can decide
    on everything first and write all or nothing.
    Amounts are in parts, `parts_per_unit` to a unit; times are microseconds of the store's clock.
    """

    limit: AnyLimit
    start: S
    parts_per_unit: int
    ceiling_parts: int
    take: Callable[[S, int, int], S | None]
    """(state, now, amount): the state with the amount charged, or None when it does not fit now."""
    wait: Callable[[S, int, int], int]
    """(state, now, amount): microseconds until an amount of at most the ceiling fits; 0 when it fits now."""
    settle: Callable[[S, int, int], S]
    """(state, now, change): charge a positive change whatever the limit says, give a negative one back.

    What is given back is given back as of the state's own time: it comes to the same, and needs no clock."""
    settle_dated: Callable[[S, int, int, int], S] | None = None
    """(state, now, change, taken_at): the same where it matters when the amount was taken; None where it does not."""
    credit: Callable[[S, int, int], S]
    """(state, now, parts): make what is used less by so many parts that no claim holds, or forget all of it."""
    used: Callable[[S, int], int]
    """(state, now): parts that are taken now; more than the ceiling means debt."""
    restored_at: Callable[[S], int]
    """(state): from when on the state cannot be told from an unused one."""
    carry: Callable[[Rule, State, int], S]
    """(old rule, its state, now): the same use as a state of this rule, rounded up."""
    lease_us: int = 0
    """How long a permit is lent without renewal."""
    hold_us: int | None = None
    """How long a permit may be kept at all; None for ever."""
    has_log: bool = False
    """Whether the last item of the state is a log instead of an integer."""
    twin: Twin
    """The name and the parameters of the twin, for stores that run code elsewhere."""
    boundaries: Callable[[int, int], tuple[int, ...]] | None = None
    """(now, count): the last `count` moments up to now at which a calendar resets the limit, and the next `count`,
    for stores that decide where no calendar is; None for rules without one."""

    @property
    def key(self) -> str:
        """The limit's key."""
        return self.limit.key

    @property
    def is_permit(self) -> bool:
        """Whether what is taken is held, and comes back by release instead of by time."""
        return isinstance(self.limit, ResourceLimit)

    @property
    def most_parts(self) -> int:
        """The most that one request can ever take; of a soft limit, all that debt can remember."""
        return DEBT_PARTS if self.limit.soft else self.ceiling_parts

    def settled(self, state: S, now: int, change: int, taken_at: int, *, is_credit: bool = False) -> S:
        """Settle what was taken at some time, whatever the rule is; or give credit, which is a negative change."""
        if is_credit:
            return self.credit(state, now, -change)
        if self.settle_dated is None:
            return self.settle(state, now, change)
        return self.settle_dated(state, now, change, taken_at)


Rule = CompiledRule[State]


def carried_parts(old: Rule, state: State, now: int, parts_per_unit: int) -> int:
    """What another rule's state has used, in parts of `parts_per_unit`, rounded up so that no use is forgotten.

    Permits are held, not used, so nothing of them is carried into a rate.
    """
    if old.is_permit:
        return 0
    used = Fraction(old.used(state, now) * parts_per_unit, old.parts_per_unit)
    return min(-(-used.numerator // used.denominator), DEBT_PARTS)

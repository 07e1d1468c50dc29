"""Counted units, which no limit is set for: every amount is admitted, and the store counts it as usage."""

from __future__ import annotations

from limits_app.engine.algorithms.rule import State, StatelessRule
from limits_app.engine.amounts import MAX_MICRO, MILLI
from limits_app.engine.limits import CountedUnit


class CountedRule(StatelessRule):
    """Admits everything; its state is empty. Records keep the use of a limit with the same key beside it."""

    is_counted = True

    def __init__(self, limit: CountedUnit) -> None:
        parts_per_unit = 1 if limit.is_money else MILLI
        super().__init__(limit, (), parts_per_unit, MAX_MICRO if limit.is_money else limit.capacity * MILLI)
        self.lua = ("counted", self.ceiling_parts)

    def take(self, state: State, now: int, amount: int) -> State | None:
        return ()

    def wait(self, state: State, now: int, amount: int) -> int:
        return 0

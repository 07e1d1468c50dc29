"""A rule driven by hand: what a store does with one limit, without a store."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import pytest

from limits_app.engine.algorithms import Rule, State, compile_rule
from limits_app.engine.amounts import MILLI, to_milli
from limits_app.engine.limits import LimitDefinition

LEASE_US = 10_000_000
MS = 1000
SECOND = 1_000_000

#: A Tuesday in 2026, in microseconds: whole seconds, hours and days fit into it.
NOW = 1_767_657_600_000_000

Step = tuple[Any, ...]


def timelines(**named: list[Step]) -> pytest.MarkDecorator:
    """Run a test with each timeline, under its name; `Driven.run` describes the steps."""
    return pytest.mark.parametrize("timeline", named.values(), ids=named)


class Driven:
    """One limit and its state; amounts are units, times are microseconds."""

    def __init__(self, limit: LimitDefinition, state: State | None = None) -> None:
        self.rule: Rule = compile_rule(limit, LEASE_US)
        self.state: State = self.rule.start if state is None else state

    def parts(self, units: float | Fraction) -> int:
        """An amount as the rule counts it, which must be whole."""
        parts = Fraction(to_milli(units, decimals=True), MILLI) * self.rule.parts_per_unit
        assert parts.denominator == 1
        return parts.numerator

    def take(self, now: int, units: float) -> bool:
        """Charge an amount if it fits."""
        after = self.rule.charged(self.state, now, self.parts(units))
        if after is not None:
            self.state = after
        return after is not None

    def fits(self, now: int, units: float) -> bool:
        """Whether an amount fits; charges nothing."""
        return self.rule.charged(self.state, now, self.parts(units)) is not None

    def wait(self, now: int, units: float) -> int:
        """Microseconds until an amount fits."""
        return self.rule.wait(self.state, now, self.parts(units))

    def settle(self, now: int, units: float, taken_at: int | None = None) -> None:
        """Charge more, or give back, of what was taken earlier or just now."""
        self.state = self.rule.settle(self.state, now, self.parts(units), taken_at)

    def used(self, now: int) -> Fraction:
        """What is taken, in units."""
        return Fraction(self.rule.used(self.state, now), self.rule.parts_per_unit)

    def carried_into(self, limit: LimitDefinition, now: int) -> Driven:
        """The same use under another definition."""
        new = Driven(limit)
        new.state = new.rule.carry(self.rule, self.state, now)
        return new

    def run(self, timeline: Iterable[Step]) -> None:
        """Live through steps of (milliseconds, what, ...), and check what each of them says.

        `(ms, n, admitted)` takes, `(ms, "settle", n)` settles,
        `(ms, "wait", n, expected ms)` and `(ms, "used", expected)` ask.
        """
        for ms, *step in timeline:
            now = NOW + round(ms * MS)
            match step:
                case ["settle", change]:
                    self.settle(now, change)
                case ["used", expected]:
                    assert self.used(now) == expected, (ms, step, self.state)
                case ["wait", amount, expected]:
                    assert self.wait(now, amount) == round(expected * MS), (ms, step, self.state)
                case [amount, admitted]:
                    assert self.take(now, amount) is admitted, (ms, step, self.state)
                case _:
                    raise AssertionError(f"no such step: {step}")

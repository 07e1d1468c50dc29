"""What a limit has left, as headers tell it with every response, written out for each algorithm."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, cast

from limits_app.core.algorithms import Rule, State
from limits_app.core.inlining import Step, step_of
from limits_app.core.unrolled import names, written_out

__all__ = ["Remaining", "remaining_of"]

_SECOND_US: Final = 1_000_000

Remaining = Callable[[State, int], tuple[int, int | None]]
"""(state, now): how many whole units are left, and in how many seconds nothing is used any more (None: permits)."""


@lru_cache(maxsize=4096)
def remaining_of(rule: Rule) -> Remaining:
    """The function that says so for a limit."""
    used, restored_at = step_of(rule.used, 2), None if rule.is_permit else step_of(rule.restored_at, 1)
    steps = [(used, rule.used)] if restored_at is None else [(used, rule.used), (restored_at, rule.restored_at)]
    values = [value for step, function in steps for value in step.values(function)]
    return cast("Remaining", _remaining(used, restored_at)(rule.ceiling_parts, rule.parts_per_unit, *values))


@lru_cache(maxsize=1024)
def _remaining(used: Step, restored_at: Step | None) -> Callable[..., object]:
    bound = ["ceiling", "scale", *used.names("used")]
    lines = used.lines("used", state="state", amount="0", result="spent", refused="None")
    lines += ["free = ceiling - spent", "left = free // scale if free > 0 else 0"]
    result = "left, None"
    if restored_at is not None:
        bound += restored_at.names("restored")
        lines += restored_at.lines("restored", state="state", amount="0", result="until", refused="None")
        result = f"left, -((now - until) // {_SECOND_US}) if until > now else 0"
    return written_out(bound=names("{}", bound), arguments="state, now", lines=lines, result=result)

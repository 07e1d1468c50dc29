"""What a limit has left, as headers say it with every response, written out for each algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, cast

from limits_app.core.algorithms import Rule, State
from limits_app.core.inlining import Step, step_of
from limits_app.core.unrolled import Record, names, written_out

__all__ = ["Remaining", "Saying", "remaining_of", "saying"]

_SECONDS: Final = "-((now - until) // 1_000_000) if until > now else 0"
"""Whole seconds from `now` `until` then, as both functions have it."""

Remaining = Callable[[State, int], tuple[int, int | None]]
"""(state, now): how many whole units are left, and in how many seconds nothing is used any more (None: permits)."""


Saying = Callable[[Sequence[Record], int], str]
"""(records, now): the same as text, of a limit that is found in the records."""


@lru_cache(maxsize=4096)
def remaining_of(rule: Rule) -> Remaining:
    """The function that says so for a limit."""
    steps, values = _steps(rule)
    return cast("Remaining", _remaining(*steps)(*values))


def saying(rule: Rule, index: int, start: str, between: str) -> Saying:
    """The function that says it in words, of what is at `index` in the only record: start, number, between, seconds."""
    steps, values = _steps(rule)
    return cast("Saying", _saying(*steps)(index, start, between, *values))


def _steps(rule: Rule) -> tuple[tuple[Step, Step | None], list[object]]:
    """What is written out for a rule, and what that has around it."""
    used, restored_at = step_of(rule.used, 2), None if rule.is_permit else step_of(rule.restored_at, 1)
    values = [rule.ceiling_parts, rule.parts_per_unit, *used.values(rule.used)]
    if restored_at is not None:
        values += restored_at.values(rule.restored_at)
    return (used, restored_at), values


@lru_cache(maxsize=1024)
def _remaining(used: Step, restored_at: Step | None) -> Callable[..., object]:
    bound, lines = _written(used, restored_at)
    seconds = "None" if restored_at is None else _SECONDS
    return written_out(bound=bound, arguments="state, now", lines=lines, result=f"left, {seconds}")


@lru_cache(maxsize=1024)
def _saying(used: Step, restored_at: Step | None) -> Callable[..., object]:
    bound, lines = _written(used, restored_at)
    seconds = "" if restored_at is None else f"{{between}}{{{_SECONDS}}}"
    return written_out(
        bound=f"index, start, between, {bound}",
        arguments="records, now",
        lines=["state = records[0][index]", *lines],
        result=f'f"{{start}}{{left}}{seconds}"',
    )


def _written(used: Step, restored_at: Step | None) -> tuple[str, list[str]]:
    """The names that the lines have around them, and the lines, which find out what is `left` and `until` when."""
    bound = ["ceiling", "scale", *used.names("used")]
    lines = used.lines("used", state="state", amount="0", result="spent", refused="None")
    lines += ["free = ceiling - spent", "left = free // scale if free > 0 else 0"]
    if restored_at is not None:
        bound += restored_at.names("restored")
        lines += restored_at.lines("restored", state="state", amount="0", result="until", refused="None")
    return names("{}", bound), lines

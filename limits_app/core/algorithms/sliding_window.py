"""Sliding window: never more than `capacity` within any window, exactly.

A log of (time, amount); amounts that fall within a 1,024th of the window are merged at the later time,
so that the log holds at most 1,024 closed entries whatever the traffic
and capacity returns at most a 1,024th of the window late, never early.
Unused amounts stay spent; over-use is logged when it is reported.
Credit takes away what is oldest, which would come back first: it never outlasts what it makes up for.
Weakness: up to 16 kB of state for a busy scope, and no smoothing: a burst of `capacity` passes at once.
"""

from __future__ import annotations

from typing import Final, cast

from limits_app.core.algorithms.log import EMPTY_LOG, Log
from limits_app.core.algorithms.rule import DEBT_PARTS, CompiledRule, Rule, State, carried_parts
from limits_app.core.algorithms.units import window_us
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm

__all__ = ["STEPS", "compile_sliding_window"]

STEPS: Final = 1024
_REBASE_AT: Final = 2**51

WindowState = tuple[int, int, int, int, int, Log]
"""(forgotten, total, opened, last, oldest, log).

Running totals: `forgotten` of what the log no longer holds, `total` of all; the entry that is still open
was opened at `opened` and counts as young as `last`; no entry is older than `oldest`.
"""

_START: Final[WindowState] = (0, 0, 0, 0, 0, EMPTY_LOG)


def compile_sliding_window(limit: RateLimit | CallLimit) -> Rule:
    """Compile a sliding window; `Rule` sees its state as a tuple whose last item is the log."""
    capacity, window = int(limit.capacity), window_us(limit)
    step = window // STEPS

    def expired(state: WindowState, now: int) -> int:
        """The running total of all that is as old as the window."""
        forgotten, total, _, last, oldest, log = state
        until = now - window
        if last <= until:
            return total
        if oldest > until:
            return forgotten
        gone = log.count_until(until)
        return log.total(gone - 1) if gone else forgotten

    def charged(state: WindowState, now: int, amount: int) -> WindowState:
        forgotten, total, opened, last, oldest, log = state
        if last <= now - window or total == forgotten:
            return 0, amount, now, now, now, EMPTY_LOG
        if now - opened <= step:
            return forgotten, total + amount, opened, now, oldest, log
        gone = log.count_until(now - window)
        if gone:
            forgotten = log.total(gone - 1)
        log = log.append(last, total, drop=gone)
        if total > _REBASE_AT:
            log, total, forgotten = log.rebased(forgotten), total - forgotten, 0
        return forgotten, total + amount, now, now, log.time(0), log

    def take(state: WindowState, now: int, amount: int) -> WindowState | None:
        forgotten, total, opened, last, oldest, log = state
        if now < last:  # noqa: PLR1730 - a call would cost as much as all the rest
            now = last
        # As `expired` and `charged` do most of the time, which are two calls more.
        gone = forgotten if oldest > now - window else expired(state, now)
        if total - gone + amount > capacity:
            return None
        if gone == forgotten < total and now - opened <= step:
            return (forgotten, total + amount, opened, now, oldest, log) if amount else state
        return charged(state, now, amount) if amount else state

    def wait(state: WindowState, now: int, amount: int) -> int:
        _, total, _, last, _, log = state
        later = max(now, last)
        gone = expired(state, later)
        excess = total - gone + amount - capacity
        if excess <= 0:
            return 0
        index = log.first_with(gone + excess)
        frees = log.time(index) if index < len(log) else last
        return frees + window - now

    def settle(state: WindowState, now: int, change: int) -> WindowState:
        now = max(now, state[3])
        change = min(change, DEBT_PARTS - used(state, now))
        return charged(state, now, change) if change > 0 else state

    def credit(state: WindowState, now: int, parts: int) -> WindowState:
        _, total, opened, last, oldest, log = state
        forgotten = min(expired(state, max(now, last)) + parts, total)
        gone = log.first_with(forgotten + 1)
        if gone:
            log = log.without(gone)
            oldest = log.time(0) if len(log) else last
        return forgotten, total, opened, last, oldest, log

    def used(state: WindowState, now: int) -> int:
        if now < state[3]:  # noqa: PLR1730 - see above
            now = state[3]
        # As `expired` does, which is a call more.
        return state[1] - (state[0] if state[4] > now - window else expired(state, now))

    def restored_at(state: WindowState) -> int:
        return state[3] + window if state[1] > state[0] else 0

    def carry(old: Rule, state: State, now: int) -> WindowState:
        if not old.is_permit and getattr(old.limit, "algorithm", None) is RateLimitAlgorithm.SLIDING_WINDOW:
            return cast("WindowState", state)
        amount = carried_parts(old, state, now, 1)
        return charged(_START, now, amount) if amount else _START

    return cast(
        "Rule",
        CompiledRule[WindowState](
            limit=limit,
            start=_START,
            parts_per_unit=1,
            ceiling_parts=capacity,
            take=take,
            wait=wait,
            settle=settle,
            credit=credit,
            used=used,
            restored_at=restored_at,
            carry=carry,
            has_log=True,
            twin=(limit.algorithm, capacity, window, step),
        ),
    )

"""Windows: at most `capacity` within one window of time.

Fixed window: a window starts with the first admission after the last one ended.
Unused amounts stay spent; over-use counts against the window in which it is reported.
Weakness: up to twice the capacity is allowed within a short time across a boundary.
Choose a sliding window where that matters.

State: (start of the window, amount in it).

Sliding window: never more than `capacity` within any window, exactly.
A log of (time, amount); amounts that fall within a 1,024th of the window are merged at the later time,
so that the log has at most 1,024 closed entries whatever the traffic,
and capacity returns at most a 1,024th of the window late, never early.
Unused amounts stay spent; over-use is logged when it is reported.
Credit removes the oldest use, which would return first: it never lasts longer than the use that it makes up for.
Weakness: up to 16 kB of state for a busy scope, and no smoothing: a burst of `capacity` is allowed at once.

State: (forgotten, total, opened, last, oldest, log). Running totals: `forgotten` of the entries that the log no longer
has, `total` of all. The entry that is still open was opened at `opened` and counts as young as `last`; no entry is
older than `oldest`.
"""

from __future__ import annotations

from typing import Final

from limits_app.engine.algorithms.rule import DEBT_PARTS, Rule, State, carried_parts
from limits_app.engine.algorithms.units import window_us
from limits_app.engine.algorithms.window_log import EMPTY_LOG
from limits_app.engine.amounts import MILLI
from limits_app.engine.limit_kinds import counted_milli
from limits_app.engine.limits import CallLimit, RateLimit

STEPS: Final = 1024
_REBASE_AT: Final = 2**51
_START: Final[State] = (0, 0, 0, 0, 0, EMPTY_LOG)


class FixedWindow(Rule):
    """A count that starts again with each window."""

    has_fixed_end = True
    lua_format = "QQ"

    def __init__(self, limit: RateLimit | CallLimit) -> None:
        super().__init__(limit, (0, 0), 1, counted_milli(limit, limit.capacity) // MILLI)
        self._window_us = window_us(limit)
        self.lua = (str(limit.algorithm), self.ceiling_parts, self._window_us)

    def current(self, state: State, now: int) -> State:
        return state if state[0] - now <= self._window_us else (now, state[1])

    def take(self, state: State, now: int, amount: int) -> State | None:
        start, count = state
        if count == 0 or now - start >= self._window_us:
            start, count = now, 0
        elif now < start:  # the clock was set back
            start, count = self.current(state, now)
        count += amount
        return (start, count) if count <= self.ceiling_parts else None

    def wait(self, state: State, now: int, amount: int) -> int:
        is_full = self.used(state, now) + amount > self.ceiling_parts
        return max(state[0] + self._window_us - now, 0) if is_full else 0

    def settle(self, state: State, now: int, change: int, taken_at: int | None = None) -> State:
        if now < state[0]:  # the clock was set back
            state = self.current(state, now)
        if change <= 0:
            return state
        start, count = state
        if count == 0 or now - start >= self._window_us:
            start, count = now, 0
        return start, min(count + change, DEBT_PARTS)

    def undo(self, state: State, now: int, parts: int, *, taken_at: int, before: int, window: int) -> State:
        start, count = self.current(state, now)
        # While the clock is set back, amounts are charged at times before the window that counts them starts.
        is_of_earlier = taken_at < start and window != start
        if now - start >= self._window_us or is_of_earlier:
            return state
        return start, max(count - parts, 0)

    def window_start(self, state: State) -> int:
        start: int = state[0]
        return start

    def credit(self, state: State, now: int, parts: int) -> State:
        return state[0], max(state[1] - parts, 0)

    def used(self, state: State, now: int) -> int:
        start, count = state
        return count if now - start < self._window_us else 0

    def restored_at(self, state: State) -> int:
        return state[0] + self._window_us if state[1] else 0

    def recovers_since(self, state: State) -> int:
        start: int = state[0]
        return start

    def carry(self, old: Rule, state: State, now: int) -> State:
        if type(old) is type(self) and old.is_money is self.is_money:
            return state
        count = carried_parts(old, state, now, self)
        return (now, count) if count else (0, 0)


class SlidingWindow(Rule):
    """A log of the amounts of the last window."""

    has_log = True
    lua_format = "QQQQQHHI"  # in place of the log: its first entry, the number of entries, and how long it is kept

    def __init__(self, limit: RateLimit | CallLimit) -> None:
        super().__init__(limit, _START, 1, counted_milli(limit, limit.capacity) // MILLI)
        self._window_us = window_us(limit)
        self._step_us = self._window_us // STEPS
        self.lua = (str(limit.algorithm), self.ceiling_parts, self._window_us, self._step_us)

    def current(self, state: State, now: int) -> State:
        if state[3] - now <= self._window_us:
            return state
        used = self.used(state, now)
        return (0, used, now, now, now, EMPTY_LOG) if used else _START

    def take(self, state: State, now: int, amount: int) -> State | None:
        if now < state[3]:  # the clock was set back
            state = self.current(state, now)
            now = max(now, state[3])
        if state[1] - self._expired(state, now) + amount > self.ceiling_parts:
            return None
        return self._charged(state, now, amount) if amount else state

    def wait(self, state: State, now: int, amount: int) -> int:
        last, log = state[3], state[5]
        expired = self._expired(state, max(now, last))
        excess = state[1] - expired + amount - self.ceiling_parts
        if excess <= 0:
            return 0
        index = log.first_with(expired + excess)
        frees_at = log.time(index) if index < len(log) else last
        return frees_at + self._window_us - now

    def settle(self, state: State, now: int, change: int, taken_at: int | None = None) -> State:
        if now < state[3]:  # the clock was set back
            state = self.current(state, now)
            now = max(now, state[3])
        change = min(change, DEBT_PARTS - self.used(state, now))
        return self._charged(state, now, change) if change > 0 else state

    def undo(self, state: State, now: int, parts: int, *, taken_at: int, before: int, window: int) -> State:
        """The entry that the amount was charged to becomes smaller; what expires with others stays."""
        forgotten, total, opened, last, oldest, log = state = self.current(state, now)
        until = max(now, last) - self._window_us
        if total == self._expired(state, max(now, last)) or taken_at <= until:
            return state
        gone = log.count_until(until)
        if gone:
            forgotten, log = log.total(gone - 1), log.without(gone)
            oldest = log.time(0) if len(log) else last
        index = log.first_at(taken_at)
        closed = log.total(index - 1) if index else forgotten
        if index < len(log):
            left = min(parts, log.total(index) - closed)
            return forgotten, total - left, opened, last, oldest, log.reduced(index, left)
        return forgotten, max(total - parts, closed), opened, last, oldest, log

    def credit(self, state: State, now: int, parts: int) -> State:
        _, total, opened, last, oldest, log = state
        forgotten = min(self._expired(state, max(now, last)) + parts, total)
        gone = log.first_with(forgotten + 1)
        if gone:
            log = log.without(gone)
            oldest = log.time(0) if len(log) else last
        return forgotten, total, opened, last, oldest, log

    def used(self, state: State, now: int) -> int:
        return state[1] - self._expired(state, max(now, state[3]))

    def restored_at(self, state: State) -> int:
        return state[3] + self._window_us if state[1] > state[0] else 0

    def recovers_since(self, state: State) -> int:
        last: int = state[3]
        return last

    def carry(self, old: Rule, state: State, now: int) -> State:
        if type(old) is type(self) and old.is_money is self.is_money:
            return state
        amount = carried_parts(old, state, now, self)
        return self._charged(_START, now, amount) if amount else _START

    def _expired(self, state: State, now: int) -> int:
        """Return the running total of all amounts that are as old as the window."""
        until = now - self._window_us
        forgotten, total, _, last, oldest, log = state
        if oldest > until:
            return forgotten
        if last <= until:
            return total
        gone = log.count_until(until)
        return log.total(gone - 1) if gone else forgotten

    def _charged(self, state: State, now: int, amount: int) -> State:
        forgotten, total, opened, last, oldest, log = state
        if last <= now - self._window_us or total == forgotten:
            return 0, amount, now, now, now, EMPTY_LOG
        if now - opened <= self._step_us:
            return forgotten, total + amount, opened, now, oldest, log
        gone = log.count_until(now - self._window_us)
        if gone:
            forgotten = log.total(gone - 1)
        log = log.append(last, total, drop=gone)
        if total > _REBASE_AT:
            log = log.rebased(forgotten)
            total -= forgotten
            forgotten = 0
        return forgotten, total + amount, now, now, log.time(0), log

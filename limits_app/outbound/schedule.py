"""When requests may leave, so that an upstream never has to refuse one: pure decisions, time is an argument.

Times are seconds of any clock that does not go back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Final

from limits_app.outbound.bounds import check_durations
from limits_app.outbound.hints import Hints, Quota

__all__ = ["Departure", "Lesson", "Schedule", "Window"]

_UNLIMITED: Final = 10**12
_STEPS: Final = 1000
_MOST_WINDOWS: Final = 8
_BRISK: Final = 0.8
"""Calls leave a little faster than evenly, so that time lost on a busy machine can be made good for in each window."""
_GUESS: Final = ""
"""The name of the window that is guessed; those that an upstream tells have names."""


class Window:
    """At most `capacity` calls in any `seconds`, as the upstream counts them.

    A call counts from when it leaves until `seconds` after its answer came. The upstream saw it somewhere in between,
    so whatever delays there are on the way, it never sees too many. The price is one round trip per window.
    Answers are merged in steps of a thousandth of the window, at the later moment.
    """

    __slots__ = ("_answered", "_log", "capacity", "counted", "seconds")

    def __init__(self, capacity: int, seconds: float) -> None:
        self.capacity = capacity
        self.seconds = seconds
        self.counted = 0
        self._answered = 0
        self._log: deque[list[float]] = deque()  # begin of the step, when it is forgotten, how many

    def answered(self, now: float) -> int:
        """How many calls are counted although they have their answers."""
        while self._log and self._log[0][1] <= now:
            self._answered -= int(self._log.popleft()[2])
        return self._answered

    def note(self, now: float, count: int = 1) -> None:
        """So many calls have had their answers."""
        step = self.seconds / _STEPS
        until = now + self.seconds + step
        if self._log and now < self._log[-1][0] + step:
            self._log[-1][1] = until
            self._log[-1][2] += count
        else:
            self._log.append([now, until, count])
        self._answered += count

    def opens_at(self, now: float, in_flight: int, place: int) -> float:
        """The earliest moment at which the caller with `place` others before it can leave."""
        missing = in_flight + self.answered(now) + place + 1 - self.capacity
        if missing <= 0:
            return now
        for _, until, count in self._log:
            missing -= int(count)
            if missing <= 0:
                return until
        # The others have no answer yet, or have not even left: a window, and one more for each full capacity.
        rounds = 1 + max(0, ceil((missing - max(in_flight, self.capacity)) / self.capacity))
        return now + rounds * self.seconds


@dataclass(slots=True)
class Departure:
    """A call that has left; `hints` are what its answer told, if it had one."""

    lesson: int
    ours: dict[str, int]
    hints: Hints | None = None


@dataclass(frozen=True, slots=True)
class Lesson:
    """What an answer taught: quotas that are new or different, and for how long the upstream is left alone."""

    quotas: tuple[Quota, ...] = ()
    hold_seconds: float | None = None


@dataclass(slots=True)
class Schedule:
    """The limits of one upstream as far as they are known, and who is under way.

    Known limits are kept exactly. Calls that wait for each other leave one by one, at most `longest_gap` apart, so
    that nobody gets a burst; that one was late is made good for. After a refusal nothing leaves for as long as the
    upstream said, nor where an answer says that nothing is left of a limit that is not known. A refusal that no known
    limit explains makes a guess, of nine tenths of what was admitted in the second before, which then grows by one a
    second.
    """

    longest_gap: float = 0.05
    most_hold_seconds: float = 3600.0
    in_flight: int = 0
    _windows: dict[str, Window] = field(default_factory=lambda: {_GUESS: Window(_UNLIMITED, 1.0)})
    _next: float = -inf
    _held_until: float = -inf
    _lesson: int = 0
    _in_vain: int = 0
    _grown: int = 0

    def __post_init__(self) -> None:
        check_durations(longest_gap=self.longest_gap, most_hold_seconds=self.most_hold_seconds)

    def opens_at(self, now: float, place: int = 0) -> float:
        """The earliest moment at which the caller with `place` others before it can leave."""
        evenly = max(self._next, now) + place * self._gap()
        windows = [window.opens_at(now, self.in_flight, place) for window in self._windows.values()]
        return max(evenly, self._held_until, *windows)

    def depart(self, now: float) -> Departure:
        """Somebody leaves."""
        self._next = max(self._next, now - self.longest_gap) + self._gap()
        self.in_flight += 1
        ours = {}
        for name, window in self._windows.items():
            window.counted += 1
            ours[name] = self.in_flight + window.answered(now) - window.counted
        return Departure(self._lesson, ours)

    def withdraw(self) -> None:
        """Somebody who was to leave has not."""
        self.in_flight -= 1
        for window in self._windows.values():
            window.counted -= 1

    def arrive(self, now: float, departure: Departure) -> Lesson:
        """Somebody has an answer, or will have none; returns what that taught."""
        hints = departure.hints or Hints()
        learned = tuple(quota for quota in hints.quotas if self._learn(quota))
        for quota in hints.quotas:
            self._count_others(now, departure, quota)
        self.in_flight -= 1
        if hints.refused:
            return Lesson(learned, self._refused(now, departure, hints, told=bool(learned)))
        for window in self._windows.values():
            window.note(now)
        if departure.hints is not None:
            self._in_vain = 0
            self._grow()
        if hints.empty_seconds is not None:
            self._held_until = max(self._held_until, now + min(hints.empty_seconds, self.most_hold_seconds))
        if learned:
            self._lesson += 1
        return Lesson(learned)

    def learn(self, quota: Quota) -> None:
        """A limit that is known beforehand."""
        self._learn(quota)

    def _gap(self) -> float:
        evenly = max(one.seconds / one.capacity for one in self._windows.values())
        return min(self.longest_gap, evenly * _BRISK)

    def _learn(self, quota: Quota) -> bool:
        """Take a quota over; says whether it is new or different."""
        window = self._windows.get(quota.name)
        if window is None:
            if len(self._windows) > _MOST_WINDOWS:
                del self._windows[next(name for name in self._windows if name != _GUESS)]
            self._windows[quota.name] = Window(quota.capacity, quota.window_seconds)
            self._windows[_GUESS].capacity = _UNLIMITED
            return True
        # The end of a window that is not told by itself comes closer and closer.
        longer = quota.window_seconds > window.seconds
        if quota.capacity == window.capacity and not longer:
            return False
        window.seconds = max(quota.window_seconds, window.seconds)
        window.capacity = quota.capacity
        return True

    def _count_others(self, now: float, departure: Departure, quota: Quota) -> None:
        """What the upstream has counted beyond what came from here came from others, and counts as well."""
        window = self._windows.get(quota.name)  # another quota of the same answer may have taken its place
        if quota.remaining is None or window is None:
            return
        known = departure.ours.get(quota.name)
        ours = self.in_flight + window.answered(now) if known is None else known + window.counted
        others = min(quota.capacity, quota.capacity - quota.remaining) - ours
        if others > 0:
            window.note(now, others)
            window.counted += others

    def _refused(self, now: float, departure: Departure, hints: Hints, *, told: bool) -> float:
        """Hold everybody; returns for how long from now."""
        fresh = departure.lesson == self._lesson
        if fresh:
            self._in_vain += 1
            self._lesson += 1
            if not told:
                guess = self._windows[_GUESS]
                guess.capacity = max(1, min(guess.answered(now), guess.capacity) * 9 // 10)
                self._grown = 0
        patience = 2.0 ** min(self._in_vain - 1, 6) if hints.retry_after is None else hints.retry_after
        hold = min(patience, self.most_hold_seconds) if fresh or hints.retry_after is not None else 0.0
        self._held_until = max(self._held_until, now + hold)
        return self._held_until - now

    def _grow(self) -> None:
        guess = self._windows[_GUESS]
        self._grown += 1
        if guess.capacity < _UNLIMITED and self._grown >= guess.capacity:
            guess.capacity += 1
            self._grown = 0

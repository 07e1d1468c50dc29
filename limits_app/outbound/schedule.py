"""When requests may be sent, so that an upstream need not refuse any: pure decisions, with time as an argument.

Times are seconds of any clock that does not go back. Windows are the sliding windows of `engine.algorithms`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, floor, inf
from typing import Final

from limits_app.engine import SECOND_US, SlidingWindow, computed_seconds
from limits_app.engine.limits import CallLimit, RateLimitAlgorithm
from limits_app.outbound.errors import check_durations
from limits_app.outbound.hints import Hints, Quota

_MARGIN_US: Final = 1_000
"""How much longer a request counts, since upstreams may measure time in milliseconds."""
_MAX_QUOTAS: Final = 8
_MAX_CAPACITY: Final = 10**12
_OVERSHOOT_FACTOR: Final = 0.8
"""Requests are sent a little faster than evenly, so that time lost on a busy machine is made up in each window."""
_GUESS: Final = ""
"""The name of the guessed quota; quotas of an upstream have names."""


class Window:
    """At most `capacity` requests in any `seconds`, as the upstream counts them.

    A request counts from when it is sent until `seconds` after its response. The upstream received it at some time in
    between, so whatever the delays of the network are, it never receives too many. The price is one round trip per
    window.
    """

    def __init__(self, quota: Quota) -> None:
        self.change(quota.capacity, quota.window_seconds)
        self._state = self._rule.start
        self.charged = 0
        """How many requests were charged to this window, those of others included."""

    def change(self, capacity: int, seconds: float) -> None:
        """Replace the quota; the recorded use stays."""
        self.capacity = min(capacity, _MAX_CAPACITY)
        self.seconds = computed_seconds(seconds)
        self._rule = SlidingWindow(CallLimit(self.capacity, self.seconds, algorithm=RateLimitAlgorithm.SLIDING_WINDOW))

    def responded(self, now: float) -> int:
        """How many requests count although they have their responses."""
        return self._rule.used(self._state, floor(now * SECOND_US))

    def record(self, now: float, count: int = 1) -> None:
        """Record `count` requests that have their responses now."""
        self._state = self._rule.settle(self._state, ceil(now * SECOND_US) + _MARGIN_US, count)

    def opens_at(self, now: float, before: int) -> float:
        """Return the earliest time at which a request can be sent when `before` others are sent or under way."""
        full_windows, rest = divmod(before, self.capacity)
        wait_us = self._rule.wait(self._state, floor(now * SECOND_US), rest + 1)
        return now + wait_us / SECOND_US + full_windows * self.seconds


@dataclass(slots=True)
class Departure:
    """A request that was sent; set `hints` to those of its response."""

    lesson: int
    """The number of changes that the schedule had learned by then."""
    expected: dict[str, int]
    """By quota: how many requests the upstream has counted by then, less those charged before."""
    hints: Hints | None = None


@dataclass(frozen=True, slots=True)
class RateLimitUpdate:
    """New facts of a response: quotas that are new or changed, and for how long no request is sent."""

    quotas: tuple[Quota, ...] = ()
    hold_seconds: float | None = None


@dataclass(slots=True)
class PaceSchedule:
    """The quotas of one upstream as far as they are known, and the requests that are under way.

    - Without a known quota the schedule starts slowly: one request at a time, and one more with each round trip, until
      a response names a quota or the upstream refuses a request (additive increase, as in RFC 5681, section 3.1).
    - Known quotas are never exceeded. Waiting requests are sent one by one, at most `max_gap` seconds apart.
    - After a refusal no request is sent for as long as the upstream demands, at most `max_hold` seconds. So it is when
      a response reports that a limit with an unknown quota has nothing left.
    - A refusal without a known quota leads to a guess: nine tenths of the requests that were answered in the last
      second. The guess grows by one each second.
    """

    max_gap: float = 0.05
    max_hold: float = 3600.0
    in_flight: int = 0
    windows: dict[str, Window] = field(default_factory=dict)
    _next: float = -inf
    _held_until: float = -inf
    _lesson: int = 0
    _refusals: int = 0
    _concurrency: int = 1
    _responses: int = 0
    _answered: Window = field(default_factory=lambda: Window(Quota("answered", _MAX_CAPACITY, 1.0)))

    def __post_init__(self) -> None:
        check_durations(max_gap=self.max_gap, max_hold=self.max_hold)

    @property
    def has_room(self) -> bool:
        """Whether the slow start allows another request; if not, the next response may."""
        return bool(self.windows) or self.in_flight < self._concurrency

    def opens_at(self, now: float, requests_before: int = 0) -> float:
        """Return the earliest time at which the request with so many others before it can be sent."""
        evenly = max(self._next, now) + requests_before * self._gap()
        windows = [window.opens_at(now, self.in_flight + requests_before) for window in self.windows.values()]
        return max(evenly, self._held_until, *windows)

    def depart(self, now: float) -> Departure:
        """Record that a request is sent."""
        self._next = max(self._next, now - self.max_gap) + self._gap()
        self.in_flight += 1
        expected = {}
        for name, window in self.windows.items():
            window.charged += 1
            expected[name] = self.in_flight + window.responded(now) - window.charged
        return Departure(self._lesson, expected)

    def withdraw(self) -> None:
        """Record that a request was not sent after all."""
        self.in_flight -= 1
        for window in self.windows.values():
            window.charged -= 1

    def arrive(self, now: float, departure: Departure) -> RateLimitUpdate:
        """Record a response, or that there will be none; returns new facts."""
        hints = departure.hints or Hints()
        quotas = tuple(quota for quota in hints.quotas if self.learn(quota))
        for quota in hints.quotas:
            self._charge_others(now, departure, quota)
        self.in_flight -= 1
        if hints.refused:
            return RateLimitUpdate(quotas, self._refused(now, departure, hints, has_quota=bool(quotas)))
        for window in (self._answered, *self.windows.values()):
            window.record(now)
        if departure.hints is not None:
            self._refusals = 0
            self._grow()
        if hints.empty_seconds is not None:
            self._held_until = max(self._held_until, now + min(hints.empty_seconds, self.max_hold))
        self._lesson += bool(quotas)
        return RateLimitUpdate(quotas)

    def learn(self, quota: Quota) -> bool:
        """Adopt a quota; returns whether it is new or changed."""
        window = self.windows.get(quota.name)
        if window is None:
            self.windows.pop(_GUESS, None)
            if len(self.windows) >= _MAX_QUOTAS:
                del self.windows[next(iter(self.windows))]
            self.windows[quota.name] = Window(quota)
            return True
        # Upstreams that report the time to the end of a window report less and less of it.
        seconds = max(quota.window_seconds, window.seconds)
        if (quota.capacity, seconds) == (window.capacity, window.seconds):
            return False
        window.change(quota.capacity, seconds)
        return True

    def _gap(self) -> float:
        evenly = max((window.seconds / window.capacity for window in self.windows.values()), default=0.0)
        return min(self.max_gap, evenly * _OVERSHOOT_FACTOR)

    def _charge_others(self, now: float, departure: Departure, quota: Quota) -> None:
        """Charge what the upstream has counted in addition to the requests of this schedule, for other clients."""
        window = self.windows.get(quota.name)  # None: replaced by another quota of the same response
        if quota.remaining is None or window is None:
            return
        expected = departure.expected.get(quota.name)
        ours = self.in_flight + window.responded(now) if expected is None else expected + window.charged
        others = min(quota.capacity, quota.capacity - quota.remaining) - ours
        if others > 0:
            window.record(now, others)
            window.charged += others

    def _refused(self, now: float, departure: Departure, hints: Hints, *, has_quota: bool) -> float:
        """Send nothing for a while; returns for how many seconds."""
        is_first = departure.lesson == self._lesson
        if is_first:
            self._refusals += 1
            self._lesson += 1
            if not has_quota:
                self._guess(now)
        wait = 2.0 ** min(self._refusals - 1, 6) if hints.retry_after is None else hints.retry_after
        hold = min(wait, self.max_hold) if is_first or hints.retry_after is not None else 0.0
        self._held_until = max(self._held_until, now + hold)
        return self._held_until - now

    def _guess(self, now: float) -> None:
        answered = self._answered.responded(now)
        guess = self.windows.get(_GUESS)
        if guess is None:
            capacity = max(1, answered * 9 // 10)
            guess = self.windows[_GUESS] = Window(Quota("guess", capacity, 1.0))
            if answered:
                guess.record(now, answered)
        else:
            guess.change(max(1, min(answered, guess.capacity) * 9 // 10), 1.0)
        self._responses = 0

    def _grow(self) -> None:
        """Allow one more request per round trip, or per second of a guess."""
        guess = self.windows.get(_GUESS)
        self._responses += 1
        if self._responses >= (self._concurrency if guess is None else guess.capacity):
            self._responses = 0
            if guess is None:
                self._concurrency += 1
            else:
                guess.change(guess.capacity + 1, 1.0)

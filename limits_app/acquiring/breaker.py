"""Circuit breaker: stops calls to a service that fails, and lets them through again step by step.

The states, as in Michael Nygard's *Release It!* and in resilience4j:

- closed: all calls pass. When too large a part of the recent calls failed, the breaker opens.
- open: no call passes. After a delay, or when a probe from outside succeeded, the breaker is half open.
- half open: a few calls pass. When enough of them succeed the breaker closes; when one fails it opens again,
  for a longer time if the policy says so.

Times are whole microseconds of a Clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

from limits_app.acquiring.backoff import delay
from limits_app.acquiring.runtime import on_fork
from limits_app.engine import Clock, lasts
from limits_app.engine.locks import RLock

_SLICES: Final = 10
"""Into how many parts the interval is divided; calls are forgotten part by part."""


class BreakerState(StrEnum):
    """Whether calls pass."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"

    @property
    def level(self) -> int:
        """The state as a number for metrics: 0 closed, 1 half open, 2 open."""
        return (BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN).index(self)


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When a breaker opens, how long it stays open, and when it closes."""

    failure_ratio: float
    """The part of the calls within the interval that must have failed, from 0 to 1."""
    min_calls: int
    """The number of calls within the interval below which the breaker stays closed."""
    interval_us: int
    """How long calls are remembered. A call in half open state that takes longer no longer counts as running."""
    open_us: int | None = None
    """How long it stays open, doubled each time that it opens again; None: until `half_open` is called."""
    max_open_us: int | None = None
    """The longest time that it stays open; None: not bounded."""
    probes: int = 1
    """How many calls may run at the same time when it is half open."""
    probes_per_success: int = 0
    """How many more may run at the same time after each success."""
    successes: int = 1
    """How many calls must succeed before it closes."""


class _Phase:
    """The time between two changes of state, with everything that is counted in it."""

    __slots__ = ("began_at", "length_us", "running", "slices", "state", "successes")

    def __init__(self, state: BreakerState, began_at: int = 0, length_us: int | None = None) -> None:
        self.state = state
        self.began_at = began_at
        self.length_us = length_us
        """How long an open phase lasts; None: it ends only by `half_open`."""
        self.slices: dict[int, tuple[int, int]] = {}
        """The calls that have ended and those that failed, by part of the interval."""
        self.running: tuple[int, ...] = ()
        """When the calls began that run in a half open phase."""
        self.successes = 0


class Entry(NamedTuple):
    """A call that was let through; pass it to `CircuitBreaker.leave` when the call has ended."""

    phase: _Phase
    started_at: int


class CircuitBreaker:
    """The state of one service; thread safe.

    `on_change` is called with the old and the new state after each change, by the thread that caused it.

    An exception that a signal handler raises at any point leaves the breaker usable: each change of state is a single
    assignment, the lock is only held in `with` blocks, and the place of a call that never reaches `leave` is free
    again after an interval.
    """

    def __init__(
        self,
        policy: BreakerPolicy,
        *,
        clock: Clock,
        on_change: Callable[[BreakerState, BreakerState], object] | None = None,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._on_change = on_change
        self._times_opened = 0
        self._phase = _Phase(BreakerState.CLOSED)
        # Reentrant, because a finalizer may make a call while this thread holds the lock.
        self._lock = RLock()
        on_fork(self)

    def after_fork(self) -> None:
        """Start a phase of the same state in a child: calls of the parent do not end there."""
        self._lock = RLock()
        self._phase = _Phase(self._phase.state, self._phase.began_at, self._phase.length_us)

    @property
    def state(self) -> BreakerState:
        """The current state. An open breaker whose time is over is half open from the next call on."""
        return self._phase.state

    def enter(self) -> Entry | None:
        """Let a call through, or return None where it must not be made. Each entry has to be left."""
        now = self._clock()
        with self._lock:
            before = self._phase
            if before.length_us is not None and not lasts(before.began_at, before.length_us, now):
                self._phase = _Phase(BreakerState.HALF_OPEN)
            after = self._phase
            entry = self._enter(after, now)
        self._report(before, after)
        return entry

    def leave(self, entry: Entry, *, failed: bool | None) -> None:
        """Count a call that was let through and has ended.

        Pass None where the call says nothing about the service, for example because it was cancelled.
        A call that began before the last change of state is not counted.
        """
        now = self._clock()
        with self._lock:
            before = self._phase
            if entry.phase is before:
                running = list(before.running)
                if entry.started_at in running:
                    running.remove(entry.started_at)
                    before.running = tuple(running)
                self._count(before, now, failed=failed)
            after = self._phase
        self._report(before, after)

    def record(self, *, failed: bool) -> None:
        """Count a call that was made without `enter`; it is not counted while the breaker is open."""
        now = self._clock()
        with self._lock:
            before = self._phase
            self._count(before, now, failed=failed)
            after = self._phase
        self._report(before, after)

    def half_open(self) -> None:
        """Let some calls through if the breaker is open, because a probe from outside succeeded."""
        with self._lock:
            before = self._phase
            if before.state is BreakerState.OPEN:
                self._phase = _Phase(BreakerState.HALF_OPEN)
            after = self._phase
        self._report(before, after)

    def retry_after_us(self) -> int:
        """In how many microseconds a call that did not pass may be repeated, as far as the policy says."""
        phase = self._phase
        if phase.length_us is not None:
            now = self._clock()
            is_open = lasts(phase.began_at, phase.length_us, now)
            return phase.began_at + phase.length_us - now if is_open else 0
        return 0 if phase.state is BreakerState.CLOSED else self._policy.open_us or 0

    def has_recent_failures(self) -> bool:
        """Whether calls have failed within the interval, in a closed breaker."""
        current = self._slice_number(self._clock())
        return any(failures and _is_recent(number, current) for number, (_, failures) in self._phase.slices.items())

    def _report(self, before: _Phase, after: _Phase) -> None:
        if self._on_change is not None and before.state is not after.state:
            self._on_change(before.state, after.state)

    def _enter(self, phase: _Phase, now: int) -> Entry | None:
        if phase.state is BreakerState.OPEN:
            return None
        if phase.state is BreakerState.HALF_OPEN:
            interval_us = self._policy.interval_us
            running = tuple(started_at for started_at in phase.running if lasts(started_at, interval_us, now))
            if len(running) >= self._policy.probes + self._policy.probes_per_success * phase.successes:
                return None
            phase.running = (*running, now)
        return Entry(phase, now)

    def _count(self, phase: _Phase, now: int, *, failed: bool | None) -> None:
        if failed is None or phase.state is BreakerState.OPEN:
            return
        if phase.state is BreakerState.CLOSED:
            if self._fails_too_often(phase, now, failed=failed):
                self._open(now)
        elif failed:
            self._open(now)
        else:
            phase.successes += 1
            if phase.successes >= self._policy.successes:
                self._times_opened = 0
                self._phase = _Phase(BreakerState.CLOSED)

    def _fails_too_often(self, phase: _Phase, now: int, *, failed: bool) -> bool:
        """Count a call of a closed phase; a success never opens the breaker."""
        current = self._slice_number(now)
        slices = {number: counts for number, counts in phase.slices.items() if _is_recent(number, current)}
        calls, failures = slices.get(current, (0, 0))
        slices[current] = calls + 1, failures + failed
        phase.slices = slices
        calls, failures = map(sum, zip(*slices.values(), strict=True))
        return failed and calls >= self._policy.min_calls and failures >= calls * self._policy.failure_ratio

    def _open(self, now: int) -> None:
        length_us = None
        if self._policy.open_us is not None:
            longest = inf if self._policy.max_open_us is None else self._policy.max_open_us
            length_us = round(delay(self._times_opened + 1, first=self._policy.open_us, cap=longest))
        self._times_opened += 1
        self._phase = _Phase(BreakerState.OPEN, now, length_us)

    def _slice_number(self, now: int) -> int:
        return now * _SLICES // self._policy.interval_us


def _is_recent(number: int, current: int) -> bool:
    """Whether a part of the interval is one of the last; one that is later than now was before the clock was set."""
    return lasts(number, _SLICES, current)

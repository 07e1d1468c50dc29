"""The line of a limit: when each task that waits for it is tried again, and in which order.

A task joins the line once. Its place is a time: when the limit will have admitted all tasks that joined before, which
is only an estimate. The limit may admit less than that, since other requests use it too. The first task that comes
too early then delays the line, and all the others with it, so that each keeps its place. Places move a little faster
than the limit, so that a task is always ready when capacity is free.

A task that is sent again goes behind all others in the broker. While workers go through a long queue for the first
time, no task comes whose turn it is, and the limit is idle: tasks that have no place join the line without being tried,
and the first that comes again delays the line by what it is late. How long that takes depends on how long the line is.
After a longer silence those who have no place are tried, since those before them may be gone.

A line is three endless rates in the store of its limit, in microseconds: until when there are places, by how much they
are late, and how long a rejection is still remembered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from limits_app.acquiring import LimitSet, Store
from limits_app.engine import (
    MAX_AMOUNT,
    Claim,
    PlannedLimit,
    Scope,
    ScopedLimits,
    State,
    line_change_scope,
    line_scope,
    schema_of,
)
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm

LinePlace = list[int]
"""A time in microseconds of the clock of the store, and the delay of the line when it was given out."""

_END: Final = "end"
_DELAY: Final = "delay"
_REJECTION: Final = "rejected"
_MEMORY_US: Final = 900_000_000
"""For so long after a rejection no task that has a place is tried before its turn."""
_SECONDS_TO_FORGET_A_SECOND: Final = 100.0
"""In what time a delay shrinks by a second; the places move that much faster than the limit."""
_LENGTHS_OF_SILENCE: Final = 5
_SHORTEST_SILENCE_US: Final = 5_000_000
_LONGEST_SILENCE_US: Final = 60_000_000
"""How long after a rejection other tasks are assumed to wait; also as a multiple of the length of the line."""
_ON_TIME_US: Final = 5_000_000
"""A task that is late by this and by more than the silence does not show that the line is late."""
_EARLY_US: Final = 10_000
"""So much earlier than its time a task may be tried: clocks differ, and timers are not exact."""
_LEAST_DELAY_US: Final = 1000


def _endless(key: str, window_seconds: float = 1.0) -> RateLimit:
    return RateLimit(key, 1_000_000, window_seconds, RateLimitAlgorithm.GCRA, burst=MAX_AMOUNT)


_LINE: Final = (_endless(_END), _endless(_DELAY, _SECONDS_TO_FORGET_A_SECOND), _endless(_REJECTION))
_CHANGE: Final = CallLimit(1, 10)


@dataclass(frozen=True, slots=True)
class Line:
    """The line of one limit as its store had it.

    `end` and `now` are microseconds of the clock of the store. `delay` is by how many of them the places are late, and
    `silence` how many have passed since a rejection was noted. `state` changes with each of these two.
    """

    scoped: ScopedLimits
    store: Store
    now: int
    end: int
    delay: int
    silence: int
    state: str

    @property
    def is_contended(self) -> bool:
        """Whether a task without a place has to take one, since others wait that come before it."""
        believed = min(max(_LENGTHS_OF_SILENCE * (self.end - self.now), _SHORTEST_SILENCE_US), _LONGEST_SILENCE_US)
        return self.end > self.now and self.silence < believed

    def turn(self, place: LinePlace) -> int:
        """Return in how many microseconds the turn of a place comes; below 0 where it is over."""
        time, delay = place
        return time + self.delay - delay - self.now

    def must_wait(self, place: LinePlace) -> bool:
        """Whether a task is to come again at its turn, without being tried now."""
        return self.silence < _MEMORY_US and self.turn(place) > _EARLY_US

    def join(self, service_us: int, retry_us: int | None = None) -> tuple[LinePlace, int]:
        """Take the last place; return it, and in how many microseconds to come.

        The limit needs `service_us` for the amount of the task. `retry_us` is when it may admit the task, for one that
        was rejected.
        """
        line, has_joined = self, False
        if retry_us is not None and self.end <= self.now:
            line, has_joined = self._changed(retry_us, rejected=True, once=True)
        if not has_joined:
            line, _ = self._changed(service_us, rejected=False)
        return [line.end, line.delay], max(line.end - line.now, retry_us or 0)

    def come_again(self, place: LinePlace, retry_us: int) -> int:
        """Return in how many microseconds a task comes again, which was tried at its place and rejected.

        That may show that the line is late. Of all processes that read the same state one notes it.
        """
        turn, line = self.turn(place), self
        late_us = retry_us - turn
        if late_us >= _LEAST_DELAY_US and turn >= -_ON_TIME_US - min(self.silence, _LONGEST_SILENCE_US):
            line, _ = self._changed(late_us, late_us, rejected=True, once=True)
        return max(line.turn(place), retry_us)

    def _changed(self, longer_us: int, later_us: int = 0, *, rejected: bool, once: bool = False) -> tuple[Line, bool]:
        """Add to the line and to its delay; return the line as it is then, and whether that was possible.

        It is not in a full line, and with `once` after another change since this line was read.
        """
        scoped = [self.scoped]
        if once:
            change = line_change_scope(self.scoped.scope, self.state)
            scoped.append(ScopedLimits(change, schema_of((_CHANGE,), self.store.lease_us)))
        amounts = {_END: longer_us, _DELAY: later_us, _REJECTION: self.silence if rejected else 0}
        taken = LimitSet.composed(scoped, self.store).try_acquire(
            {key: min(amount, MAX_AMOUNT) for key, amount in amounts.items()}
        )
        taken.release()
        return _lines_of(taken, [self.scoped], self.store)[self.scoped.key], taken.successful


def line_of(scope: Scope, limit: PlannedLimit, store: Store, priority: str = "") -> ScopedLimits:
    """Return the scope and the limits of the line of a limit of a scope, for tasks of a priority where it has one."""
    name = f"{limit.rule.key}:{priority}" if priority else limit.rule.key
    return ScopedLimits(line_scope(scope, name), schema_of(_LINE, store.lease_us))


def read_lines(lines: Collection[ScopedLimits], store: Store, *, version: int | None = None) -> dict[str, Line]:
    """Read lines in one step of their store; they are returned by the keys of their scopes.

    Raises StaleConfiguration unless `version` is the present configuration.
    """
    prefixed = [replace(line, prefix=f"{index}:") for index, line in enumerate(lines)]
    limit_set = LimitSet.composed(prefixed, store, version=version)
    acquisition = limit_set.prepare(dict.fromkeys(limit_set.rates, 0))
    store.peek(acquisition)
    return _lines_of(acquisition, lines, store)


def _lines_of(claim: Claim, lines: Iterable[ScopedLimits], store: Store) -> dict[str, Line]:
    """Return the lines of a claim whose states a store has filled in."""
    now = claim.decided_at
    used: dict[tuple[str, str], int] = {}
    states: dict[str, list[State]] = {}
    for limit, _, state in claim.decisions():
        bucket = claim.plan.buckets[limit.position]
        used[bucket] = limit.rule.used(state, now) // limit.rule.parts_per_unit
        states.setdefault(bucket[0], []).append(state)

    def line_at(line: ScopedLimits) -> Line:
        end, delay, memory = [used[line.key, limit.key] for limit in line.schema.limits]
        return Line(line, store, now, now + end, delay, max(_MEMORY_US - memory, 0), str(states[line.key][1:]))

    return {line.key: line_at(line) for line in lines}

"""Retries: whether a call is made again, and how long it pauses before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from random import random
from threading import Lock
from time import monotonic_ns
from typing import Final, TypeGuard, cast

from limits_app.core.backoff import RetryAlgorithm, delay, jittered
from limits_app.core.clock import as_clock

__all__ = ["Attempts", "Pauses", "Retry", "RetryAlgorithm", "RetryOn", "monotonic_us"]

RetryOn = type[Exception] | Collection[type[Exception]] | Callable[[Exception, int, float], bool]
"""Types of exceptions, or a callable that sees the exception, the attempt (from 1) and the elapsed seconds."""

_SECOND: Final = 1_000_000
_LONGEST_SECONDS: Final = 86_400.0


def monotonic_us() -> int:
    """Microseconds of a clock that never goes back."""
    return monotonic_ns() // 1000


def at_random() -> float:
    """A number from 0 up to 1; a function of its own, because it finds itself again in another process."""
    return random()


@dataclass(frozen=True, kw_only=True)
class Retry:
    """When a call that raised is made again: up to `times` times, after pauses of about `wait` seconds that grow.

    A pause is taken at random within `jitter` (a share of it) to both sides, and is a day at most.
    Raises ValueError for values that cannot be.
    """

    times: int = 0
    on: RetryOn = Exception
    algorithm: str = RetryAlgorithm.EXPONENTIAL
    wait: float = 1.0
    jitter: float = 0.3
    clock: Callable[[], int] = monotonic_us
    random: Callable[[], float] = at_random

    def __post_init__(self) -> None:
        if isinstance(self.times, bool) or not isinstance(self.times, int) or self.times < 0:
            raise ValueError(f"num_retries must be a whole number, 0 or more, not {self.times!r}")
        if not isinstance(self.algorithm, str) or self.algorithm not in set(RetryAlgorithm):
            raise ValueError(f"retry_algorithm must be one of {', '.join(RetryAlgorithm)}, not {self.algorithm!r}")
        _check_number("retry_wait", self.wait, _LONGEST_SECONDS)
        _check_number("retry_jitter", self.jitter, 1)
        if not _is_rule(self.on) and not all(
            isinstance(one, type) and issubclass(one, Exception) for one in self._types
        ):
            raise ValueError(f"retry_on must be types of exceptions, or a callable, not {self.on!r}")

    def wants(self, error: Exception, attempt: int, elapsed: float) -> bool:
        """Whether an error of the attempt with this number, `elapsed` seconds after the first began, is retried."""
        return self.on(error, attempt, elapsed) if _is_rule(self.on) else isinstance(error, self._types)

    def pause_after(self, attempt: int) -> float:
        """Seconds between an attempt, counted from 1, and the next one."""
        grown = delay(attempt, first=self.wait, algorithm=self.algorithm, cap=_LONGEST_SECONDS)
        return jittered(grown, below=grown * self.jitter, above=grown * self.jitter, random=self.random)

    @property
    def _types(self) -> tuple[type[Exception], ...]:
        return tuple(self.on) if isinstance(self.on, Collection) else (cast("type[Exception]", self.on),)


def _check_number(name: str, number: float, most: float) -> None:
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= most:
        raise ValueError(f"{name} must be a number from 0 to {most:g}, not {number!r}")


def _is_rule(on: RetryOn) -> TypeGuard[Callable[[Exception, int, float], bool]]:
    return callable(on) and not isinstance(on, type)


class Attempts:
    """The attempts of one call: counts them, and knows when the first one began."""

    __slots__ = ("_began", "_made", "_retry")

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._made = 0
        self._began = retry.clock()

    def pause(self, error: Exception) -> float | None:
        """Another attempt failed: seconds until the next one, or None where there is to be none."""
        self._made += 1
        if self._made > self._retry.times:
            return None
        elapsed = (self._retry.clock() - self._began) / _SECOND
        return self._retry.pause_after(self._made) if self._retry.wants(error, self._made, elapsed) else None


class Pauses:
    """Where the calls of one worker pause, until their time has come by a clock, or until all pauses are ended."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.ended = False
        self._clock = as_clock(clock)
        self._lock = Lock()
        self._alarms: dict[Future[None], int] = {}
        self._clock.attach(self)

    def take(self, seconds: float) -> bool:
        """Pause this thread; False when pauses were ended."""
        alarm = self._alarm(seconds)
        futures.wait([alarm], seconds if self._clock.moves_by_itself else None)
        return self._over(alarm)

    async def take_async(self, seconds: float) -> bool:
        """Pause this task; False when pauses were ended."""
        alarm = self._alarm(seconds)
        try:
            await asyncio.wait([asyncio.wrap_future(alarm)], timeout=seconds if self._clock.moves_by_itself else None)
        finally:
            going_on = self._over(alarm)
        return going_on

    def moved(self, now: int) -> None:
        """The clock was moved by hand."""
        with self._lock:
            due = [alarm for alarm, until in self._alarms.items() if until <= now]
        self._ring(due)

    def end(self) -> None:
        """End all pauses, also those to come."""
        self.ended = True
        self._ring(list(self._alarms))

    def _alarm(self, seconds: float) -> Future[None]:
        alarm: Future[None] = Future()
        until = self._clock() + round(seconds * _SECOND)
        with self._lock:
            self._alarms[alarm] = until
        if self.ended or until <= self._clock():
            self._ring([alarm])
        return alarm

    def _over(self, alarm: Future[None]) -> bool:
        with self._lock:
            self._alarms.pop(alarm, None)
        return not self.ended

    def _ring(self, alarms: Iterable[Future[None]]) -> None:
        """Whoever takes an alarm out rings it, so none rings twice."""
        with self._lock:
            taken = [alarm for alarm in alarms if self._alarms.pop(alarm, None) is not None]
        for alarm in taken:
            alarm.set_result(None)

"""Retries: which calls that raised are repeated, how often, and after which pauses.

Workers and outbound clients share this module; `acquiring.backoff` has the pauses.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from math import inf
from random import random
from typing import Final, ParamSpec, Protocol, TypeGuard, TypeVar, cast

from limits_app.acquiring.backoff import RetryAlgorithm, delay, jittered
from limits_app.acquiring.waiting import TaskWaiter, ThreadWaiter, Waiter
from limits_app.engine import DAY, SECOND_US, as_clock, monotonic_us
from limits_app.engine.locks import RLock

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W", ThreadWaiter, TaskWaiter)

_LONGEST_SECONDS: Final = float(DAY)
_NO_CONTEXT: Final[Mapping[str, object]] = {}


class RetryRule(Protocol):
    """Decides whether a call that raised is repeated."""

    def __call__(self, *, exception: Exception, attempt: int, elapsed: float, **context: object) -> bool:
        """Return whether to repeat the call after attempt number `attempt` (from 1), `elapsed` seconds after its start.

        `context` depends on the caller, and may grow: workers pass `worker_class`, `method`, `args` and `kwargs`;
        outbound clients pass `request`; wrapped functions pass `function`, `args` and `kwargs`.
        """


RetryOn = type[Exception] | Collection[type[Exception]] | RetryRule


def random_fraction() -> float:
    """Return a number from 0 up to 1. A function of this module, since `random.random` cannot be pickled."""
    return random()


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """When a call that raised is repeated: up to `num_retries` times, after pauses that grow from `wait` seconds.

    - `retry_on`: types of exceptions, or a RetryRule.
    - `algorithm`: a RetryAlgorithm. A pause is at most `max_wait` seconds, before jitter.
    - `jitter`: a share from 0 to 1; a pause is drawn at random within this share to both sides.
    - `within`: no retry begins later than this many seconds after the first attempt; None: no bound.
    - `clock`: microseconds; `random`: numbers from 0 up to 1. For tests.

    Raises ValueError for invalid values.
    """

    num_retries: int = 0
    retry_on: RetryOn = Exception
    algorithm: str = RetryAlgorithm.EXPONENTIAL
    wait: float = 1.0
    max_wait: float = _LONGEST_SECONDS
    jitter: float = 0.3
    within: float | None = None
    clock: Callable[[], int] = monotonic_us
    random: Callable[[], float] = random_fraction

    def __post_init__(self) -> None:
        if isinstance(self.num_retries, bool) or not isinstance(self.num_retries, int) or self.num_retries < 0:
            raise ValueError(f"num_retries must be a whole number, 0 or more, not {self.num_retries!r}")
        if not isinstance(self.algorithm, str) or self.algorithm not in set(RetryAlgorithm):
            raise ValueError(f"retry_algorithm must be one of {', '.join(RetryAlgorithm)}, not {self.algorithm!r}")
        _check_number("retry_wait", self.wait, _LONGEST_SECONDS)
        _check_number("max_wait", self.max_wait, _LONGEST_SECONDS)
        _check_number("retry_jitter", self.jitter, 1)
        if self.within is not None:
            _check_number("within", self.within, _LONGEST_SECONDS)
        self._check_retry_on()

    def applies(self, exception: Exception, attempt: int, elapsed: float, context: Mapping[str, object]) -> bool:
        """Whether `retry_on` names the exception of an attempt, `elapsed` seconds after the first one began."""
        if _is_rule(self.retry_on):
            return self.retry_on(exception=exception, attempt=attempt, elapsed=elapsed, **context)
        return isinstance(exception, self._types)

    def pause(self, attempt: int) -> float:
        """Return a pause in seconds after an attempt, counted from 1."""
        grown = delay(attempt, first=self.wait, algorithm=self.algorithm, cap=self.max_wait)
        return jittered(grown, below=grown * self.jitter, above=grown * self.jitter, random=self.random)

    @property
    def _types(self) -> tuple[type[Exception], ...]:
        on = self.retry_on
        return tuple(on) if isinstance(on, Collection) else (cast("type[Exception]", on),)

    def _check_retry_on(self) -> None:
        if _is_rule(self.retry_on):
            parameters = inspect.signature(self.retry_on).parameters.values()
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
                raise ValueError(
                    "a callable as retry_on must accept the keywords exception, attempt, elapsed and **context, "
                    f"unlike {self.retry_on!r}"
                )
        elif not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in self._types):
            raise ValueError(f"retry_on must be types of exceptions, or a callable, not {self.retry_on!r}")


def _check_number(name: str, number: float, most: float) -> None:
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= most:
        raise ValueError(f"{name} must be a number from 0 to {most:g}, not {number!r}")


def _is_rule(on: RetryOn) -> TypeGuard[RetryRule]:
    return callable(on) and not isinstance(on, type)


class Retrier:
    """Makes calls under a policy. Thread safe; calls in threads and in asyncio may be mixed.

    `min_wait` returns how many seconds the pause after an exception lasts at least. `on_retry` receives the number of
    the attempt and the seconds of the pause that follows it.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        *,
        min_wait: Callable[[BaseException], float] | None = None,
        on_retry: Callable[[int, float], object] | None = None,
    ) -> None:
        self.policy = policy
        self.min_wait = min_wait
        self.on_retry = on_retry
        self.pauses = Pauses(policy.clock)

    def call(self, function: Callable[[], T], context: Mapping[str, object] = _NO_CONTEXT) -> T:
        """Call `function` until it returns; raises the exception of the last attempt. A RetryRule gets `context`."""
        attempts = _Attempts(self, context)
        while True:
            try:
                return function()
            except Exception as error:
                pause = attempts.pause_after(error)
                if pause is None or not self.pauses.sleep(pause):
                    raise

    async def acall(self, function: Callable[[], Awaitable[T]], context: Mapping[str, object] = _NO_CONTEXT) -> T:
        """Call a coroutine function until it returns; raises the exception of the last attempt."""
        attempts = _Attempts(self, context)
        while True:
            try:
                return await function()
            except Exception as error:
                pause = attempts.pause_after(error)
                if pause is None or not await self.pauses.asleep(pause):
                    raise

    def wrap(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """Return a coroutine function that calls `function`, and repeats calls that raise."""

        @wraps(function)
        async def retried(*args: P.args, **kwargs: P.kwargs) -> T:
            call = partial(function, *args, **kwargs)
            return await self.acall(call, {"function": function, "args": args, "kwargs": kwargs})

        return retried


class _Attempts:
    """The attempts of one call."""

    def __init__(self, retrier: Retrier, context: Mapping[str, object]) -> None:
        self._retrier = retrier
        self._context = context
        self._failed = 0
        self._started_at = retrier.policy.clock()

    def pause_after(self, exception: Exception) -> float | None:
        """Return the seconds from an attempt that raised to the next one; None where there is no further attempt."""
        policy, min_wait, on_retry = self._retrier.policy, self._retrier.min_wait, self._retrier.on_retry
        self._failed += 1
        elapsed = (policy.clock() - self._started_at) / SECOND_US
        if self._failed > policy.num_retries or not policy.applies(exception, self._failed, elapsed, self._context):
            return None
        pause = policy.pause(self._failed)
        if min_wait is not None:
            pause = max(pause, min_wait(exception))
        if policy.within is not None and elapsed + pause > policy.within:
            return None
        if on_retry is not None:
            on_retry(self._failed, pause)
        return pause


class Pauses:
    """Pauses of threads and tasks, each until its time by a clock; `end` ends them all. Thread safe."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = as_clock(clock)
        self._lock = RLock()
        self._waiters: dict[Waiter, int] = {}
        """Until when each waits."""
        self._ended = False
        self._clock.attach(self)

    @property
    def count(self) -> int:
        """How many threads and tasks pause, and are to pause on."""
        return len(self._waiters)

    def sleep(self, seconds: float) -> bool:
        """Pause this thread; returns False when pauses were ended."""
        with self._entered(ThreadWaiter(), seconds) as (waiter, until):
            while (left := self._left(until)) > 0:
                waiter.sleep(left if self._clock.moves_by_itself else None)
        return not self._ended

    async def asleep(self, seconds: float) -> bool:
        """Pause this task; returns False when pauses were ended."""
        with self._entered(TaskWaiter(), seconds) as (waiter, until):
            while (left := self._left(until)) > 0:
                await waiter.sleep(left if self._clock.moves_by_itself else None)
        return not self._ended

    def moved(self, now: int) -> None:
        """A test has moved the clock."""
        self._wake_until(now)

    def end(self) -> None:
        """End all pauses, and those that are still to come."""
        self._ended = True
        self._wake_until(inf)

    @contextmanager
    def _entered(self, waiter: W, seconds: float) -> Iterator[tuple[W, int]]:
        until = self._clock() + round(seconds * SECOND_US)
        with self._lock:
            self._waiters[waiter] = until
        try:
            yield waiter, until
        finally:
            with self._lock:
                self._waiters.pop(waiter, None)

    def _left(self, until: int) -> float:
        return 0.0 if self._ended else (until - self._clock()) / SECOND_US

    def _wake_until(self, now: float) -> None:
        with self._lock:
            due = [waiter for waiter, until in self._waiters.items() if until <= now]
            for waiter in due:
                del self._waiters[waiter]
        for waiter in due:
            waiter.wake()

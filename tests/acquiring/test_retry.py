"""Retries and back-off: which, how often, and after how long, on a clock that is moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any

import pytest

from limits_app.acquiring.backoff import RetryAlgorithm, delay, jittered
from limits_app.acquiring.retry import Pauses, Retrier, RetryPolicy
from limits_app.testing import FakeClock
from tests.acquiring.watched import Caller

SECONDS = 20


@pytest.mark.parametrize("algorithm", RetryAlgorithm)
def test_pauses_are_at_most_a_day_or_max_wait(algorithm: str) -> None:
    assert RetryPolicy(algorithm=algorithm, wait=86_400, jitter=0).pause(1_000_000) == 86_400
    assert RetryPolicy(algorithm=algorithm, wait=5, max_wait=7, jitter=0).pause(9) == (5 if algorithm == "fixed" else 7)
    assert RetryPolicy(algorithm=algorithm, wait=0).pause(1_000_000) == 0


def test_jitter_is_a_share_to_both_sides() -> None:
    policy = RetryPolicy(algorithm="fixed", wait=10, jitter=0.3, random=lambda: 0.25)
    assert policy.pause(1) == pytest.approx(8.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_retries": -1}, "num_retries must be a whole number, 0 or more, not -1"),
        ({"algorithm": "cubic"}, "retry_algorithm must be one of fixed, linear, exponential, fibonacci, not 'cubic'"),
        ({"algorithm": None}, "retry_algorithm must be one of fixed, linear, exponential, fibonacci, not None"),
        ({"max_wait": -1}, "max_wait must be a number from 0 to 86400, not -1"),
        ({"within": float("nan")}, "within must be a number from 0 to 86400, not nan"),
        ({"retry_on": "LookupError"}, "retry_on must be types of exceptions, or a callable, not 'LookupError'"),
        ({"retry_on": lambda exception, attempt, elapsed: True}, r"must accept the keywords .* and \*\*context"),
    ],
)
def test_invalid_values_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RetryPolicy(**options)


class Failing:
    """Raises for so many calls, then returns how often it was called."""

    def __init__(self, times: int, error: BaseException | None = None, before: Callable[[], object] = int) -> None:
        self.calls = 0
        self.times = times
        self.error = error or KeyError("no")
        self.before = before

    def __call__(self) -> int:
        self.before()
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return self.calls

    async def later(self) -> int:
        return self()


def outcome(retrier: Retrier, failing: Failing, *, asynchronous: bool, **context: object) -> int | BaseException:
    """The result of a call, or its exception."""
    try:
        if asynchronous:
            return asyncio.run(retrier.acall(failing.later, context))
        return retrier.call(failing, context)
    except BaseException as error:  # noqa: BLE001 - the test compares it
        return error


both = pytest.mark.parametrize("asynchronous", [False, True])


@both
@pytest.mark.parametrize("on", [LookupError, [LookupError], (OSError, LookupError), {LookupError}, Exception])
def test_exceptions_of_the_types_are_retried(on: Any, asynchronous: bool) -> None:
    retrier = Retrier(RetryPolicy(num_retries=2, retry_on=on, wait=0))
    assert outcome(retrier, Failing(2), asynchronous=asynchronous) == 3


@both
@pytest.mark.parametrize("on", [OSError, [], [OSError, ValueError]])
def test_other_exceptions_are_not(on: Any, asynchronous: bool) -> None:
    failing = Failing(1)
    retrier = Retrier(RetryPolicy(num_retries=2, retry_on=on, wait=0))
    assert outcome(retrier, failing, asynchronous=asynchronous) is failing.error
    assert failing.calls == 1


@both
@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError()])
def test_interruptions_are_never_retried(error: BaseException, asynchronous: bool) -> None:
    failing = Failing(1, error)
    retrier = Retrier(RetryPolicy(num_retries=2, retry_on=lambda **_: True, wait=0))
    assert isinstance(outcome(retrier, failing, asynchronous=asynchronous), type(error))
    assert failing.calls == 1


@both
def test_the_exception_of_the_last_attempt_is_raised(asynchronous: bool) -> None:
    failing, reported = Failing(9), list[Any]()
    retrier = Retrier(RetryPolicy(num_retries=2, wait=0), on_retry=lambda *pause: reported.append(pause))
    assert outcome(retrier, failing, asynchronous=asynchronous) is failing.error
    assert failing.calls == 3
    assert reported == [(1, 0), (2, 0)]


@both
def test_a_callable_receives_exception_attempt_elapsed_time_and_context(clock: FakeClock, asynchronous: bool) -> None:
    seen = []

    def rule(*, exception: Exception, attempt: int, elapsed: float, **context: object) -> bool:
        seen.append((exception.args, attempt, elapsed, context))
        return elapsed < 5

    failing = Failing(9, before=lambda: clock.advance(2.5))
    retrier = Retrier(RetryPolicy(num_retries=10, retry_on=rule, wait=0, clock=clock))
    assert outcome(retrier, failing, asynchronous=asynchronous, method="work") is failing.error
    assert seen == [(("no",), 1, 2.5, {"method": "work"}), (("no",), 2, 5.0, {"method": "work"})]


@both
def test_no_retry_begins_after_the_time_is_over(clock: FakeClock, asynchronous: bool) -> None:
    failing = Failing(9, before=lambda: clock.advance(2.5))
    retrier = Retrier(RetryPolicy(num_retries=10, wait=0, within=6, clock=clock))
    assert outcome(retrier, failing, asynchronous=asynchronous) is failing.error
    assert failing.calls == 3


def test_a_pause_lasts_as_long_as_the_exception_demands(clock: FakeClock) -> None:
    failing, reported = Failing(1), list[Any]()
    policy = RetryPolicy(num_retries=1, wait=1, jitter=0, within=5, clock=clock)
    retrier = Retrier(policy, min_wait=lambda error: 7.0, on_retry=lambda *pause: reported.append(pause))
    assert outcome(retrier, failing, asynchronous=False) is failing.error
    assert reported == [], "the pause would end too late"


def test_any_coroutine_function_can_be_wrapped() -> None:
    seen, calls = [], []

    def rule(*, exception: Exception, **context: object) -> bool:
        seen.append(context)
        return True

    async def fetch(url: str, *, page: int = 0) -> str:
        calls.append(url)
        if len(calls) < 3:
            raise ConnectionError(url)
        return f"{url}?{page}"

    wrapped: Callable[..., Awaitable[str]] = Retrier(RetryPolicy(num_retries=3, retry_on=rule, wait=0)).wrap(fetch)

    async def main() -> str:
        return await wrapped("a", page=2)

    assert asyncio.run(main()) == "a?2"
    assert wrapped.__name__ == "fetch"
    assert seen[0] == {
        "attempt": 1,
        "elapsed": seen[0]["elapsed"],
        "function": fetch,
        "args": ("a",),
        "kwargs": {"page": 2},
    }


def until_pausing(pauses: Pauses, number: int = 1) -> None:
    """Wait until so many threads or tasks pause."""
    end = monotonic() + SECONDS
    while pauses.count < number:
        assert monotonic() < end


def pause(pauses: Pauses, asynchronous: bool, seconds: float = 2) -> bool:
    return asyncio.run(pauses.asleep(seconds)) if asynchronous else pauses.sleep(seconds)


@both
def test_a_pause_ends_at_its_time_and_not_earlier(clock: FakeClock, asynchronous: bool) -> None:
    pauses = Pauses(clock)
    caller = Caller(pause, pauses, asynchronous)
    until_pausing(pauses)
    clock.move(1_999_999)
    assert pauses.count == 1
    clock.move(1)
    assert caller.result() is True
    assert not pauses.count


@both
def test_pauses_can_be_ended_and_those_to_come(clock: FakeClock, asynchronous: bool) -> None:
    failing = Failing(9)
    retrier = Retrier(RetryPolicy(num_retries=5, wait=60, clock=clock))
    caller = Caller(outcome, retrier, failing, asynchronous=asynchronous)
    until_pausing(retrier.pauses)
    retrier.pauses.end()
    assert caller.result() is failing.error
    assert failing.calls == 1
    assert pause(retrier.pauses, asynchronous) is False


@both
def test_pauses_by_a_clock_that_moves_by_itself(asynchronous: bool) -> None:
    pauses = Pauses(RetryPolicy().clock)
    assert pause(pauses, asynchronous, 0)
    assert pause(pauses, asynchronous, 0.001)


def test_a_cancelled_pause_leaves_nothing_behind(clock: FakeClock) -> None:
    pauses = Pauses(clock)

    async def abandon() -> None:
        task = asyncio.create_task(pauses.asleep(2))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(abandon())
    assert not pauses.count
    clock.advance(5)


@pytest.mark.parametrize(
    ("algorithm", "delays"),
    [
        ("fixed", [2, 2, 2, 2, 2, 2]),
        ("linear", [2, 4, 6, 8, 10, 12]),
        ("exponential", [2, 4, 8, 16, 32, 64]),
        ("fibonacci", [2, 2, 4, 6, 10, 16]),
    ],
)
def test_delays_grow_by_the_algorithm(algorithm: str, delays: Sequence[float]) -> None:
    assert [delay(attempt, first=2, algorithm=algorithm) for attempt in range(1, 7)] == delays


@pytest.mark.parametrize("algorithm", RetryAlgorithm)
def test_no_delay_is_longer_than_the_cap(algorithm: RetryAlgorithm) -> None:
    assert delay(1_000_000, first=5, algorithm=algorithm, cap=5) == 5
    assert delay(1, first=7, algorithm=algorithm, cap=5) == 5
    assert delay(1_000_000, first=0, algorithm=algorithm, cap=5) == 0


def test_an_unknown_algorithm_is_an_error() -> None:
    with pytest.raises(ValueError, match="quadratic"):
        delay(1, first=1, algorithm="quadratic")


@pytest.mark.parametrize(("drawn", "value"), [(0.0, 7.0), (0.25, 8.5), (0.5, 10.0), (0.75, 11.5)])
def test_jitter_is_even_between_both_ends(drawn: float, value: float) -> None:
    assert jittered(10, below=3, above=3, random=lambda: drawn) == pytest.approx(value)


def test_jitter_differs_each_time_and_stays_within_its_ends() -> None:
    assert jittered(10) == 10
    values = [jittered(10, above=1) for _ in range(100)]
    assert len(set(values)) > 50
    assert all(10 <= value <= 11 for value in values)

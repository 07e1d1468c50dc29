"""The log of a sliding window, and that it stays short."""

from __future__ import annotations

import random

import pytest

from limits_app.engine.algorithms.window_log import EMPTY_LOG, Log
from limits_app.engine.limits import RateLimit, RateLimitAlgorithm
from tests.engine.algorithms.driven import NOW, SECOND, Driven

SLIDING_WINDOW = RateLimitAlgorithm.SLIDING_WINDOW


def logged(*entries: tuple[int, int]) -> Log:
    log = EMPTY_LOG
    for time, total in entries:
        log = log.append(time, total, drop=0)
    return log


def entries(log: Log) -> list[tuple[int, int]]:
    assert len(log) == len(log.arrays()[0]) == len(log.arrays()[1])
    return [(log.time(index), log.total(index)) for index in range(len(log))]


def test_a_stored_log_is_fetched_once_when_it_is_read() -> None:
    fetched: list[bytes] = []

    def fetch() -> bytes:
        fetched.append(logged((1, 5), (2, 7)).pack())
        return fetched[-1]

    log = Log.stored(fetch)
    assert log.is_stored
    assert fetched == []
    assert entries(log) == [(1, 5), (2, 7)]
    assert not log.is_stored
    assert entries(log.append(3, 9, drop=1)) == [(2, 7), (3, 9)]
    assert len(fetched) == 1


def test_a_stored_log_that_does_not_exist_is_empty() -> None:
    log = Log.stored(lambda: None)
    assert entries(log) == []
    assert log.pack() == b""


@pytest.mark.parametrize("log", [EMPTY_LOG, logged((1, 5)), logged((NOW, 2**52), (NOW + 1, 2**53 - 1))])
def test_packed_log_is_unpacked(log: Log) -> None:
    packed = log.pack()
    assert len(packed) == 16 * len(log)
    assert entries(Log.stored(lambda: packed)) == entries(log)


TRAFFIC = {
    "one_per_step_and_a_microsecond": lambda dice, step: step + 1,
    "one_per_step": lambda dice, step: step,
    "dense": lambda dice, step: max(step // 7, 1),
    "pairs": lambda dice, step: dice.choice([1, step, step + 1]),
    "anything": lambda dice, step: dice.randint(0, 3 * step + 2),
}


@pytest.mark.parametrize("seconds", [0.001, 0.5, 1, 1.024, 7, 3600])
def test_log_has_at_most_1024_entries(seconds: float) -> None:
    step = round(seconds * SECOND) // 1024
    for name, pause in TRAFFIC.items():
        tested, dice, now, longest = Driven(RateLimit("k", 10**6, seconds, SLIDING_WINDOW)), random.Random(7), NOW, 0
        for _ in range(4000):
            now += pause(dice, step)
            assert tested.take(now, 1)
            longest = max(longest, len(tested.state[-1]))
        assert longest <= 1024, name


def test_the_log_is_as_fine_as_a_thousandth_of_the_window() -> None:
    tested, longest = Driven(RateLimit("k", 10**6, 1.024, SLIDING_WINDOW)), 0
    for now in range(NOW, NOW + 3 * SECOND, 1001):
        assert tested.take(now, 1)
        longest = max(longest, len(tested.state[-1]))
    assert longest >= 1000


def test_running_totals_start_again_before_they_grow_out_of_a_double() -> None:
    # Each turn of a window charges 2^49 units, as if that had been reported: 2^53 would be reached after 16.
    tested, now = Driven(RateLimit("k", 10, 1, SLIDING_WINDOW)), NOW
    for _ in range(100):
        half = 2**48
        tested.state = tested.rule.settle(tested.state, now, half)
        tested.state = tested.rule.settle(tested.state, now + SECOND // 2, half)
        now += SECOND
        assert tested.used(now - 1) == 2 * half
        assert tested.used(now) == half
        assert tested.state[1] < 2**52
    assert tested.wait(now, 10) == SECOND // 2
    assert tested.used(now + SECOND // 2 - 1) == half
    assert tested.take(now + SECOND // 2, 10)


def test_totals_stay_exact_when_they_start_again_with_half_of_the_log_gone() -> None:
    tested, huge = Driven(RateLimit("k", 10, 1, SLIDING_WINDOW)), 2**50
    for ms, amount, used in [
        (0, huge, huge),
        (400, huge, 2 * huge),
        (800, huge, 3 * huge),
        (1100, 5, 2 * huge + 5),
        (1300, 7, 2 * huge + 12),
        (1900, 3, 15),
        (2100, 0, 10),
        (2300, 0, 3),
        (2900, 0, 0),
    ]:
        now = NOW + ms * 1000
        tested.state = tested.rule.settle(tested.state, now, amount)
        assert tested.used(now) == used


def test_a_window_that_was_made_longer_keeps_its_finer_entries_beside_its_own() -> None:
    tested, now = Driven(RateLimit("k", 10**6, 1.024, SLIDING_WINDOW)), NOW
    for _ in range(3000):
        now += 1001
        assert tested.take(now, 1)
    tested = tested.carried_into(RateLimit("k", 10**6, 102.4, SLIDING_WINDOW), now)
    longest = 0
    for _ in range(3000):
        now += 100_001
        assert tested.take(now, 1)
        longest = max(longest, len(tested.state[-1]))
    assert longest <= 2048
    assert len(tested.state[-1]) <= 1024

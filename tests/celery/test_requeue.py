"""Five minutes of simulated load: two workers whose tasks are refused, wait, come back, and are killed."""

from __future__ import annotations

from bisect import bisect_left
from heapq import heapify, heappop, heappush
from random import Random

import pytest

from limits_app import CallLimit, LimitSet, RateLimitAlgorithm
from limits_app.integrations.celery.requeue import jittered, seconds_to_wait
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock

pytestmark = pytest.mark.slow

SECONDS = 300
PER_SECOND = 20
BACKLOG = 100
TASK_US = 50_000
KILL_EVERY_US = 10_000_000
VISIBILITY_US = 10_000_000
LONGEST_SECONDS = 900
LATENCY_US = 5_000
"""The most that a message takes from the broker into a process."""


class Load:
    """Tasks come as fast as the limit admits them, behind a backlog; every ten seconds one of two workers dies.

    What it runs then is charged, and comes back when the broker takes it for lost.
    """

    def __init__(self) -> None:
        self.clock = FakeClock()
        limit = CallLimit.per_second(PER_SECOND, algorithm=RateLimitAlgorithm.SLIDING_WINDOW)
        self.limits = LimitSet([limit], store=MemoryStore(clock=self.clock))
        self.random = Random(1)
        self.start = self.clock()
        sent = range(BACKLOG + SECONDS * PER_SECOND)
        step = 1_000_000 // PER_SECOND
        self.messages = [(self.start + max(0, task - BACKLOG) * step, task, 0) for task in sent]
        self.begun: list[int] = []
        self.done: list[int] = []
        self.tries = 0

    def run(self) -> None:
        heapify(self.messages)
        while self.messages:
            moment, task, tries = heappop(self.messages)
            # Messages overtake each other by a little, but nobody comes before now.
            now = max(self.clock(), moment + self.random.randrange(LATENCY_US))
            self.clock.advance((now - self.clock()) / 1_000_000)
            self._try(task, tries)

    def _try(self, task: int, tries: int) -> None:
        acquisition, now = self.limits.try_acquire(), self.clock()
        self.tries += 1
        if not acquisition:
            seconds = jittered(seconds_to_wait(acquisition, tries), LONGEST_SECONDS)
            heappush(self.messages, (now + round(seconds * 1_000_000), task, tries + 1))
            return
        acquisition.release()
        self.begun.append(now)
        elapsed = now - self.start
        is_killed = elapsed // KILL_EVERY_US != (elapsed + TASK_US) // KILL_EVERY_US and self.random.random() < 0.5
        if is_killed:
            heappush(self.messages, (now + VISIBILITY_US, task, tries))
        else:
            self.done.append(task)


@pytest.fixture(scope="module")
def load() -> Load:
    load = Load()
    load.run()
    return load


def test_no_task_is_lost_or_done_twice(load: Load) -> None:
    assert sorted(load.done) == list(range(BACKLOG + SECONDS * PER_SECOND))
    assert len(load.begun) > len(load.done)


def test_no_window_has_more_than_the_limit_admits(load: Load) -> None:
    assert all(later - first >= 1_000_000 for first, later in zip(load.begun, load.begun[PER_SECOND:], strict=False))


def test_at_least_98_percent_of_the_limit_are_used(load: Load) -> None:
    within = bisect_left(load.begun, load.start + SECONDS * 1_000_000)
    assert within >= 0.98 * SECONDS * PER_SECOND


def test_a_task_is_tried_few_times(load: Load) -> None:
    assert load.tries <= 3 * len(load.begun)

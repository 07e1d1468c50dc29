"""Lines of waiting tasks in simulated time: order, use of the limit, and how often a task is tried."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from random import Random

import pytest

from limits_app import CallLimit, LimitSet, QuotaLimit, RateLimit, RateLimitAlgorithm
from limits_app.engine.amounts import GivenAmount
from limits_app.engine.limit_checks import MAX_WINDOW_MILLI
from limits_app.engine.limits import LimitDefinition
from limits_app.engine.priorities import of_its_class
from limits_app.services.task_lines import LinePlace
from limits_app.services.task_waiting import Waiting
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock

SECOND = 1_000_000
LATENCY_US = 5_000
"""The most that a message takes from the broker into a process."""
LONGEST_SECONDS = 900.0


@dataclass(order=True)
class Message:
    """A task on its way: when it comes, and its headers."""

    at: int
    sequence: int
    task: int = field(compare=False)
    tries: int = field(default=0, compare=False)
    places: dict[str, LinePlace] = field(default_factory=dict, compare=False)
    paused: Waiting | None = field(default=None, compare=False)


class Load:
    """Tasks that share one limit, in messages that overtake each other by a little.

    `others` are times at which a request that is no task takes a unit, if it can. Every `kill_every` seconds the tasks
    that run are killed; the broker delivers them again after ten seconds.
    """

    def __init__(
        self, limit: LimitDefinition, arrivals: Iterable[float], *, others: Iterable[float] = (), kill_every: int = 0
    ):
        self.clock = FakeClock()
        self.limits = LimitSet([limit], store=MemoryStore(clock=self.clock))
        self.requested: Mapping[str, GivenAmount] = {limit.key: 1}
        self.start = self.clock()
        self.kill_every_us = kill_every * SECOND
        self.others = sorted(self.start + round(second * SECOND) for second in others)
        self.messages: list[Message] = []
        self.sequence = count()
        self.random = Random(1)
        for task, second in enumerate(arrivals):
            self.send(Message(self.start + round(second * SECOND), 0, task))
        self.begun: list[int] = []
        self.done: list[int] = []
        self.tries = self.visits = 0

    def send(self, message: Message) -> None:
        heappush(self.messages, replace(message, sequence=next(self.sequence)))

    def run(self) -> Load:
        while self.messages:
            self.step()
        return self

    def step(self) -> None:
        """Deliver the next message."""
        message = heappop(self.messages)
        self._pass_to(max(self.clock(), message.at + self.random.randrange(LATENCY_US)))
        if again := self._visit(message):
            self.send(again)

    def _pass_to(self, now: int) -> None:
        while self.others and self.others[0] <= now:
            self.clock.advance(max(self.others.pop(0) - self.clock(), 0) / SECOND)
            self.limits.try_acquire(self.requested).release()
        self.clock.advance((now - self.clock()) / SECOND)

    def _visit(self, message: Message) -> Message | None:
        """Return what is sent again, or stays in its process."""
        waiting = message.paused or Waiting(message.places)
        seconds = waiting.seconds_to_turn(self.limits.prepare(self.requested, checks=False))
        if not seconds:
            self.tries += 1
            acquisition = self.limits.try_acquire(self.requested)
            if acquisition:
                acquisition.release()
                self.visits += 1
                self.begin_task(replace(message, paused=None))
                return None
            seconds = waiting.seconds_to_retry(acquisition, message.tries)
        at = self.clock() + round(min(seconds, LONGEST_SECONDS) * SECOND)
        if waiting.pauses(seconds):
            return replace(message, at=at, paused=waiting)
        self.visits += 1
        return Message(at, 0, message.task, message.tries + 1, waiting.places)

    def begin_task(self, message: Message) -> None:
        now = self.clock()
        self.begun.append(now)
        elapsed = now - self.start
        is_killed = self.kill_every_us and elapsed // self.kill_every_us != (elapsed + 50_000) // self.kill_every_us
        if is_killed and self.random.random() < 0.5:
            message.at = now + 10 * SECOND
            self.send(message)
        else:
            self.done.append(message.task)

    @property
    def seconds(self) -> float:
        """When the last task began."""
        return (self.begun[-1] - self.start) / SECOND

    @property
    def displacements(self) -> list[int]:
        """By how many places each task began earlier or later than it arrived."""
        return [abs(place - task) for place, task in enumerate(self.done)]


class SlowWorkers(Load):
    """Load for few processes, which take so many seconds for a message, and take them as they become due."""

    def __init__(self, limit: LimitDefinition, arrivals: Iterable[float], processes: int, seconds: float) -> None:
        super().__init__(limit, arrivals)
        self.processes: list[tuple[int, int, Message | None]] = [(self.start, one, None) for one in range(processes)]
        self.visit_us = round(seconds * SECOND)

    def run(self) -> SlowWorkers:
        while self.messages or any(message for _, _, message in self.processes):
            self.step()
        return self

    def step(self) -> None:
        """Let the process that is free first go on with its message, take one, or look again a little later."""
        now, process, message = heappop(self.processes)
        if message is None and self.messages and self.messages[0].at <= now:
            message = heappop(self.messages)
            now += self.random.randrange(self.visit_us, 2 * self.visit_us) * 2 // 3
        elif message is None:
            heappush(self.processes, (now + LATENCY_US, process, None))
            return
        self._pass_to(max(now, self.clock()))
        again = self._visit(message)
        if again is not None and again.paused:
            heappush(self.processes, (again.at, process, again))
            return
        if again is not None:
            self.send(again)
        heappush(self.processes, (self.clock(), process, None))


def at_once(tasks: int) -> list[float]:
    """Tasks that arrive within two milliseconds of each other."""
    return [task * 0.002 for task in range(tasks)]


def overload(tasks: int, per_second: float) -> list[float]:
    return [task / per_second for task in range(tasks)]


LIMITS = [
    *[CallLimit.per_second(20, algorithm=algorithm) for algorithm in RateLimitAlgorithm],
    CallLimit(1, 0.05, RateLimitAlgorithm.GCRA),
    CallLimit(2, 0.1, RateLimitAlgorithm.SLIDING_WINDOW),
    CallLimit(7, 12),
    CallLimit(100, 26_280),
    QuotaLimit("pages", 100, "hour"),
    QuotaLimit("pages", 60, session_seconds=7.3),
]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_tasks_that_arrive_together_run_in_their_order(limit: LimitDefinition) -> None:
    load = Load(limit, at_once(400)).run()
    assert sorted(load.done) == list(range(400))
    assert max(load.displacements) <= 0.05 * 400


@pytest.mark.parametrize("limit", LIMITS[:6], ids=str)
def test_tasks_that_arrive_faster_than_the_limit_run_in_their_order(limit: LimitDefinition) -> None:
    load = Load(limit, overload(900, 30)).run()
    assert sum(load.displacements) / 900 <= 0.05 * 300
    assert load.seconds <= 1.06 * 900 / 20


@pytest.mark.parametrize("others_per_second", [5, 15])
def test_other_requests_do_not_disturb_the_order(others_per_second: int) -> None:
    random, at, others = Random(2), 0.0, []
    while at < 200:
        at += random.expovariate(others_per_second)
        others += [at, at, at]
    load = Load(CallLimit.per_second(20), at_once(400), others=others).run()
    assert max(load.displacements) <= 0.05 * 400


def test_early_tasks_keep_their_places_beyond_the_longest_countdown() -> None:
    load = Load(CallLimit.per_minute(2, burst=1), at_once(100)).run()
    assert load.seconds > 3 * LONGEST_SECONDS
    assert max(load.displacements) <= 0.05 * 100
    assert load.seconds <= 1.01 * 99 * 30


@pytest.mark.parametrize("limit", [*LIMITS[:4], CallLimit.per_second(90)], ids=str)
@pytest.mark.parametrize("speed", [2, pytest.param(3, marks=pytest.mark.release), 20])
def test_workers_that_are_little_faster_than_the_limit_keep_the_order(limit: RateLimit, speed: float) -> None:
    per_second = limit.capacity / limit.window_seconds
    load = SlowWorkers(limit, at_once(500), 4, 4 / (speed * per_second)).run()
    assert sorted(load.done) == list(range(500))
    assert sum(load.displacements) / 500 <= 0.01 * 500
    assert load.seconds <= (1.2 + 1 / speed) * 500 / per_second  # the limit is idle until each was seen once
    assert load.visits <= 3 * 500


@pytest.mark.parametrize(
    ("waiting", "longest_seconds"), [(10, 6), (400, 20), pytest.param(10_000, 61, marks=pytest.mark.release)]
)
def test_tasks_of_a_line_that_was_purged_hold_up_no_others_for_long(waiting: int, longest_seconds: float) -> None:
    load = Load(CallLimit.per_second(20), [task * 0.000_02 for task in range(20 + waiting)])
    for _ in range(20 + waiting):
        load.step()
    load.messages.clear()
    purged = load.clock()
    begun = len(load.begun)
    for second in range(1000):
        load.send(Message(purged + second * SECOND // 10, 0, 1_000_000 + second))
    load.run()
    assert load.begun[begun] - purged <= longest_seconds * SECOND
    assert len(load.done) == begun + 1000


WINDOWS = [
    *[milli / 1000 for milli in (*range(1, 400), 59_999, MAX_WINDOW_MILLI - 1)],
    *range(1, 130),
    *[180, 300, 900, 1200, 3600, 7200, 43_200, 86_400, 604_800, MAX_WINDOW_MILLI // 1000],
]


def test_rejected_tasks_wait_with_windows_of_any_length() -> None:
    for window in WINDOWS:
        limits = LimitSet([RateLimit("tokens", 2.5, window, burst=1)], store=MemoryStore(clock=FakeClock()))
        assert limits.try_acquire({"tokens": 1})
        waits = []
        for _ in range(4):
            refused = limits.try_acquire({"tokens": 1})
            waits.append(Waiting({}).seconds_to_retry(refused, 0))
            assert waits[-1] >= refused.outcome.retry_after
        assert waits == sorted(waits)
        assert waits[-1] <= max(refused.outcome.retry_after, 4 * window / 2.5 + 0.001)


def refused_by(limits: LimitSet, waiting: Waiting) -> float:
    return waiting.seconds_to_retry(limits.try_acquire(), 0)


def test_of_tasks_that_find_the_line_late_at_the_same_time_one_delays_it() -> None:
    clock = FakeClock()
    limits = LimitSet([CallLimit(1, 100)], store=MemoryStore(clock=clock))
    assert limits.try_acquire()
    first, second, third = [Waiting({}) for _ in range(3)]
    assert [round(refused_by(limits, waiting)) for waiting in (first, second, third)] == [100, 199, 298]
    clock.advance(100)
    assert limits.try_acquire()  # by a request that is no task
    again = [Waiting(first.places) for _ in range(5)]
    for waiting in again:
        assert waiting.seconds_to_turn(limits.prepare(None)) == 0
    assert {round(refused_by(limits, waiting)) for waiting in again} == {100}
    assert round(Waiting(second.places).seconds_to_turn(limits.prepare(None))) == 199


def test_late_task_does_not_delay_others() -> None:
    clock = FakeClock()
    limits = LimitSet([CallLimit(1, 100)], store=MemoryStore(clock=clock))
    assert limits.try_acquire()
    late, other = Waiting({}), Waiting({})
    refused_by(limits, late)
    refused_by(limits, other)
    clock.advance(170)
    assert limits.try_acquire()
    assert refused_by(limits, Waiting(late.places)) == pytest.approx(100)
    assert round(Waiting(other.places).seconds_to_turn(limits.prepare(None))) == 199 - 170


def test_a_returning_task_waits_in_its_process_for_half_a_second_in_all_and_a_new_one_never() -> None:
    assert not Waiting({}).pauses(0)
    waiting = Waiting({"a line": [1, 0]})
    assert [waiting.pauses(seconds) for seconds in (0.2, 0.3, 0.01)] == [True, True, False]
    assert not Waiting({"a line": [1, 0]}).pauses(0.51)
    hasty = Waiting({"a line": [1, 0]})
    assert sum(hasty.pauses(0) for _ in range(1000)) <= 50


def test_a_task_that_never_fits_does_not_join_a_line() -> None:
    limits = LimitSet([CallLimit(1, 100)], store=MemoryStore(clock=FakeClock()))
    assert limits.try_acquire()
    refused_by(limits, Waiting({}))
    assert Waiting({}).seconds_to_turn(limits.prepare({"call_count": 2}, checks=False)) == 0
    assert Waiting({}).seconds_to_turn(limits.prepare(None)) > 0


KILLING_SECONDS = 120


@pytest.fixture(scope="module")
def killed() -> Load:
    """Two minutes of tasks that come as fast as the limit admits them, behind a backlog, while workers die."""
    arrivals = [max(0, task - 100) / 20 for task in range(100 + KILLING_SECONDS * 20)]
    limit = CallLimit.per_second(20, algorithm=RateLimitAlgorithm.SLIDING_WINDOW)
    return Load(limit, arrivals, kill_every=10).run()


@pytest.mark.slow
def test_no_task_is_lost_or_done_twice(killed: Load) -> None:
    assert sorted(killed.done) == list(range(100 + KILLING_SECONDS * 20))
    assert len(killed.begun) > len(killed.done)


@pytest.mark.slow
def test_no_window_has_more_than_the_limit_admits(killed: Load) -> None:
    assert all(later - first >= SECOND for first, later in zip(killed.begun, killed.begun[20:], strict=False))


@pytest.mark.slow
def test_at_least_98_percent_of_the_limit_are_used(killed: Load) -> None:
    assert bisect_left(killed.begun, killed.start + KILLING_SECONDS * SECOND) >= 0.98 * KILLING_SECONDS * 20


@pytest.mark.slow
def test_a_task_is_tried_few_times(killed: Load) -> None:
    assert killed.tries <= 2 * len(killed.begun)
    assert killed.visits <= 4 * len(killed.begun)


class ByPriority(Load):
    """Load of tasks with priorities, one for each task."""

    def __init__(self, limit: LimitDefinition, arrivals: Iterable[float], priorities: Sequence[str]) -> None:
        super().__init__(limit, arrivals)
        self.priorities = priorities
        self.ends: dict[str, float] = {}

    def _visit(self, message: Message) -> Message | None:
        self.requested = of_its_class({"call_count": 1}, self.priorities[message.task])
        return super()._visit(message)

    def begin_task(self, message: Message) -> None:
        super().begin_task(message)
        self.ends[self.priorities[message.task]] = self.seconds


def test_tasks_of_higher_priorities_run_first_and_equal_ones_in_their_order() -> None:
    limit = CallLimit.per_second(20, keep={"low": 60, "normal": 20})
    priorities = [("low", "normal", "high")[task % 3] for task in range(300)]
    load = ByPriority(limit, at_once(300), priorities).run()
    assert sorted(load.done) == list(range(300))
    assert load.ends["high"] <= 1.2 * 100 / 20 < load.ends["normal"] <= 1.2 * 200 / 20 < load.ends["low"]
    assert load.seconds <= 1.1 * 300 / 20
    for priority in ("high", "normal", "low"):
        own = [task for task in load.done if priorities[task] == priority]
        places = {task: place for place, task in enumerate(sorted(own))}
        assert max(abs(place - places[task]) for place, task in enumerate(own)) <= 0.1 * len(own)


def test_low_priority_tasks_run_while_no_other_ones_wait() -> None:
    limit = CallLimit.per_second(20, keep={"low": 60, "normal": 20})
    load = ByPriority(limit, at_once(200), ["low"] * 200).run()
    assert load.seconds <= 1.1 * 200 / 20
    assert max(load.displacements) <= 0.05 * 200

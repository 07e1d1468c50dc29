"""Priorities of requests: shares of a limit under overload, and the order of waiters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from threading import Thread
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine import NOTHING, OfClass, PermitsOnly, checked_limits, lower_of, of_class, of_its_class
from limits_app.engine.algorithms import compile_rule
from limits_app.engine.algorithms.keeping import KeepingRule
from limits_app.engine.algorithms.rule import Rule, State
from limits_app.engine.errors import InvalidLimit, InvalidRequest, LimitTimeout, NeverAdmissible
from limits_app.engine.limits import (
    CallLimit,
    LimitDefinition,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.engine.priorities import keep_problems
from limits_app.engine.runtime import Runtime, installed
from limits_app.stores.memory import MemoryStore
from limits_app.stores.slices import sliced
from limits_app.testing import FakeClock
from tests.acquiring.sets import limit_set, used
from tests.acquiring.watched import WatchedStore

KEEP: Final = {"low": 60, "normal": 20}
SECOND: Final = 1_000_000


def of_each_kind(capacity: int) -> list[LimitDefinition]:
    """Limits of the same size of every kind."""
    return [
        *[RateLimit("units", capacity, 1, algorithm, keep=KEEP) for algorithm in RateLimitAlgorithm],
        QuotaLimit.per_session("units", capacity, 1, keep=KEEP),
    ]


class Overload:
    """Requests of each priority at steady rates, which together are many times what a limit admits."""

    def __init__(self, limit: LimitDefinition, per_second: dict[str, int], seconds: int = 10) -> None:
        clock = FakeClock()
        limits = LimitSet([limit], store=MemoryStore(clock=clock))
        arrivals = [
            (number * SECOND // rate + place, priority)
            for place, (priority, rate) in enumerate(per_second.items())
            for number in range(seconds * rate)
        ]
        start, self.admitted = clock(), Counter[str]()
        for at, priority in sorted(arrivals):
            clock.move(start + at - clock())
            if limits.try_acquire({limit.key: 1}, priority=priority):
                self.admitted[priority] += 1


@pytest.mark.parametrize("limit", of_each_kind(100), ids=lambda limit: getattr(limit, "algorithm", "session"))
def test_high_priority_gets_all_it_requests_up_to_its_share_under_overload(limit: LimitDefinition) -> None:
    admitted = Overload(limit, {"high": 20, "normal": 300, "low": 400}).admitted
    assert admitted["high"] >= 0.99 * 20 * 10
    most = 100 * 10 + 100  # a bucket begins full
    assert most >= admitted.total() >= 0.9 * (100 - 20) * 10


def test_task_requests_with_the_share_of_its_priority() -> None:
    limits = LimitSet([RateLimit("units", 100, 1, keep=KEEP)], store=MemoryStore(clock=FakeClock()))

    async def admitted(amount: int, priority: str) -> bool:
        return bool(await limits.atry_acquire({"units": amount}, priority=priority))

    assert asyncio.run(admitted(40, "low"))
    assert not asyncio.run(admitted(1, "low"))
    assert asyncio.run(admitted(60, "high"))


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_low_priority_takes_idle_capacity_up_to_its_share(algorithm: RateLimitAlgorithm) -> None:
    limit = RateLimit("units", 100, 1, algorithm, keep=KEEP)
    alone = Overload(limit, {"low": 400}).admitted["low"]
    # A bucket refills while it has more than the share; a window has a share of its capacity.
    per_second = 100 if algorithm.takes_burst else 40
    assert 0.99 * per_second * 10 <= alone <= per_second * 10 + 40
    beside = Overload(limit, {"high": 55, "low": 400}).admitted
    assert beside["high"] >= 0.99 * 55 * 10
    if algorithm.takes_burst:
        assert 0.9 * (100 - 55) * 10 <= beside["low"] <= (100 - 55) * 10 + 40
    else:  # 60 of a window are rarely free while others use 55 of it
        assert beside["low"] <= 40 * 10


@pytest.mark.parametrize("limit", of_each_kind(10), ids=lambda limit: getattr(limit, "algorithm", "session"))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["high", "normal", "low"]), st.integers(0, 10), st.sampled_from([0, 100_000, 300_000])
        )
    )
)
def test_no_priority_exceeds_its_share_nor_all_together_the_limit(
    limit: LimitDefinition, requests: list[tuple[str, int, int]]
) -> None:
    clock = FakeClock()
    limits = LimitSet([limit], store=MemoryStore(clock=clock))
    for priority, amount, passed in requests:
        clock.move(passed)
        most = {"high": 10, "normal": 8, "low": 4}[priority]
        before = limits.get_stats()["units"]["used"]
        try:
            admitted = bool(limits.try_acquire({"units": amount}, priority=priority))
        except NeverAdmissible:
            assert amount > most
            continue
        assert admitted is (before + amount <= (most if amount else 10))
        assert limits.get_stats()["units"]["used"] == before + amount * admitted


def test_threads_of_each_priority_never_exceed_its_share() -> None:
    limits = LimitSet([ResourceLimit("slots", 100, keep=KEEP)], store=MemoryStore())
    admitted: list[tuple[str, Acquisition]] = []

    def request(priority: str) -> None:
        for _ in range(200):
            acquisition = limits.try_acquire(priority=priority)
            if acquisition:
                admitted.append((priority, acquisition))

    for priorities, most in ((["low"] * 4, 40), (["low", "normal"] * 2, 80), (["low", "normal", "high"], 100)):
        threads = [Thread(target=request, args=(priority,)) for priority in priorities]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(admitted) == most


def test_rule_of_a_priority_has_every_verb_of_the_rule() -> None:
    verbs = {name for name, verb in vars(Rule).items() if callable(verb) and not name.startswith("_")}
    assert verbs - {"charged"} <= vars(KeepingRule).keys()


NOW: Final = 5 * SECOND
OTHER_RULE: Final = compile_rule(RateLimit("units", 20, 7, RateLimitAlgorithm.FIXED_WINDOW), 0)
VERBS: Final[Mapping[str, Callable[[Rule, State], object]]] = {
    "current": lambda rule, state: rule.current(state, NOW),
    "current after the clock was set back": lambda rule, state: rule.current(state, -SECOND),
    "settle": lambda rule, state: rule.settle(state, NOW + 1, 7),
    "refund": lambda rule, state: rule.settle(state, NOW + 1, -7, NOW),
    "refund of what is over": lambda rule, state: rule.settle(state, NOW + SECOND // 2, -7, NOW - SECOND),
    "undo": lambda rule, state: rule.undo(
        state, NOW + SECOND // 5, 7, taken_at=NOW, before=3, window=rule.window_start(state)
    ),
    "credit": lambda rule, state: rule.credit(state, NOW + 1, 7),
    "used": lambda rule, state: rule.used(state, NOW + SECOND // 4),
    "restored_at": lambda rule, state: rule.restored_at(state),
    "recovers_since": lambda rule, state: rule.recovers_since(state),
    "carry": lambda rule, state: rule.carry(OTHER_RULE, OTHER_RULE.settle(OTHER_RULE.start, NOW, 9), NOW + 1),
    "boundaries": lambda rule, state: rule.boundaries(NOW, 2),
    "amount of 0": lambda rule, state: (rule.take(state, NOW, 0), rule.wait(state, NOW, 0)),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("parts", [0, 1, 60, 100])
def test_use_counts_alike_in_every_priority(verb: str, parts: int) -> None:
    definitions = [*of_each_kind(100), QuotaLimit.per_day("units", 100, keep=KEEP), ResourceLimit("units", 100)]
    for definition in definitions:
        [limit] = checked_limits([definition])
        rule = compile_rule(limit, 60 * SECOND)
        state = rule.settle(rule.start, NOW, parts * rule.parts_per_unit)
        assert VERBS[verb](KeepingRule(rule, 60 * rule.parts_per_unit), state) == VERBS[verb](rule, state), limit


@pytest.mark.parametrize(
    ("priority", "other", "lower"),
    [
        ("low", "high", "low"),
        ("high", "low", "low"),
        ("high", "normal", "normal"),
        ("low", "", "low"),
        ("", "high", ""),
        ("removed", "high", "removed"),
        ("removed", "low", "low"),
    ],
)
def test_lower_of_two_priorities(priority: str, other: str, lower: str) -> None:
    assert lower_of(priority, other) == lower


@pytest.mark.parametrize("amounts", [{}, None, {"tpm": -1}, 7])
def test_request_with_a_priority_is_as_invalid_as_one_without(amounts: Any) -> None:
    limits = limit_set(MemoryStore(clock=FakeClock()), RateLimit("tpm", 100, 60), CallLimit(5, 60))
    errors = []
    for priority in (None, "high", "low"):
        with pytest.raises(InvalidRequest) as caught:
            limits.try_acquire(amounts, priority=priority)
        errors.append(str(caught.value))
    assert errors == [errors[0]] * 3
    assert limits.try_acquire(NOTHING, priority="low")
    assert used(limits) == {"tpm": 0, "call_count": 1}


def test_class_of_a_request_can_be_named_again() -> None:
    permits = of_its_class(PermitsOnly({"db": 1}), "low")
    assert isinstance(permits, PermitsOnly)
    assert (permits, permits.priority) == ({"db": 1}, "low")
    default = of_class(of_class(None, "low"), "high")
    assert isinstance(default, OfClass)
    assert (default.is_default, default.priority) == (True, "high")
    assert not of_its_class(OfClass({"tpm": 1}), "low").is_default  # type: ignore[attr-defined]


def test_shares_are_in_one_order_however_they_are_written() -> None:
    shares = [("b", 5), ("high", 0.001), ("low", 60), ("a", 5), ("normal", 20.5)]
    ordered = (("low", 60), ("normal", 20.5), ("a", 5), ("b", 5), ("high", 0.001))
    assert CallLimit(10, 1, keep=shares).keep == ordered
    assert CallLimit(10, 1, keep=dict(reversed(shares))).keep == ordered
    with pytest.raises(InvalidLimit, match="limit 'call_count': keep has 'low' more than once"):
        CallLimit(10, 1, keep=[("high", 1), ("low", 10), ("low", 20)])


ORDER: Final = ("low", "low", "normal", "high", "low", "high", "normal")
SERVED: Final = [3, 5, 2, 6, 0, 1, 4]
"""The places in ORDER by priority, and within each by arrival."""


@pytest.mark.parametrize("limit", [ResourceLimit("slots", 1), RateLimit("slots", 1, 1)], ids=["permits", "rate"])
def test_waiters_are_served_by_priority_then_arrival(clock: FakeClock, limit: LimitDefinition) -> None:
    store = WatchedStore(clock=clock)
    limits = limit_set(store, limit)
    held, served = limits.acquire({"slots": 1}, timeout=0), list[int]()

    def wait(place: int, priority: str) -> Acquisition:
        acquisition = limits.acquire({"slots": 1}, priority=priority)
        served.append(place)
        return acquisition

    callers = [store.waiting(wait, place, priority) for place, priority in enumerate(ORDER)]
    for number, place in enumerate(SERVED, start=1):
        if isinstance(limit, ResourceLimit):
            held.release()
        else:
            clock.move(SECOND)
        held = callers[place].result()
        assert served == SERVED[:number]


def test_waiter_of_a_higher_priority_does_not_wait_behind_lower_ones(clock: FakeClock) -> None:
    store = WatchedStore(clock=clock)
    limits = limit_set(store, ResourceLimit("slots", 10, keep=KEEP))
    with limits.acquire({"slots": 4}, priority="low"):
        waiter = store.waiting(limits.acquire, {"slots": 1}, priority="low")
        assert limits.acquire({"slots": 5}, 1, priority="high")
        with pytest.raises(LimitTimeout):
            limits.acquire({"slots": 1}, 0, priority="low")
    store.until_waiting(1)  # 5 of 10 are in use, which is more than low priority may use
    limits.acquire({"slots": 5}, 0, priority="high").release()
    assert waiter.is_alive()


def test_waiting_tasks_are_served_by_priority() -> None:
    async def run() -> list[int]:
        limits = LimitSet([ResourceLimit("slots", 1)], store=MemoryStore())
        held, served = await limits.aacquire(), list[int]()

        async def wait(place: int, priority: str) -> None:
            async with await limits.aacquire(priority=priority):
                served.append(place)

        tasks = []
        for place, priority in enumerate(ORDER):
            tasks.append(asyncio.create_task(wait(place, priority)))
            await asyncio.sleep(0)
        held.release()
        await asyncio.gather(*tasks)
        return served

    assert asyncio.run(run()) == SERVED


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: CallLimit(10, 1, keep={"low": 0}), "must be above 0 and below 100"),
        (lambda: CallLimit(10, 1, keep={"low": 100}), "must be above 0 and below 100"),
        (lambda: CallLimit(10, 1, keep={"low": 0.0001}), "at most three decimals"),
        (lambda: CallLimit(10, 1, keep={"Low": 10}), "is not the name of a priority"),
        (lambda: CallLimit(10, 1, keep=[("low", 10), ("low", 20)]), "keep has 'low' more than once"),
        (lambda: CallLimit(10, 1, keep=7), "must map priorities to percentages"),
        (lambda: CallLimit(10, 1, soft=True, keep={"low": 10}), "a soft limit rejects nothing"),
        (lambda: ResourceLimit("db", 10, keep={"low": "10"}), "must be a number"),
    ],
)
def test_invalid_shares_are_errors(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(InvalidLimit, match=problem):
        make()


def test_share_is_rounded_up_and_a_priority_that_is_not_named_has_that_of_the_next_higher_one() -> None:
    limits = LimitSet([ResourceLimit("slots", 7, keep={"normal": 33.333})])
    outcomes = {priority: limits.peek(priority=priority).passed[0] for priority in ("high", "normal", "low")}
    assert {priority: status.capacity for priority, status in outcomes.items()} == {"high": 7, "normal": 4, "low": 4}
    nothing_left = LimitSet([ResourceLimit("slots", 1, keep={"low": 1})])
    with pytest.raises(NeverAdmissible, match="can never admit 1 for requests of priority low: its most is 0"):
        nothing_left.acquire(priority="low")
    assert nothing_left.acquire()


@pytest.mark.parametrize(
    ("keep", "problems"),
    [
        ((("low", 60), ("normal", 20)), []),
        ((("normal", 20),), []),
        ((("high", 1),), ["highest"]),
        ((("batch", 1),), ["not one of"]),
        ((("normal", 50), ("low", 20)), ["at least as much"]),
        ((("batch", 1), ("high", 50), ("low", 20)), ["not one of", "highest", "at least as much"]),
    ],
)
def test_shares_fit_the_priorities_and_their_order(keep: Sequence[tuple[str, float]], problems: list[str]) -> None:
    found = keep_problems(tuple(keep), ("high", "normal", "low"))
    assert len(found) == len(problems)
    assert all(problem in text for problem, text in zip(problems, found, strict=True))


def test_program_names_its_own_priorities() -> None:
    with installed(Runtime(priorities=lambda: ("urgent", "normal", "batch", "backfill"))):
        limits = LimitSet([CallLimit(10, 60, keep={"batch": 50, "backfill": 80})], store=MemoryStore())
        most = {
            name: limits.peek(priority=name).passed[0].capacity for name in ("urgent", "normal", "batch", "backfill")
        }
        assert most == {"urgent": 10, "normal": 10, "batch": 5, "backfill": 2}
        with pytest.raises(InvalidRequest, match="one of urgent, normal, batch, backfill, not 'low'"):
            limits.acquire(priority="low")


def test_limit_that_keeps_a_share_free_has_no_slices() -> None:
    plain, keeping = CallLimit(10_000, 60), CallLimit(10_000, 60, keep=KEEP)
    assert sliced([(plain, 5)])[1] > 0
    assert sliced([(keeping, 5)]) == ((keeping,), 0)
    assert sliced([(plain, 5), (keeping, 5)])[1] == 0


def test_reservations_of_random_priorities_return_all_that_they_took() -> None:
    random, clock = Random(7), FakeClock()
    limits = LimitSet([ResourceLimit("slots", 50, keep=KEEP)], store=MemoryStore(clock=clock))
    held: list[Acquisition] = []
    for _ in range(2000):
        if held and random.random() < 0.5:
            held.pop(random.randrange(len(held))).release()
        elif acquisition := limits.try_acquire(
            {"slots": random.randint(1, 5)}, priority=random.choice(["low", "normal", "high"])
        ):
            held.append(acquisition)
    for acquisition in held:
        acquisition.release()
    assert limits.get_stats()["slots"]["used"] == 0

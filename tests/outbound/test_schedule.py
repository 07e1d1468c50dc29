"""When requests may leave: timelines, with time as an argument."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limits_app.outbound.hints import Hints, Quota
from limits_app.outbound.schedule import Departure, PaceSchedule, Window

FIVE = Quota("rps", 5, 1.0)


def scheduled(*quotas: Quota, max_gap: float = 0.0) -> PaceSchedule:
    schedule = PaceSchedule(max_gap=max_gap)
    for quota in quotas:
        schedule.learn(quota)
    return schedule


def told(departure: Departure, *quotas: Quota, refused: bool = False, retry_after: float | None = None) -> Departure:
    departure.hints = Hints(refused, retry_after, quotas)
    return departure


def windows_of(schedule: PaceSchedule) -> Any:
    """The windows that a schedule keeps, by name."""
    return schedule.windows


def test_without_a_known_quota_one_request_leaves_and_one_more_with_each_round_trip() -> None:
    schedule, rounds = scheduled(), []
    for _ in range(6):
        left = []
        while schedule.has_room:
            assert schedule.opens_at(7.0) == 7.0
            left.append(schedule.depart(7.0))
        rounds.append(len(left))
        for departure in left:
            schedule.arrive(7.0, told(departure))
    assert rounds == [1, 2, 3, 4, 5, 6]


def test_a_request_without_a_response_does_not_let_the_start_grow() -> None:
    schedule = scheduled()
    for _ in range(5):
        assert schedule.has_room
        departure = schedule.depart(0.0)
        assert not schedule.has_room
        schedule.arrive(1.0, departure)


def test_a_quota_that_is_learned_ends_the_slow_start() -> None:
    schedule = scheduled()
    schedule.arrive(0.0, told(schedule.depart(0.0), Quota("rps", 5, 1.0, remaining=4)))
    left = 0
    while schedule.opens_at(0.0) == 0.0:
        assert schedule.has_room
        schedule.depart(0.0)
        left += 1
    assert left == 4


def test_a_call_counts_for_a_window_after_its_response() -> None:
    schedule = scheduled(FIVE)
    left = [schedule.depart(0.0) for _ in range(5)]
    assert schedule.opens_at(0.5) == 1.5  # not earlier, since nobody has an answer
    schedule.arrive(0.7, left[0])
    assert schedule.opens_at(0.8) == pytest.approx(1.701)
    assert schedule.opens_at(1.6999) > 1.6999
    assert schedule.opens_at(1.702) == 1.702


def test_each_queued_call_has_its_own_start_time() -> None:
    schedule = scheduled(FIVE, max_gap=0.05)
    moments = [schedule.opens_at(10.0, place) for place in range(12)]
    assert moments[:5] == pytest.approx([10.0, 10.05, 10.1, 10.15, 10.2])
    assert moments[5:10] == [11.0] * 5  # the earliest that is known before there are responses
    assert moments[10:] == [12.0] * 2


def test_being_late_is_made_good_for() -> None:
    schedule = scheduled(Quota("rps", 100, 1.0), max_gap=0.05)
    schedule.depart(1.0)
    assert schedule.opens_at(1.03) == 1.03
    for _ in range(6):
        schedule.depart(1.03)
    assert schedule.opens_at(1.03) == pytest.approx(1.03, abs=0.011)
    assert schedule.opens_at(1.03, 10) > 1.1


@given(
    st.lists(st.tuples(st.floats(0.0, 0.3), st.floats(0.0, 0.9), st.floats(0.0, 1.0)), min_size=20, max_size=150),
    st.integers(1, 20),
)
def test_upstream_never_receives_more_than_its_limit_with_any_delays(
    calls: list[tuple[float, float, float]], capacity: int
) -> None:
    """Each call waits a while, travels a while, and is seen anywhere on the way."""
    schedule = scheduled(Quota("rps", capacity, 1.0))
    now, seen = 0.0, []
    flying: list[tuple[float, Departure]] = []
    for pause, travel, share in calls:
        now += pause
        while True:
            opens = schedule.opens_at(now)
            arriving = min(flying, key=lambda one: one[0], default=None)
            if arriving is not None and arriving[0] <= max(opens, now):
                flying.remove(arriving)
                now = max(now, arriving[0])
                schedule.arrive(now, arriving[1])
            elif opens > now:
                now = opens
            else:
                break
        flying.append((now + travel, schedule.depart(now)))
        seen.append(now + travel * share)
    seen.sort()
    assert all(later - earlier >= 1.0 for earlier, later in zip(seen, seen[capacity:], strict=False))


def test_use_of_others_counts_once() -> None:
    schedule = scheduled(Quota("rps", 10, 1.0))
    first, second = schedule.depart(0.0), schedule.depart(0.0)
    schedule.arrive(0.1, told(first, Quota("rps", 10, 1.0, remaining=4)))  # six used, two of them ours
    schedule.arrive(0.1, told(second, Quota("rps", 10, 1.0, remaining=4)))
    for _ in range(4):
        assert schedule.opens_at(0.2) == 0.2
        schedule.depart(0.2)
    assert schedule.opens_at(0.2) == pytest.approx(1.101)


def test_an_upstream_that_counts_less_than_we_do_teaches_nothing() -> None:
    schedule = scheduled(Quota("rps", 2, 1.0))
    left = schedule.depart(0.0)
    schedule.arrive(0.1, told(left, Quota("rps", 2, 1.0, remaining=9)))
    assert schedule.opens_at(0.1) == 0.1
    schedule.depart(0.1)
    assert schedule.opens_at(0.1) > 0.1


def test_a_quota_is_learned_once_and_again_when_it_changes() -> None:
    schedule = scheduled()
    assert schedule.arrive(0.0, told(schedule.depart(0.0), FIVE)).quotas == (FIVE,)
    assert schedule.arrive(0.0, told(schedule.depart(0.0), FIVE)).quotas == ()
    tighter = Quota("rps", 2, 1.0)
    assert schedule.arrive(0.0, told(schedule.depart(0.0), tighter)).quotas == (tighter,)
    assert schedule.opens_at(0.5) == pytest.approx(1.001)
    longer = Quota("rps", 2, 9.0)
    assert schedule.arrive(0.0, told(schedule.depart(0.0), longer)).quotas == (longer,)
    shorter = Quota("rps", 2, 4.0)
    assert schedule.arrive(0.0, told(schedule.depart(0.0), shorter)).quotas == ()


def test_only_so_many_quotas_are_remembered() -> None:
    schedule = scheduled(*(Quota(f"n{number}", 1, 1.0) for number in range(50)))
    assert len(windows_of(schedule)) == 8


def test_a_quota_that_made_way_for_another_of_the_same_answer_counts_nothing() -> None:
    schedule = scheduled(*(Quota(name, 5, 60.0) for name in "abcdefgh"))
    answered = told(schedule.depart(0.0), *(Quota(name, 5, 60.0, 4) for name in "axyz"))
    assert [quota.name for quota in schedule.arrive(0.1, answered).quotas] == ["x", "y", "z"]
    assert schedule.in_flight == 0


def test_a_call_that_was_not_sent_does_not_count_at_the_upstream() -> None:
    schedule = scheduled(FIVE)
    first = schedule.depart(0.0)
    schedule.depart(0.0)
    schedule.withdraw()
    schedule.arrive(0.1, told(first, Quota("rps", 5, 1.0, 3)))
    for _ in range(3):
        assert schedule.opens_at(0.2) == 0.2
        schedule.depart(0.2)
    assert schedule.opens_at(0.2) > 0.2


def test_nothing_leaves_where_nothing_is_left_of_a_limit_that_is_not_known() -> None:
    schedule = scheduled()
    departure = schedule.depart(0.0)
    departure.hints = Hints(empty_seconds=30.0)
    assert schedule.arrive(1.0, departure).hold_seconds is None
    assert schedule.opens_at(1.0) == 31.0
    departure = schedule.depart(31.0)
    departure.hints = Hints(empty_seconds=1e6)
    schedule.arrive(32.0, departure)
    assert schedule.opens_at(32.0) == 3632.0


def test_a_hold_is_not_for_ever() -> None:
    schedule = scheduled()
    schedule.arrive(0.0, told(schedule.depart(0.0), refused=True, retry_after=10**7))
    assert schedule.opens_at(0.0) == 3600.0


def test_refusals_without_a_word_hold_longer_and_longer_until_something_is_admitted() -> None:
    schedule, now, holds = scheduled(), 0.0, []
    for refused in [True, True, True, False, True]:
        lesson = schedule.arrive(now, told(schedule.depart(now), refused=refused))
        holds.append(lesson.hold_seconds)
        now = schedule.opens_at(now) + 1.1
    assert holds == [pytest.approx(1.0), pytest.approx(2.0), pytest.approx(4.0), None, pytest.approx(1.0)]


def test_those_under_way_when_the_first_was_refused_teach_nothing_new() -> None:
    schedule = scheduled()
    left = [schedule.depart(0.0) for _ in range(3)]
    assert schedule.arrive(0.1, told(left[0], refused=True)).hold_seconds == 1.0
    assert schedule.arrive(0.2, told(left[1], refused=True)).hold_seconds == pytest.approx(0.9)
    assert schedule.arrive(0.3, told(left[2], refused=True, retry_after=5.0)).hold_seconds == 5.0


def test_an_unknown_limit_is_estimated_and_grows_by_one_a_second() -> None:
    """The upstream takes 20 a second; ours begins at nine tenths of what it took, and looks for more."""
    schedule, now, refused_at, rates = PaceSchedule(), 0.0, [], []
    seen: list[float] = []
    while now < 30.0:
        now = schedule.opens_at(now)
        departure = schedule.depart(now)
        seen = [moment for moment in seen if moment > now - 1.0]
        if len(seen) >= 20:
            refused_at.append(now)
            schedule.arrive(now, told(departure, refused=True))
        else:
            seen.append(now)
            schedule.arrive(now, told(departure))
            rates.append(now)
        now += 0.001
    assert len(refused_at) <= 12
    assert sum(1 for moment in rates if moment > 5.0) >= 0.6 * 20 * 25


def test_unexpected_rejection_is_learned_from() -> None:
    schedule = scheduled(Quota("rps", 10, 1.0))
    for _ in range(5):
        schedule.arrive(0.0, told(schedule.depart(0.0)))
    schedule.arrive(0.0, told(schedule.depart(0.0), refused=True, retry_after=0.1))
    assert windows_of(schedule)[""].capacity == 4
    # What the upstream tells then is worth more than the guess.
    schedule.arrive(0.2, told(schedule.depart(0.2), Quota("other", 10, 1.0)))
    assert list(windows_of(schedule)) == ["rps", "other"]


def test_a_call_without_an_answer_counts_since_the_upstream_may_have_seen_it() -> None:
    schedule = scheduled(Quota("rps", 1, 1.0))
    schedule.arrive(0.5, schedule.depart(0.0))
    assert schedule.opens_at(0.6) == pytest.approx(1.501)


def test_windows_of_any_length_can_be_learned() -> None:
    for seconds in (0.0001, 0.0123456, 1e12):
        window = Window(Quota("rps", 10**15, seconds))
        assert window.seconds >= min(seconds, 366 * 86_400)
        window.record(0.0, 5)
        assert window.responded(window.seconds - 1e-5) == 5
        assert window.responded(window.seconds + 0.0011) == 0

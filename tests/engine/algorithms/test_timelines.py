"""What each algorithm admits, told as timelines: three units per 1.5 seconds unless a table says otherwise."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm
from tests.engine.algorithms.definitions import ALGORITHMS
from tests.engine.algorithms.driven import MS, NOW, Driven, Step, timelines

TOKEN_BUCKET = RateLimitAlgorithm.TOKEN_BUCKET
LEAKY_BUCKET = RateLimitAlgorithm.LEAKY_BUCKET
SLIDING_WINDOW = RateLimitAlgorithm.SLIDING_WINDOW
FIXED_WINDOW = RateLimitAlgorithm.FIXED_WINDOW
GCRA = RateLimitAlgorithm.GCRA


def three(algorithm: RateLimitAlgorithm) -> Driven:
    return Driven(RateLimit("k", 3, 1.5, algorithm))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@timelines(
    the_capacity_and_not_one_more=[(0, 3, True), (0, 1, False)],
    one_by_one=[(0, 1, True), (0, 1, True), (0, 1, True), (0, 1, False)],
    a_refusal_charges_nothing=[(0, 2, True), (0, 2, False), (0, 1, True), (0, 1, False)],
    more_than_all_never_fits=[(0, 4, False), (0, 3, True)],
    what_was_admitted_is_used=[(0, "used", 0), (0, 2, True), (0, "used", 2)],
    all_of_it_again_after_a_window=[(0, 3, True), (1500, 3, True), (1500, 1, False)],
    not_a_moment_early=[(0, 3, True), (1499.999, 3, False), (1500, 3, True)],
    nothing_is_used_after_a_window=[(0, 3, True), (1500, "used", 0)],
    the_wait_for_everything_is_a_window=[(0, 3, True), (0, "wait", 3, 1500)],
    no_wait_for_what_fits=[(0, "wait", 3, 0), (0, 1, True), (0, "wait", 2, 0)],
    nothing_is_admitted_though_all_is_used=[(0, 0, True), (0, 3, True), (0, 0, True)],
    nothing_charges_nothing=[(0, 0, True), (7, "used", 0)],
    over_use_is_debt=[(0, 3, True), (0, "settle", 1), (0, "used", 4)],
    nothing_is_refused_while_in_debt=[(0, 3, True), (0, "settle", 1), (0, 0, False)],
    charged_without_being_asked=[(0, "settle", 3), (0, "used", 3), (0, 1, False)],
    settling_nothing_changes_nothing=[(0, 3, True), (0, "settle", 0), (0, "used", 3)],
    late_usage_counts_when_reported=[(0, 3, True), (1600, "settle", 2), (1600, "used", 2)],
    a_clock_going_back_frees_nothing=[(9, 3, True), (0, 1, False), (8.999, 1, False)],
    a_clock_going_back_costs_nothing=[(9, 3, True), (0, 1, False), (1509, 3, True)],
    a_clock_going_back_makes_the_wait_longer=[(9, 3, True), (0, "wait", 3, 1509)],
    a_clock_going_back_makes_no_more_debt=[(9, 2, True), (0, "settle", 1), (0, "used", 3)],
)
def test_every_algorithm(algorithm: RateLimitAlgorithm, timeline: list[Step]) -> None:
    three(algorithm).run(timeline)


@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, LEAKY_BUCKET, SLIDING_WINDOW, GCRA])
def test_asking_for_nothing_is_no_moment_from_which_on_a_clock_that_goes_back_counts(
    algorithm: RateLimitAlgorithm,
) -> None:
    three(algorithm).run([(0, 3, True), (900, 0, True), (0, 1, False), (0, "used", 3)])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@timelines(
    what_was_used=[(9000, 1, True), (0, "used", 1)],
    what_is_left=[(9000, 1, True), (0, 2, True), (0, 1, False)],
    that_there_is_no_debt=[(9000, 3, True), (0, 0, True)],
    what_was_used_when_nothing_was_settled=[(0, 3, True), (9000, "settle", 0), (0, "used", 3)],
)
def test_a_clock_that_is_set_back_leaves_as_it_was(algorithm: RateLimitAlgorithm, timeline: list[Step]) -> None:
    three(algorithm).run(timeline)


@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, LEAKY_BUCKET, GCRA])
@timelines(
    one_by_one=[(0, 3, True), (499.999, 1, False), (500, 1, True), (500, 1, False)],
    waits_for_some=[(0, 3, True), (0, "wait", 1, 500), (0, "wait", 2, 1000)],
    waits_from_in_between=[(0, 3, True), (123.456, "wait", 1, 376.544)],
    drains_all_the_time=[(0, 3, True), (750, "used", Fraction(3, 2)), (1499.999, "used", Fraction(1, 500_000))],
    idling_saves_nothing_up=[(0, 1, True), (10_000, 3, True), (10_000, 1, False)],
    debt_drains_first=[(0, 3, True), (0, "settle", 2), (999.999, 0, False), (1000, 0, True)],
    waits_in_debt=[(0, 3, True), (0, "settle", 2), (0, "wait", 0, 1000), (0, "wait", 1, 1500)],
    debt_is_paid_in_time=[(0, 3, True), (0, "settle", 2), (2500, "used", 0), (2500, 3, True)],
    a_clock_going_back=[(9, 3, True), (0, 1, False), (508.999, 1, False), (509, 1, True)],
    no_wait_for_what_fits_by_such_a_clock=[(9, 1, True), (0, "wait", 2, 0), (0, "wait", 3, 509)],
    late_debt_by_its_clock=[(500, 3, True), (0, "settle", 1), (999.999, 0, False), (1000, 0, True)],
)
def test_buckets_drain(algorithm: RateLimitAlgorithm, timeline: list[Step]) -> None:
    three(algorithm).run(timeline)


@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, GCRA])
@timelines(
    unused_amounts_come_back=[(0, 3, True), (0, "settle", -2), (0, "used", 1), (0, 2, True)],
    never_more_than_all=[(0, 3, True), (1000, "settle", -3), (1000, "used", 0), (1000, 3, True)],
    refunds_save_nothing=[(0, 3, True), (1000, "settle", -3), (1000, 3, True), (1499.999, 1, False), (1500, 1, True)],
    a_refund_of_what_was_never_taken=[(0, "settle", -3), (0, 3, True), (0, 1, False)],
    a_late_refund=[(0, 3, True), (9000, "settle", -3), (9000, 3, True), (9000, 1, False)],
    debt_taken_back=[(0, 3, True), (0, "settle", 2), (0, "settle", -2), (0, "used", 3)],
    after_a_clock_went_back=[(500, 1, True), (0, "settle", -1), (500, 3, True), (500, 1, False)],
)
def test_algorithms_that_refund(algorithm: RateLimitAlgorithm, timeline: list[Step]) -> None:
    three(algorithm).run(timeline)


@pytest.mark.parametrize("algorithm", [LEAKY_BUCKET, SLIDING_WINDOW, FIXED_WINDOW])
@timelines(
    unused_amounts_stay_spent=[(0, 3, True), (0, "settle", -2), (0, "used", 3), (0, 1, False)],
    debt_stays_too=[(0, 3, True), (0, "settle", 1), (0, "settle", -1), (0, "used", 4)],
)
def test_algorithms_that_do_not_refund(algorithm: RateLimitAlgorithm, timeline: list[Step]) -> None:
    three(algorithm).run(timeline)


@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, GCRA])
@timelines(
    thousandths_are_counted=[(0, 0.5, True), (0, 2.5, True), (0, 0.001, False)],
    thousandths_come_back_in_time=[(0, 3, True), (0.499, 0.001, False), (0.5, 0.001, True)],
    thirty_tenths_are_three=[(0, 0.1, True)] * 30 + [(0, 0.1, False)],
    refunds=[(0, 3, True), (0, "settle", -0.3), (0, 0.301, False), (0, 0.3, True)],
)
def test_decimals(algorithm: RateLimitAlgorithm, timeline: list[Step]) -> None:
    three(algorithm).run(timeline)


TICK = 0.007
"""Milliseconds in which a million comes back of 10^12 per 7 seconds: nothing less is counted exactly."""

MILLION, ALL = 10**6, 10**12


@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, GCRA])
@timelines(
    comes_back_by_whole_ticks=[(0, ALL, True), (0.006, 0.001, False), (TICK, MILLION, True), (TICK, 0.001, False)],
    all_is_used_and_no_more=[(0.003, ALL, True), (0.003, 0, True), (0.006, 0, True)],
    exactly_all_at_one_moment=[(0.003, 1, True), (0.003, ALL - 1, True), (0.003, 0.001, False), (0.003, "used", ALL)],
    empty_within_a_tick=[
        (0.003, ALL, True),
        (0.013, 0.001, False),
        (2 * TICK, MILLION, True),
        (2 * TICK, 0.001, False),
    ],
    just_empty_in_a_tick=[(0, ALL, True), (7000.003, ALL, True), (7000.013, 0.001, False), (7000.014, MILLION, True)],
    empty_after_a_part_of_the_tick=[
        (0, MILLION // 2, True),
        (0.003, ALL - MILLION // 2, True),
        (0.013, 0.001, False),
        (0.014, MILLION, True),
    ],
    lasts_for_the_tick=[(0, MILLION, True), (0.003, ALL - MILLION, True), (0.006, 0.001, False), (TICK, MILLION, True)],
    asking_for_nothing_delays_nothing=[(0, MILLION // 2, True), (0.003, 0, True), (TICK, "used", 0)],
    settling_nothing_delays_nothing=[(0, MILLION // 2, True), (0.003, "settle", 0), (TICK, "used", 0)],
    giving_back_delays_nothing=[(0, MILLION, True), (0.003, "settle", -1), (TICK, "used", 0)],
    usage_counts_from_the_next_tick=[
        (0.003, "settle", 0.001),
        (0.013, "used", Fraction(1, 1000)),
        (2 * TICK, "used", 0),
    ],
    usage_in_a_tick_that_is_used_up=[(0, MILLION, True), (0.003, "settle", ALL), (TICK, "used", ALL)],
    usage_in_a_tick_that_may_run_dry=[
        (0, MILLION // 2, True),
        (0.003, "settle", ALL),
        (TICK, "used", ALL + MILLION // 2),
    ],
    to_the_thousandth=[(0.003, 0.002, True), (0.003, "settle", -0.001), (0.003, "used", Fraction(1, 1000))],
    given_back_at_once=[(0.003, 1, True), (0.003, "settle", -1), (0.003, "used", 0)],
    waits_for_a_tick=[(0.003, ALL, True), (0.003, "wait", 1, 0.011), (0.003, "wait", 0, 0)],
    waits_for_all=[(0, ALL, True), (0.003, "wait", ALL, 6999.997)],
    waits_for_a_thousandth=[(0, ALL, True), (0.003, "wait", 0.001, 0.004)],
    a_clock_going_back=[(0.003, ALL, True), (-7, 0.001, False), (2 * TICK, MILLION, True)],
    settled_by_a_clock_going_back=[(0, ALL, True), (-7, "settle", 1), (TICK, "used", ALL - MILLION + 1)],
    a_clock_set_back_by_more_than_a_window=[
        (20_000, ALL, True),
        (0, 0, True),
        (TICK, MILLION, True),
        (TICK, 0.001, False),
    ],
    charged_by_a_clock_going_back=[(7, 1, True), (0, 1, True), (6.999, "used", 2), (7, "used", 2), (7.007, "used", 0)],
)
def test_ticks_of_more_than_a_microsecond(algorithm: RateLimitAlgorithm, timeline: list[Step]) -> None:
    tested = Driven(RateLimit("k", ALL, 7, algorithm))
    # From the beginning of a tick on.
    tested.run([(ms + (7_000_000 - NOW % 7_000_000) / 1000, *step) for ms, *step in timeline])


@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, LEAKY_BUCKET, GCRA])
@pytest.mark.parametrize("capacity", [10**6, 10**12 - 1], ids=["ticks_of_a_microsecond", "longer_ticks"])
def test_the_smallest_part_of_debt_counts(algorithm: RateLimitAlgorithm, capacity: int) -> None:
    rule = Driven(RateLimit("k", capacity, 1, algorithm)).rule
    taken = rule.take(rule.start, NOW, 5)
    assert taken is not None
    later = NOW + 10_000 * MS
    assert rule.used(taken, later) == 0
    assert rule.used(rule.settle(taken, later, 1), later) == 1
    assert rule.used(rule.settle(rule.start, NOW, 1), NOW) == 1


@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, LEAKY_BUCKET, GCRA])
def test_a_tick_of_two_microseconds(algorithm: RateLimitAlgorithm) -> None:
    # 68,965.5 units per tick: the fraction is carried on exactly.
    tested = Driven(RateLimit("k", 34_482_758_620, 1, algorithm))
    assert tested.take(NOW, 34_482_758_620)
    assert not tested.fits(NOW + 1, 1)
    for microseconds, units in [(2, 68_965), (3, 68_965), (4, 137_931), (6, 206_896)]:
        assert tested.fits(NOW + microseconds, units)
        assert not tested.fits(NOW + microseconds, units + 1)


@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, GCRA])
@pytest.mark.parametrize(
    ("units", "ticks"), [(0.001, 1), (1, 1), (MILLION, 1), (MILLION + 0.001, 2), (ALL, MILLION), (ALL - 0.001, MILLION)]
)
def test_use_lasts_until_the_end_of_its_tick(algorithm: RateLimitAlgorithm, units: float, ticks: int) -> None:
    tested, start = Driven(RateLimit("k", ALL, 7, algorithm)), NOW - NOW % 7
    assert tested.take(start, units)
    restored = tested.rule.restored_at(tested.state)
    assert restored == start + 7 * ticks
    assert tested.used(restored - 1) > 0
    assert tested.used(restored) == 0


@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, LEAKY_BUCKET, GCRA])
@pytest.mark.parametrize(
    ("burst", "timeline"),
    [
        pytest.param(1, [(0, 1, True), (499.999, 1, False), (500, 1, True), (1000, 1, True)], id="one_evenly_spaced"),
        pytest.param(1, [(0, 2, False), (9000, 2, False)], id="never_more_than_the_burst"),
        pytest.param(1, [(0, 1, True), (9000, 1, True), (9499.999, 1, False)], id="spacing_after_idling"),
        pytest.param(6, [(0, 6, True), (0, 1, False), (500, 1, True), (3500, 6, True)], id="more_than_a_window"),
        pytest.param(
            6, [(0, 6, True), (0, "wait", 6, 3000), (1, "used", Fraction(2999, 500))], id="more_than_a_window_drains"
        ),
    ],
)
def test_bursts(algorithm: RateLimitAlgorithm, burst: int, timeline: list[Step]) -> None:
    Driven(RateLimit("k", 3, 1.5, algorithm, burst)).run(timeline)


def test_a_leaky_bucket_with_a_burst_of_one_spaces_calls_evenly() -> None:
    calls = Driven(CallLimit(7, 1, LEAKY_BUCKET, burst=1))
    admitted = [now for now in range(NOW, NOW + 1_000_000, 7) if calls.take(now, 1)]
    gaps = {later - earlier for earlier, later in itertools.pairwise(admitted)}
    # A seventh of a second is 142,857 and a seventh microseconds, and 7 of them pass between two polls.
    assert len(admitted) == 7
    assert gaps == {142_863}


@timelines(
    twice_at_a_boundary=[(0, 1, True), (1499.999, 2, True), (1499.999, 1, False), (1500, 3, True), (1500, 1, False)],
    starts_when_first_used=[(0, 1, True), (5000, 3, True), (6499.999, 1, False), (6500, 1, True)],
    not_by_asking=[(0, 0, True), (1000, 3, True), (2499.999, 1, False), (2500, 1, True)],
    not_by_a_0=[(0, 1, True), (1000, 0, True), (1500, 0, True), (1600, 3, True), (3099.999, 1, False), (3100, 1, True)],
    not_by_a_refusal=[(0, 4, False), (1000, 3, True), (2499.999, 1, False), (2500, 1, True)],
    debt_ends_with_it=[(0, 3, True), (100, "settle", 2), (1499.999, 0, False), (1500, 3, True)],
    wait_in_debt=[(0, 3, True), (100, "settle", 2), (100, "used", 5), (100, "wait", 0, 1400)],
    late_usage=[(0, 3, True), (2000, "settle", 1), (2000, "used", 1), (3499.999, "used", 1)],
    usage_reported_when_it_ends=[(0, 3, True), (1500, "settle", 1), (1500, "used", 1)],
    waits_for_its_end=[(0, 1, True), (1000, "wait", 2, 0), (1000, "wait", 3, 500)],
    keeps_its_start=[(0, 1, True), (1000, 2, True), (1000, "wait", 1, 500)],
    keeps_its_start_when_settled=[(0, 1, True), (1000, "settle", 2), (1000, "wait", 1, 500)],
    a_clock_going_back=[(0, 3, True), (-200, "wait", 1, 1700)],
)
def test_a_fixed_window(timeline: list[Step]) -> None:
    three(FIXED_WINDOW).run(timeline)


@timelines(
    never_more_in_any_window=[(0, 1, True), (1000, 2, True), (1499.999, 1, False), (1500, 1, True), (1500, 1, False)],
    old_goes=[(0, 1, True), (1000, 2, True), (1500, 1, True), (2499.999, 1, False), (2500, 2, True), (2500, 1, False)],
    waits_for_the_oldest=[(0, 1, True), (1000, 2, True), (1000, "wait", 1, 500)],
    waits_for_the_youngest=[(0, 1, True), (1000, 2, True), (1000, "wait", 2, 1500)],
    waits_for_second=[(0, 1, True), (500, 1, True), (1000, 1, True), (1000, "wait", 2, 1000), (1000, "wait", 3, 1500)],
    waits_for_the_rest=[(0, 1, True), (500, 1, True), (1000, 1, True), (1600, "wait", 2, 400), (1600, "wait", 1, 0)],
    all_or_nothing=[(0, 3, True), (1499, "used", 3), (1500, "used", 0), (1600, "used", 0)],
    merged_at_later=[(0, 1, True), (1.464, 1, True), (1500, "used", 2), (1501.463, "used", 2), (1501.464, "used", 0)],
    usage_merged=[(0, 1, True), (1.464, "settle", 1), (1500, "used", 2), (1501.463, "used", 2), (1501.464, "used", 0)],
    usage_apart_after_a_step=[(0, 1, True), (1.465, "settle", 1), (1500, "used", 1), (1501.465, "used", 0)],
    apart_after_a_step=[(0, 1, True), (1.465, 1, True), (1500, "used", 1), (1501.465, "used", 0)],
    many_merged=[(0, 1, True), (1, 1, True), (2, 1, True), (1500.999, "used", 3), (1501, "used", 1), (1502, "used", 0)],
    merged_entries_leave_together=[(0, 1, True), (1, 1, True), (1501, 3, True)],
    debt_leaves_too=[(0, 3, True), (0, "settle", 2), (1499.999, 0, False), (1500, 0, True)],
    debt_counts_late=[(0, 3, True), (100, "settle", 2), (100, "wait", 0, 1400), (1500, "used", 2), (1600, "used", 0)],
    settled_earlier=[(0, 3, True), (-1, "settle", 1), (1499.999, "used", 4), (1500, "used", 0)],
    admitted_earlier=[(0, 1, True), (-5, 1, True), (1500, 3, True)],
    admitted_while_back=[(0, 1, True), (100, 1, True), (50, 1, True), (1599.999, "used", 2), (1600, "used", 0)],
    reported_while_back=[(0, 1, True), (100, 1, True), (50, "settle", 2), (1599.999, "used", 3), (1600, "used", 0)],
    stays_gone=[(0, 1, True), (1499, 1, True), (1500, 1, True), (1400, "used", 2), (1400, 1, True), (1400, 1, False)],
    starts_when_all_is_gone=[(0, 1, True), (1400, 1, True), (2900, 1, True), (2900, "used", 1), (4399.999, "used", 1)],
)
def test_a_sliding_window(timeline: list[Step]) -> None:
    three(SLIDING_WINDOW).run(timeline)


@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, GCRA])
@pytest.mark.parametrize("gap_us", [1, 7, 999])
def test_ten_per_second_at_any_polling_interval(algorithm: RateLimitAlgorithm, gap_us: int) -> None:
    calls = Driven(CallLimit(10, 1, algorithm))
    seconds = min(gap_us, 3)
    polls = range(NOW, NOW + seconds * 1_000_000 + gap_us, gap_us)
    rule, state, admitted = calls.rule, calls.state, 0
    for now in polls:
        after = rule.take(state, now, rule.parts_per_unit)
        if after is not None:
            state, admitted = after, admitted + 1
    assert admitted == 10 + 10 * seconds


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_clock_that_starts_at_zero_is_as_good_as_any(algorithm: RateLimitAlgorithm) -> None:
    limit = three(algorithm)
    assert limit.used(0) == 0
    assert limit.take(0, 3)
    assert not limit.take(0, 1)
    assert limit.wait(0, 3) == limit.rule.restored_at(limit.state) == 1500 * MS
    assert not limit.fits(1500 * MS - 1, 3)
    assert limit.take(1500 * MS, 3)

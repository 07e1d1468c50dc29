"""What each algorithm admits, told as timelines: three units per 1.5 seconds unless a table says otherwise."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm
from tests.core.algorithms.definitions import ALGORITHMS
from tests.core.algorithms.driven import MS, NOW, Driven, Step

TOKEN_BUCKET, LEAKY_BUCKET, SLIDING_WINDOW, FIXED_WINDOW, GCRA = ALGORITHMS


def three(algorithm: RateLimitAlgorithm) -> Driven:
    return Driven(RateLimit("k", 3, 1.5, algorithm))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "timeline",
    [
        pytest.param([(0, 3, True), (0, 1, False)], id="the_capacity_and_not_one_more"),
        pytest.param([(0, 1, True), (0, 1, True), (0, 1, True), (0, 1, False)], id="one_by_one"),
        pytest.param([(0, 2, True), (0, 2, False), (0, 1, True), (0, 1, False)], id="a_refusal_charges_nothing"),
        pytest.param([(0, 4, False), (0, 3, True)], id="more_than_all_never_fits"),
        pytest.param([(0, "used", 0), (0, 2, True), (0, "used", 2)], id="what_was_admitted_is_used"),
        pytest.param([(0, 3, True), (1500, 3, True), (1500, 1, False)], id="all_of_it_again_after_a_window"),
        pytest.param([(0, 3, True), (1499.999, 3, False), (1500, 3, True)], id="not_a_moment_early"),
        pytest.param([(0, 3, True), (1500, "used", 0)], id="nothing_is_used_after_a_window"),
        pytest.param([(0, 3, True), (0, "wait", 3, 1500)], id="the_wait_for_everything_is_a_window"),
        pytest.param([(0, "wait", 3, 0), (0, 1, True), (0, "wait", 2, 0)], id="no_wait_for_what_fits"),
        pytest.param([(0, 0, True), (0, 3, True), (0, 0, True)], id="nothing_is_admitted_though_all_is_used"),
        pytest.param([(0, 0, True), (7, "used", 0)], id="nothing_charges_nothing"),
        pytest.param([(0, 3, True), (0, "settle", 1), (0, "used", 4)], id="over_use_is_debt"),
        pytest.param([(0, 3, True), (0, "settle", 1), (0, 0, False)], id="nothing_is_refused_while_in_debt"),
        pytest.param([(0, "settle", 3), (0, "used", 3), (0, 1, False)], id="charged_without_being_asked"),
        pytest.param([(0, 3, True), (0, "settle", 0), (0, "used", 3)], id="settling_nothing_changes_nothing"),
        pytest.param([(0, 3, True), (1600, "settle", 2), (1600, "used", 2)], id="late_usage_counts_when_reported"),
        pytest.param([(9, 3, True), (0, 1, False), (8.999, 1, False)], id="a_clock_going_back_frees_nothing"),
        pytest.param([(9, 3, True), (0, 1, False), (1509, 3, True)], id="a_clock_going_back_costs_nothing"),
        pytest.param([(9, 3, True), (0, "wait", 3, 1509)], id="a_clock_going_back_makes_the_wait_longer"),
        pytest.param([(9, 2, True), (0, "settle", 1), (0, "used", 3)], id="a_clock_going_back_makes_no_more_debt"),
    ],
)
def test_every_algorithm(algorithm: RateLimitAlgorithm, timeline: list[Step]) -> None:
    three(algorithm).run(timeline)


@pytest.mark.parametrize("algorithm", [RateLimitAlgorithm.SLIDING_WINDOW, RateLimitAlgorithm.GCRA])
def test_asking_for_nothing_is_no_moment_from_which_on_a_clock_that_goes_back_counts(
    algorithm: RateLimitAlgorithm,
) -> None:
    three(algorithm).run([(0, 3, True), (900, 0, True), (0, 1, False), (0, "used", 3)])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "timeline",
    [
        pytest.param([(9000, 1, True), (0, "used", 1)], id="what_was_used"),
        pytest.param([(9000, 1, True), (0, 2, True), (0, 1, False)], id="what_is_left"),
        pytest.param([(9000, 3, True), (0, 0, True)], id="that_there_is_no_debt"),
        pytest.param([(0, 3, True), (9000, "settle", 0), (0, "used", 3)], id="what_was_used_when_nothing_was_settled"),
    ],
)
def test_a_clock_that_is_set_back_leaves_as_it_was(algorithm: RateLimitAlgorithm, timeline: list[Step]) -> None:
    three(algorithm).run(timeline)


REFILLING = [
    pytest.param([(0, 3, True), (499.999, 1, False), (500, 1, True), (500, 1, False)], id="one_by_one"),
    pytest.param([(0, 3, True), (0, "wait", 1, 500), (0, "wait", 2, 1000)], id="waits_for_some"),
    pytest.param([(0, 3, True), (123.456, "wait", 1, 376.544)], id="waits_from_in_between"),
    pytest.param(
        [(0, 3, True), (750, "used", Fraction(3, 2)), (1499.999, "used", Fraction(1, 500_000))],
        id="drains_all_the_time",
    ),
    pytest.param([(0, 1, True), (10_000, 3, True), (10_000, 1, False)], id="idling_saves_nothing_up"),
    pytest.param([(0, 3, True), (0, "settle", 2), (999.999, 0, False), (1000, 0, True)], id="debt_drains_first"),
    pytest.param([(0, 3, True), (0, "settle", 2), (0, "wait", 0, 1000), (0, "wait", 1, 1500)], id="waits_in_debt"),
    pytest.param([(0, 3, True), (0, "settle", 2), (2500, "used", 0), (2500, 3, True)], id="debt_is_paid_in_time"),
    pytest.param([(9, 3, True), (0, 1, False), (508.999, 1, False), (509, 1, True)], id="a_clock_going_back"),
    pytest.param([(9, 1, True), (0, "wait", 2, 0), (0, "wait", 3, 509)], id="no_wait_for_what_fits_by_such_a_clock"),
    pytest.param([(500, 3, True), (0, "settle", 1), (999.999, 0, False), (1000, 0, True)], id="late_debt_by_its_clock"),
]

REFUNDING = [
    pytest.param([(0, 3, True), (0, "settle", -2), (0, "used", 1), (0, 2, True)], id="unused_amounts_come_back"),
    pytest.param([(0, 3, True), (1000, "settle", -3), (1000, "used", 0), (1000, 3, True)], id="never_more_than_all"),
    pytest.param(
        [(0, 3, True), (1000, "settle", -3), (1000, 3, True), (1499.999, 1, False), (1500, 1, True)],
        id="a_refund_saves_nothing_up",
    ),
    pytest.param([(0, "settle", -3), (0, 3, True), (0, 1, False)], id="a_refund_of_what_was_never_taken"),
    pytest.param([(0, 3, True), (9000, "settle", -3), (9000, 3, True), (9000, 1, False)], id="a_late_refund"),
    pytest.param([(0, 3, True), (0, "settle", 2), (0, "settle", -2), (0, "used", 3)], id="debt_taken_back"),
    pytest.param([(500, 1, True), (0, "settle", -1), (500, 3, True), (500, 1, False)], id="after_a_clock_went_back"),
]

KEEPING = [
    pytest.param([(0, 3, True), (0, "settle", -2), (0, "used", 3), (0, 1, False)], id="unused_amounts_stay_spent"),
    pytest.param([(0, 3, True), (0, "settle", 1), (0, "settle", -1), (0, "used", 4)], id="debt_stays_too"),
]


@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, LEAKY_BUCKET, GCRA])
@pytest.mark.parametrize("timeline", REFILLING)
def test_what_drains(algorithm: RateLimitAlgorithm, timeline: list[Step]) -> None:
    three(algorithm).run(timeline)


@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, GCRA])
@pytest.mark.parametrize("timeline", REFUNDING)
def test_what_refunds(algorithm: RateLimitAlgorithm, timeline: list[Step]) -> None:
    three(algorithm).run(timeline)


@pytest.mark.parametrize("algorithm", [LEAKY_BUCKET, SLIDING_WINDOW, FIXED_WINDOW])
@pytest.mark.parametrize("timeline", KEEPING)
def test_what_does_not_refund(algorithm: RateLimitAlgorithm, timeline: list[Step]) -> None:
    three(algorithm).run(timeline)


@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, GCRA])
@pytest.mark.parametrize(
    "timeline",
    [
        pytest.param([(0, 0.5, True), (0, 2.5, True), (0, 0.001, False)], id="thousandths_are_counted"),
        pytest.param([(0, 3, True), (0.499, 0.001, False), (0.5, 0.001, True)], id="thousandths_come_back_in_time"),
        pytest.param([(0, 0.1, True)] * 30 + [(0, 0.1, False)], id="thirty_tenths_are_three"),
        pytest.param([(0, 3, True), (0, "settle", -0.3), (0, 0.301, False), (0, 0.3, True)], id="refunds"),
    ],
)
def test_decimals(algorithm: RateLimitAlgorithm, timeline: list[Step]) -> None:
    three(algorithm).run(timeline)


TICK = 0.007
"""Milliseconds in which a million comes back of 10^12 per 7 seconds: nothing less is counted exactly."""

MILLION, ALL = 10**6, 10**12


@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, GCRA])
@pytest.mark.parametrize(
    "timeline",
    [
        pytest.param(
            [(0, ALL, True), (0.006, 0.001, False), (TICK, MILLION, True), (TICK, 0.001, False)],
            id="comes_back_by_whole_ticks",
        ),
        pytest.param([(0.003, ALL, True), (0.003, 0, True), (0.006, 0, True)], id="all_is_used_and_no_more"),
        pytest.param(
            [(0.003, 1, True), (0.003, ALL - 1, True), (0.003, 0.001, False), (0.003, "used", ALL)],
            id="exactly_all_at_one_moment",
        ),
        pytest.param(
            [(0.003, ALL, True), (0.013, 0.001, False), (2 * TICK, MILLION, True), (2 * TICK, 0.001, False)],
            id="counts_from_the_next_tick_on_when_it_was_empty",
        ),
        pytest.param(
            [(0, ALL, True), (7000.003, ALL, True), (7000.013, 0.001, False), (7000.014, MILLION, True)],
            id="also_when_it_has_just_become_so",
        ),
        pytest.param(
            [(0, MILLION // 2, True), (0.003, ALL - MILLION // 2, True), (0.013, 0.001, False), (0.014, MILLION, True)],
            id="or_when_it_becomes_so_within_the_tick",
        ),
        pytest.param(
            [(0, MILLION, True), (0.003, ALL - MILLION, True), (0.006, 0.001, False), (TICK, MILLION, True)],
            id="but_not_when_it_lasts_to_the_end_of_the_tick",
        ),
        pytest.param(
            [(0, MILLION // 2, True), (0.003, 0, True), (TICK, "used", 0)], id="asking_for_nothing_delays_nothing"
        ),
        pytest.param(
            [(0, MILLION // 2, True), (0.003, "settle", 0), (TICK, "used", 0)], id="settling_nothing_delays_nothing"
        ),
        pytest.param([(0, MILLION, True), (0.003, "settle", -1), (TICK, "used", 0)], id="giving_back_delays_nothing"),
        pytest.param(
            [(0.003, "settle", 0.001), (0.013, "used", Fraction(1, 1000)), (2 * TICK, "used", 0)],
            id="so_does_what_is_settled",
        ),
        pytest.param(
            [(0, MILLION, True), (0.003, "settle", ALL), (TICK, "used", ALL)], id="unless_the_tick_is_used_up_anyway"
        ),
        pytest.param(
            [(0, MILLION // 2, True), (0.003, "settle", ALL), (TICK, "used", ALL + MILLION // 2)], id="or_may_run_dry"
        ),
        pytest.param(
            [(0.003, 0.002, True), (0.003, "settle", -0.001), (0.003, "used", Fraction(1, 1000))],
            id="to_the_thousandth",
        ),
        pytest.param([(0.003, 1, True), (0.003, "settle", -1), (0.003, "used", 0)], id="given_back_at_once"),
        pytest.param([(0.003, ALL, True), (0.003, "wait", 1, 0.011), (0.003, "wait", 0, 0)], id="waits_for_a_tick"),
        pytest.param([(0, ALL, True), (0.003, "wait", ALL, 6999.997)], id="waits_for_all"),
        pytest.param([(0, ALL, True), (0.003, "wait", 0.001, 0.004)], id="waits_for_a_thousandth"),
        pytest.param([(0.003, ALL, True), (-7, 0.001, False), (2 * TICK, MILLION, True)], id="a_clock_going_back"),
        pytest.param(
            [(0, ALL, True), (-7, "settle", 1), (TICK, "used", ALL - MILLION + 1)], id="settled_by_a_clock_going_back"
        ),
        pytest.param(
            [(7, 1, True), (0, 1, True), (6.999, "used", 2), (7, "used", 2), (7.007, "used", 0)],
            id="charged_by_a_clock_going_back",
        ),
    ],
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


@pytest.mark.parametrize(
    "timeline",
    [
        pytest.param(
            [(0, 1, True), (1499.999, 2, True), (1499.999, 1, False), (1500, 3, True), (1500, 1, False)],
            id="up_to_twice_across_a_boundary",
        ),
        pytest.param(
            [(0, 1, True), (5000, 3, True), (6499.999, 1, False), (6500, 1, True)], id="starts_when_first_used"
        ),
        pytest.param([(0, 0, True), (1000, 3, True), (2499.999, 1, False), (2500, 1, True)], id="not_by_asking"),
        pytest.param(
            [(0, 1, True), (1000, 0, True), (1500, 0, True), (1600, 3, True), (3099.999, 1, False), (3100, 1, True)],
            id="not_by_asking_after_the_end",
        ),
        pytest.param([(0, 4, False), (1000, 3, True), (2499.999, 1, False), (2500, 1, True)], id="not_by_a_refusal"),
        pytest.param([(0, 3, True), (100, "settle", 2), (1499.999, 0, False), (1500, 3, True)], id="debt_ends_with_it"),
        pytest.param([(0, 3, True), (100, "settle", 2), (100, "used", 5), (100, "wait", 0, 1400)], id="wait_in_debt"),
        pytest.param([(0, 3, True), (2000, "settle", 1), (2000, "used", 1), (3499.999, "used", 1)], id="late_usage"),
        pytest.param([(0, 3, True), (1500, "settle", 1), (1500, "used", 1)], id="usage_reported_when_it_ends"),
        pytest.param([(0, 1, True), (1000, "wait", 2, 0), (1000, "wait", 3, 500)], id="waits_for_its_end"),
        pytest.param([(0, 1, True), (1000, 2, True), (1000, "wait", 1, 500)], id="keeps_its_start"),
        pytest.param([(0, 1, True), (1000, "settle", 2), (1000, "wait", 1, 500)], id="keeps_its_start_when_settled"),
        pytest.param([(0, 3, True), (-200, "wait", 1, 1700)], id="a_clock_going_back"),
    ],
)
def test_a_fixed_window(timeline: list[Step]) -> None:
    three(FIXED_WINDOW).run(timeline)


STEP = 1500 / 1024
"""What a window of 1.5 seconds merges: 1.464 ms, after rounding down to whole microseconds."""


@pytest.mark.parametrize(
    "timeline",
    [
        pytest.param(
            [(0, 1, True), (1000, 2, True), (1499.999, 1, False), (1500, 1, True), (1500, 1, False)],
            id="never_more_within_any_window",
        ),
        pytest.param(
            [(0, 1, True), (1000, 2, True), (1500, 1, True), (2499.999, 1, False), (2500, 2, True), (2500, 1, False)],
            id="what_is_old_goes_and_what_is_young_stays",
        ),
        pytest.param([(0, 1, True), (1000, 2, True), (1000, "wait", 1, 500)], id="waits_for_the_oldest"),
        pytest.param([(0, 1, True), (1000, 2, True), (1000, "wait", 2, 1500)], id="waits_for_the_youngest"),
        pytest.param(
            [(0, 1, True), (500, 1, True), (1000, 1, True), (1000, "wait", 2, 1000), (1000, "wait", 3, 1500)],
            id="waits_for_the_one_in_between",
        ),
        pytest.param(
            [(0, 1, True), (500, 1, True), (1000, 1, True), (1600, "wait", 2, 400), (1600, "wait", 1, 0)],
            id="waits_when_some_is_gone_already",
        ),
        pytest.param([(0, 3, True), (1499, "used", 3), (1500, "used", 0), (1600, "used", 0)], id="all_or_nothing"),
        pytest.param(
            [(0, 1, True), (1.464, 1, True), (1500, "used", 2), (1501.463, "used", 2), (1501.464, "used", 0)],
            id="merged_at_the_later_time",
        ),
        pytest.param(
            [(0, 1, True), (1.464, "settle", 1), (1500, "used", 2), (1501.463, "used", 2), (1501.464, "used", 0)],
            id="what_is_reported_is_merged_too",
        ),
        pytest.param(
            [(0, 1, True), (1.465, "settle", 1), (1500, "used", 1), (1501.465, "used", 0)],
            id="and_kept_apart_when_a_step_lies_between",
        ),
        pytest.param(
            [(0, 1, True), (1.465, 1, True), (1500, "used", 1), (1501.465, "used", 0)],
            id="kept_apart_when_a_step_lies_between",
        ),
        pytest.param(
            [(0, 1, True), (1, 1, True), (2, 1, True), (1500.999, "used", 3), (1501, "used", 1), (1502, "used", 0)],
            id="merged_from_when_it_was_opened",
        ),
        pytest.param([(0, 1, True), (1, 1, True), (1501, 3, True)], id="merged_entries_leave_together"),
        pytest.param([(0, 3, True), (0, "settle", 2), (1499.999, 0, False), (1500, 0, True)], id="debt_leaves_too"),
        pytest.param(
            [(0, 3, True), (100, "settle", 2), (100, "wait", 0, 1400), (1500, "used", 2), (1600, "used", 0)],
            id="debt_is_dated_when_it_was_reported",
        ),
        pytest.param([(0, 3, True), (-1, "settle", 1), (1499.999, "used", 4), (1500, "used", 0)], id="settled_earlier"),
        pytest.param([(0, 1, True), (-5, 1, True), (1500, 3, True)], id="admitted_earlier"),
        pytest.param(
            [(0, 1, True), (100, 1, True), (50, 1, True), (1599.999, "used", 2), (1600, "used", 0)],
            id="admitted_by_a_clock_that_went_back",
        ),
        pytest.param(
            [(0, 1, True), (100, 1, True), (50, "settle", 2), (1599.999, "used", 3), (1600, "used", 0)],
            id="reported_by_a_clock_that_went_back",
        ),
        pytest.param(
            [(0, 1, True), (1499, 1, True), (1500, 1, True), (1400, "used", 2), (1400, 1, True), (1400, 1, False)],
            id="what_is_gone_does_not_come_back_with_the_clock",
        ),
        pytest.param(
            [(0, 1, True), (1400, 1, True), (2900, 1, True), (2900, "used", 1), (4399.999, "used", 1)],
            id="starts_afresh_when_all_is_gone",
        ),
    ],
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

"""Properties that hold for every definition and every course of events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from limits_app.engine.algorithms.rule import DEBT_PARTS
from limits_app.engine.algorithms.units import exact_units, window_us
from limits_app.engine.amounts import from_milli
from limits_app.engine.limits import RateLimit, RateLimitAlgorithm
from limits_app.testing.conformance.model import BucketModel, model_of
from tests.engine.algorithms.definitions import ALGORITHMS, WITH_BURST, exact, examples, rate_per_us, rates, spread
from tests.engine.algorithms.driven import NOW, Driven

pytestmark = pytest.mark.slow

TOKEN_BUCKET = RateLimitAlgorithm.TOKEN_BUCKET
LEAKY_BUCKET = RateLimitAlgorithm.LEAKY_BUCKET
GCRA = RateLimitAlgorithm.GCRA

#: What a double, and so a script in Redis, counts exactly.
EXACT = 2**53

#: The year 2096: up to then, and longer, the end of the deepest debt is exact as well.
LATEST = 4_000_000_000_000_000


class Course:
    """A course of events for one definition: gaps and amounts of every kind, most of them near what matters."""

    def __init__(self, draw: st.DataObject, limit: RateLimit) -> None:
        self.draw = draw
        self.limit = limit
        self.tested = Driven(limit)
        self.now = NOW + self.up_to(10**6, "start")
        self.window = window_us(limit)

    def up_to(self, most: int, label: str) -> int:
        """Any number from 0 on."""
        return self.draw.draw(st.integers(0, most), label)

    def either(self, label: str) -> bool:
        """One of two courses."""
        return self.draw.draw(st.booleans(), label)

    def one_of(self, values: Sequence[float], label: str) -> Any:
        """One of some values; a strategy for each step, as `sampled_from` is, would take most of the time."""
        return values[self.up_to(len(values) - 1, label)]

    def length(self) -> int:
        return 1 + self.up_to(11, "steps")

    def pass_time(self) -> None:
        wait, window = self.tested.wait(self.now, self.limit.ceiling), self.window
        first = self.tested.wait(self.now, 1) if self.limit.ceiling >= 1 else 1
        gaps = [0, 1, first, max(wait - 1, 0), wait, window - 1, window, window + 1]
        gaps += [window // 1024, window // 1024 + 1, window // 3]
        self.now += self.up_to(2 * window, "gap") if self.either("any gap") else self.one_of(gaps, "gap")

    def amount(self) -> float:
        ceiling = self.limit.ceiling
        whole = int(ceiling)
        left = max(whole - int(self.tested.used(self.now)), 0)
        amounts = [0, 1, ceiling, left, left + 1, self.up_to(whole, "whole")]
        if self.limit.algorithm.takes_decimals:
            amounts.append(from_milli(self.up_to(round(ceiling * 1000), "thousandths")))
        return min(self.one_of(amounts, "amount"), 10**12)

    def change(self) -> float:
        """A settlement, of either sign."""
        return self.amount() if self.either("more") else -self.amount()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@examples(80)
@given(draw=st.data())
def test_a_wait_is_exact_and_not_a_moment_early(algorithm: RateLimitAlgorithm, draw: st.DataObject) -> None:
    course = Course(draw, draw.draw(rates((algorithm,))))
    tested = course.tested
    for _ in range(course.length()):
        course.pass_time()
        if course.either("settles"):
            tested.settle(course.now, course.change())
        else:
            tested.take(course.now, course.amount())
        asked = min(course.amount(), course.limit.ceiling)
        wait = tested.wait(course.now, asked)
        assert wait >= 0
        assert (wait == 0) is tested.fits(course.now, asked)
        assert tested.fits(course.now + wait, asked)
        assert wait == 0 or not tested.fits(course.now + wait - 1, asked)
        assert wait == 0 or not tested.fits(course.now + course.up_to(wait - 1, "too early"), asked)
        assert tested.fits(course.now + wait + course.up_to(course.window, "later"), asked)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@examples(80)
@given(draw=st.data())
def test_every_algorithm_decides_as_its_model_does(algorithm: RateLimitAlgorithm, draw: st.DataObject) -> None:
    drains = algorithm in WITH_BURST
    limit = draw.draw(rates((algorithm,)) if drains else rates((algorithm,), most=50))
    assume(not drains or exact_units(limit).tick_us == 1)
    course, model = Course(draw, limit), model_of(limit)
    most = Fraction(DEBT_PARTS, course.tested.rule.parts_per_unit)
    for _ in range(course.length() if drains else 3 * course.length()):
        course.pass_time()
        if course.up_to(1 if drains else 7, "settles") == 0:
            change = course.change()
            course.tested.settle(course.now, change)
            model.settle(course.now, exact(change))
        else:
            amount = course.amount()
            admits, taken = model.admits(course.now, exact(amount)), course.tested.take(course.now, amount)
            assert admits in {None, taken}
            if taken:
                model.charge(course.now, exact(amount))
        used = model.used(course.now)
        assume(used is None or used <= most)
        assert used in {None, course.tested.used(course.now)}


COARSE = [
    RateLimit("k", 10**12, 7),
    RateLimit("k", 999_999_937, 60, burst=10**9),
    RateLimit("k", 999_999_937_000, 3600, LEAKY_BUCKET),
    RateLimit("k", 34_482_758_620, 1, LEAKY_BUCKET),
    RateLimit("k", 1.001, 0.05, burst=10**12),
    RateLimit("k", 10**12, 7, GCRA),
    RateLimit("k", 10**9 + 7, 11, GCRA),
]
"""Definitions whose ticks are longer than a microsecond."""


@pytest.mark.parametrize("limit", COARSE, ids=repr)
@examples(80)
@given(draw=st.data())
def test_long_ticks_are_late_by_three_at_most_and_never_early(limit: RateLimit, draw: st.DataObject) -> None:
    units = exact_units(limit)
    assert units.tick_us > 1
    course, model = (
        Course(draw, limit),
        model_of(replace(limit, algorithm=TOKEN_BUCKET) if limit.algorithm is GCRA else limit),
    )
    assert isinstance(model, BucketModel)
    most = Fraction(DEBT_PARTS, units.parts_per_unit)
    for _ in range(course.length()):
        course.pass_time()
        course.now += course.up_to(2 * units.tick_us, "within ticks")
        if course.either("settles"):
            change = course.change()
            course.tested.settle(course.now, change)
            model.settle(course.now, exact(change))
        else:
            amount = course.amount()
            fits = course.tested.take(course.now, amount)
            expected = model.admits(course.now, exact(amount))
            assert expected or not fits
            late = expected and not fits
            assert not late or course.tested.wait(course.now, amount) <= 3 * units.tick_us
            if fits:
                model.charge(course.now, exact(amount))
        model.level = min(model.level, most)
        late = course.tested.used(course.now) - model.used(course.now)
        assert 0 <= late <= 3 * units.tick_us * rate_per_us(limit)


@pytest.mark.parametrize("limit", [None, *COARSE], ids=repr)
@examples(80)
@given(draw=st.data())
def test_a_refund_has_the_same_result_at_any_later_time(limit: RateLimit | None, draw: st.DataObject) -> None:
    course = Course(draw, draw.draw(rates(ALGORITHMS)) if limit is None else limit)
    taken: list[tuple[int, float]] = []
    for _ in range(course.length()):
        course.pass_time()
        amount = course.amount()
        if course.tested.take(course.now, amount):
            taken.append((course.now, amount))
    assume(taken)
    taken_at, amount = taken[course.up_to(len(taken) - 1, "what is given back")]
    settled_at = course.now
    course.pass_time()
    then, now = Driven(course.limit, course.tested.state), course.tested
    then.settle(settled_at, -amount, taken_at)
    now.settle(course.now, -amount, taken_at)
    for _ in range(course.length()):
        assert then.used(course.now) == now.used(course.now)
        assert then.wait(course.now, course.limit.ceiling) == now.wait(course.now, course.limit.ceiling)
        course.pass_time()


@pytest.mark.parametrize("algorithm", [TOKEN_BUCKET, GCRA])
@examples(80)
@given(draw=st.data())
def test_use_is_bounded_by_burst_refill_and_refunds(algorithm: RateLimitAlgorithm, draw: st.DataObject) -> None:
    course = Course(draw, draw.draw(rates((algorithm,))))
    charged: list[tuple[int, Fraction]] = []
    held: list[int] = []
    uses: dict[int, Fraction] = {}
    events: list[tuple[int, int, Fraction]] = []  # when, by which request, and what it was refunded
    for _ in range(2 * course.length()):
        course.pass_time()
        if held and course.either("settles"):
            number = held.pop(course.up_to(len(held) - 1, "which"))
            taken_at, amount = charged[number]
            uses[number] = amount * Fraction(course.up_to(2, "used"), 2)
            before = course.tested.used(course.now)
            course.tested.state = course.tested.rule.settle(
                course.tested.state,
                course.now,
                -int((amount - uses[number]) * course.tested.rule.parts_per_unit),
                taken_at,
            )
            events.append((course.now, number, before - course.tested.used(course.now)))
        elif course.tested.take(course.now, amount := course.amount()):
            held.append(len(charged))
            charged.append((course.now, exact(amount)))
    for first, (begin, _) in enumerate(charged):
        for last, (end, _) in enumerate(charged[first:], first):
            used = sum(uses.get(number, charged[number][1]) for number in range(first, last + 1))
            refunded = sum(refund for at, number, refund in events if begin <= at <= end and number < first)
            assert used <= exact(course.limit.ceiling) + rate_per_us(course.limit) * (end - begin) + refunded


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@examples(80)
@given(draw=st.data())
def test_looking_in_between_changes_nothing(algorithm: RateLimitAlgorithm, draw: st.DataObject) -> None:
    course = Course(draw, draw.draw(rates((algorithm,))))
    seldom = Driven(course.limit)
    for _ in range(course.length()):
        before = course.now
        course.pass_time()
        looks = [course.up_to(course.now - before, "look") for _ in range(course.up_to(5, "looks"))]
        for moment in sorted(before + look for look in looks):
            course.tested.take(moment, 0)
            course.tested.fits(moment, course.limit.ceiling)
            course.tested.used(moment)
            course.tested.wait(moment, course.limit.ceiling)
        amount = course.amount()
        assert course.tested.take(course.now, amount) is seldom.take(course.now, amount)
        assert course.tested.used(course.now) == seldom.used(course.now)
        asked = min(amount, course.limit.ceiling)
        assert course.tested.wait(course.now, asked) == seldom.wait(course.now, asked)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@examples(80)
@given(draw=st.data())
def test_every_number_that_is_kept_is_exact_in_a_double(algorithm: RateLimitAlgorithm, draw: st.DataObject) -> None:
    limit = draw.draw(rates((algorithm,)))
    course, enormous = Course(draw, limit), 2**52 // exact_parts(limit)
    for _ in range(course.length()):
        course.pass_time()
        course.now = min(course.now, LATEST)
        if course.either("settles"):
            debt = course.one_of([1, -1, enormous // 2, enormous - 1, enormous, 10 * enormous], "debt")
            # More than anybody may report, as if it had been reported again and again.
            rule = course.tested.rule
            course.tested.state = rule.settle(course.tested.state, course.now, debt * rule.parts_per_unit)
        else:
            course.tested.take(course.now, course.amount())
        *numbers, last = course.tested.state
        if course.tested.rule.has_log:
            numbers += [number for array in last.arrays() for number in array]
        else:
            numbers.append(last)
        assert all(type(number) is int and 0 <= number < EXACT for number in numbers), course.tested.state


def exact_parts(limit: RateLimit) -> int:
    """Parts to a unit."""
    return Driven(limit).rule.parts_per_unit


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@examples(80)
@given(draw=st.data())
def test_a_restored_state_equals_an_unused_one(algorithm: RateLimitAlgorithm, draw: st.DataObject) -> None:
    course = Course(draw, draw.draw(rates((algorithm,))))
    for _ in range(course.length()):
        course.pass_time()
        if course.either("settles"):
            course.tested.settle(course.now, course.change())
        else:
            course.tested.take(course.now, course.amount())
    used, restored = course.tested.used(course.now), course.tested.rule.restored_at(course.tested.state)
    assert restored > course.now or used == 0
    assert used == 0 or course.tested.used(restored - 1) > 0
    course.now, fresh = max(restored, course.now), Driven(course.limit)
    for _ in range(course.length()):
        assert course.tested.used(course.now) == fresh.used(course.now)
        amount = course.amount()
        assert course.tested.take(course.now, amount) is fresh.take(course.now, amount)
        course.pass_time()


@examples(150)
@given(draw=st.data())
def test_buckets_of_each_name_decide_alike_until_a_refund(draw: st.DataObject) -> None:
    course = Course(draw, draw.draw(rates((LEAKY_BUCKET,))))
    others = [Driven(replace(course.limit, algorithm=algorithm)) for algorithm in (TOKEN_BUCKET, GCRA)]
    assume(all(other.rule.lua[3] == course.tested.rule.lua[3] for other in others))  # their tick
    for _ in range(course.length()):
        course.pass_time()
        course.now -= course.one_of([0, 0, 0, 1, course.window // 2, 3 * course.window], "set back")
        amount, settles = course.amount(), course.either("settles")
        for other in others:
            if settles:
                other.settle(course.now, amount)
            else:
                assert other.take(course.now, amount) is course.tested.fits(course.now, amount)
        if settles:
            course.tested.settle(course.now, amount)
        else:
            course.tested.take(course.now, amount)
        for other in others:
            assert other.state == course.tested.state
            assert other.wait(course.now, course.limit.ceiling) == course.tested.wait(course.now, course.limit.ceiling)


@examples(150)
@given(limit=rates((GCRA, TOKEN_BUCKET)), share=spread(10**6))
def test_exactly_the_burst_is_admitted_in_two_helpings(limit: RateLimit, share: int) -> None:
    tested, burst = Driven(limit), round(limit.ceiling * 1000)
    some = burst * share // 10**6
    assert tested.take(NOW, from_milli(some))
    assert tested.take(NOW, from_milli(burst - some))
    assert not tested.take(NOW, 0.001)

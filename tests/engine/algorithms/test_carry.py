"""A changed definition keeps what was used; credit reduces it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from limits_app.engine.algorithms import RATE_RULES, State, compile_rule
from limits_app.engine.algorithms.rule import DEBT_PARTS
from limits_app.engine.algorithms.units import exact_units, window_us
from limits_app.engine.algorithms.windows import FixedWindow
from limits_app.engine.amounts import from_milli
from limits_app.engine.limits import Blocked, LimitDefinition, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from tests.engine.algorithms.definitions import ALGORITHMS, examples, rates
from tests.engine.algorithms.driven import MS, NOW, SECOND, Driven

TOKEN_BUCKET = RateLimitAlgorithm.TOKEN_BUCKET
LEAKY_BUCKET = RateLimitAlgorithm.LEAKY_BUCKET
SLIDING_WINDOW = RateLimitAlgorithm.SLIDING_WINDOW
FIXED_WINDOW = RateLimitAlgorithm.FIXED_WINDOW
GCRA = RateLimitAlgorithm.GCRA
KEEP_THEIR_STATE = (SLIDING_WINDOW, FIXED_WINDOW)
"""Algorithms whose state goes on as it is when their window changes; the use of others is converted."""


def ten(algorithm: RateLimitAlgorithm, capacity: int = 10, seconds: float = 60) -> RateLimit:
    return RateLimit("k", capacity, seconds, algorithm)


@pytest.mark.parametrize("old", ALGORITHMS)
def test_unused_limit_is_unused_under_any_definition(old: RateLimitAlgorithm) -> None:
    for new in ALGORITHMS:
        changed = Driven(ten(old)).carried_into(ten(new, 20, 3600), NOW)
        assert changed.used(NOW) == 0
        assert changed.rule.restored_at(changed.state) == 0
        assert changed.fits(NOW, 20)


READ_ALIKE = [{TOKEN_BUCKET, GCRA, LEAKY_BUCKET}, {SLIDING_WINDOW}, {FIXED_WINDOW}]
"""Algorithms that read the states of each other as they are."""


@pytest.mark.parametrize("new", ALGORITHMS)
@pytest.mark.parametrize("old", ALGORITHMS)
def test_each_pair_of_algorithms_keeps_or_converts_a_state(old: RateLimitAlgorithm, new: RateLimitAlgorithm) -> None:
    tested = Driven(ten(old))
    assert tested.take(NOW, 7)
    changed = tested.carried_into(ten(new), NOW + SECOND)
    assert (changed.state is tested.state) is any({old, new} <= alike for alike in READ_ALIKE)
    assert 0 <= changed.used(NOW + SECOND) - tested.used(NOW + SECOND) < 1
    assert not changed.fits(NOW + SECOND, 4)


class OtherWindow(FixedWindow):
    """An algorithm that is built on a fixed window, and counts in halves of a unit."""

    def used(self, state: State, now: int) -> int:
        return super().used(state, now) // 2


def test_state_of_a_subclass_is_converted() -> None:
    old = OtherWindow(ten(FIXED_WINDOW))
    state = old.settle(old.start, NOW, 8)
    assert Driven(ten(FIXED_WINDOW)).rule.carry(old, state, NOW) == (NOW, 4)


def test_algorithm_without_a_rule_names_the_missing_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RATE_RULES, GCRA)
    with pytest.raises(LookupError, match="algorithm 'gcra' has no rule: add it to RATE_RULES"):
        compile_rule(ten(GCRA, capacity=11), 1)


def test_a_fixed_window_carried_into_another_algorithm_and_back_starts_now() -> None:
    tested = Driven(ten(FIXED_WINDOW))
    assert tested.take(NOW, 7)
    changed = tested.carried_into(ten(SLIDING_WINDOW), NOW + 30 * SECOND)
    assert changed.used(NOW + 90 * SECOND - 1) == 7
    assert changed.used(NOW + 90 * SECOND) == 0
    back = changed.carried_into(ten(FIXED_WINDOW), NOW + 40 * SECOND)
    assert back.used(NOW + 100 * SECOND - 1) == 7
    assert back.used(NOW + 100 * SECOND) == 0


@examples(400)
@given(draw=st.data(), old=rates(), new=rates())
def test_use_is_carried_exactly_or_rounded_up(draw: st.DataObject, old: RateLimit, new: RateLimit) -> None:
    tested = Driven(old)
    most = old.ceiling if isinstance(old.ceiling, int) else 1
    tested.settle(NOW, draw.draw(st.integers(0, most)))
    later = NOW + draw.draw(st.integers(0, 2 * window_us(old)))
    changed = tested.carried_into(new, later)
    if new.algorithm is old.algorithm and new.algorithm in KEEP_THEIR_STATE:
        # The state itself goes on, by the clock of the new window.
        assert changed.state == tested.state
    else:
        part = Fraction(1, changed.rule.parts_per_unit)
        capped = changed.used(later) == DEBT_PARTS * part
        assert capped or 0 <= changed.used(later) - tested.used(later) < part
        assert changed.used(later) == 0 or changed.rule.restored_at(changed.state) > later


BUCKETS = st.sampled_from([TOKEN_BUCKET, LEAKY_BUCKET, GCRA])


@examples(300)
@given(draw=st.data(), limit=rates((LEAKY_BUCKET,)))
def test_use_goes_on_when_a_bucket_gets_another_name(draw: st.DataObject, limit: RateLimit) -> None:
    same = replace(limit, algorithm=TOKEN_BUCKET)
    assume(exact_units(limit) == exact_units(same))
    changed, unchanged = Driven(limit), Driven(same)
    window, now = window_us(limit), NOW + draw.draw(st.integers(0, 10**6))
    for _ in range(draw.draw(st.integers(1, 8))):
        changed = changed.carried_into(replace(limit, algorithm=draw.draw(BUCKETS)), now)
        decimals = changed.rule.limit.algorithm.takes_decimals  # type: ignore[union-attr]  # a rate
        most = min(2 * int(limit.ceiling), 10**12)
        units = from_milli(draw.draw(st.integers(0, 1000 * most))) if decimals else draw.draw(st.integers(0, most))
        if draw.draw(st.booleans()):
            changed.settle(now, units)
            unchanged.settle(now, units)
        else:
            assert changed.take(now, units) is unchanged.take(now, units)
        now += draw.draw(st.integers(-window, 2 * window))
        assert changed.used(now) == unchanged.used(now)
        assert changed.wait(now, limit.ceiling) == unchanged.wait(now, limit.ceiling)


@pytest.mark.parametrize("old", [TOKEN_BUCKET, LEAKY_BUCKET, GCRA])
@pytest.mark.parametrize("new", [TOKEN_BUCKET, LEAKY_BUCKET, GCRA])
def test_a_bucket_with_another_name_and_burst_forgets_nothing_that_has_drained(
    old: RateLimitAlgorithm, new: RateLimitAlgorithm
) -> None:
    # Seven per second, so that a part of a unit has drained at any whole microsecond.
    tested = Driven(RateLimit("k", 7, 1, old))
    assert tested.take(NOW, 5)
    changed = tested.carried_into(RateLimit("k", 7, 1, new, burst=6), NOW + 333_333)
    assert changed.state == tested.state
    assert changed.used(NOW + 333_333) == 5 - Fraction(2_333_331, 10**6)
    assert changed.wait(NOW + 333_333, 4) == 95_239
    slower = changed.carried_into(RateLimit("k", 7, 2, old), NOW + 333_333)
    assert slower.used(NOW + 533_333) == changed.used(NOW + 333_333) - Fraction(7, 10)


TEN_SECONDS = [RateLimit("units", 10, 10, algorithm) for algorithm in RateLimitAlgorithm]
LIMITS = [*TEN_SECONDS, QuotaLimit.per_session("units", 10, 10)]


def credit(driven: Driven, now: int, units: float) -> None:
    """Give credit."""
    driven.state = driven.rule.credit(driven.state, now, driven.parts(units))


@pytest.mark.parametrize("limit", [ResourceLimit("db", 3), Blocked()])
def test_permits_and_blocks_take_no_credit(limit: ResourceLimit | Blocked) -> None:
    driven = Driven(limit)  # type: ignore[arg-type]  # whatever can be compiled
    state = driven.rule.take(driven.state, NOW, 1) or driven.state
    assert driven.rule.credit(state, NOW, 1) is state


def test_sliding_window_drops_the_oldest_use() -> None:
    window = Driven(RateLimit("units", 10, 10, RateLimitAlgorithm.SLIDING_WINDOW))
    for second in range(5):
        assert window.take(NOW + second * SECOND, 2)
    now = NOW + 5 * SECOND
    credit(window, now, 3)
    assert window.used(now) == 7
    assert window.wait(now, 4) == 6 * SECOND, "the rest of what was second comes back next"
    assert window.used(NOW + 11 * SECOND) == 6
    credit(window, now, 7)
    assert window.used(now) == 0


def test_credit_that_ends_within_an_entry_stays_when_older_ones_expire() -> None:
    window = Driven(RateLimit("units", 10, 10, RateLimitAlgorithm.SLIDING_WINDOW))
    assert window.take(NOW, 4)
    assert window.take(NOW + SECOND, 4)
    credit(window, NOW + 2 * SECOND, 5)
    assert window.used(NOW + 10 * SECOND) == 3
    assert window.used(NOW + 11 * SECOND) == 0


def test_a_sliding_window_of_which_all_was_forgotten_begins_again() -> None:
    window = Driven(RateLimit("units", 10, 10, RateLimitAlgorithm.SLIDING_WINDOW))
    assert window.take(NOW, 1)
    credit(window, NOW, 1)
    assert window.take(NOW + 5 * MS, 1)
    assert window.take(NOW + 14 * MS, 1)
    assert window.used(NOW + 10 * SECOND + 13 * MS) == 2, "merged with what was taken less than a step before it"
    assert window.used(NOW + 10 * SECOND + 14 * MS) == 0


def test_sliding_window_continues_with_the_rest_of_its_log() -> None:
    window = Driven(RateLimit("units", 10, 10, RateLimitAlgorithm.SLIDING_WINDOW))
    for second in range(5):
        assert window.take(NOW + second * SECOND, 1)
    credit(window, NOW + 5 * SECOND, 2)
    assert window.take(NOW + 6 * SECOND, 7)
    assert not window.take(NOW + 12 * SECOND - 20 * MS, 1)
    assert window.take(NOW + 12 * SECOND + 10 * MS, 1)


@given(
    limit=st.sampled_from(LIMITS),
    steps=st.lists(
        st.tuples(
            st.sampled_from([0, 1, MS, 9 * MS, SECOND, 9_999_999, 10_000_000]), st.integers(0, 10), st.integers(1, 15)
        ),
        max_size=15,
    ),
    back=st.booleans(),
)
def test_credit_reduces_use_exactly(limit: LimitDefinition, steps: list[tuple[int, int, int]], *, back: bool) -> None:
    driven, now = Driven(limit), NOW
    for moved, asked, given_units in steps:
        now += -moved // 2 if back and asked % 3 == 0 else moved
        driven.take(now, asked)
        used, state = driven.used(now), driven.state
        credit(driven, now, given_units)
        assert driven.used(now) == max(used - given_units, 0)
        assert driven.rule.restored_at(driven.state) <= max(driven.rule.restored_at(state), now), "idle no later"
        assert not driven.fits(now, 11)

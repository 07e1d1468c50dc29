"""What a store may rely on, whatever the limit; how permits are counted; what blocked means."""

from __future__ import annotations

import pytest

from limits_app.engine.algorithms import compile_rule
from limits_app.engine.algorithms.rule import NEVER_US
from limits_app.engine.algorithms.window_log import Log
from limits_app.engine.limits import (
    Blocked,
    CallLimit,
    LimitDefinition,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from tests.engine.algorithms.driven import LEASE_US, NOW, SECOND, Driven

RATES: list[LimitDefinition] = [
    *[RateLimit("k", 3, 1.5, algorithm) for algorithm in RateLimitAlgorithm],
    CallLimit(3, 1.5),
]
LIMITS: list[LimitDefinition] = [
    *RATES,
    ResourceLimit("k", 3),
    QuotaLimit.per_day("k", 3),
    QuotaLimit.per_session("k", 3, 1.5),
    Blocked(),
]


@pytest.mark.parametrize("limit", LIMITS, ids=repr)
def test_a_state_of_zeros_means_unused(limit: LimitDefinition) -> None:
    rule = compile_rule(limit, LEASE_US)
    numbers = [len(value) if isinstance(value, Log) else value for value in rule.start]
    assert not any(numbers)
    assert rule.has_log is any(isinstance(value, Log) for value in rule.start)
    assert rule.used(rule.start, NOW) == 0
    assert rule.restored_at(rule.start) == 0


@pytest.mark.parametrize("limit", LIMITS[:-1], ids=repr)
@pytest.mark.parametrize("back", [1, SECOND, 2 * SECOND, 3 * LEASE_US, 400 * 86_400 * SECOND])
def test_take_decides_over_the_state_as_it_is_after_the_clock_was_set_back(limit: LimitDefinition, back: int) -> None:
    rule = compile_rule(limit, LEASE_US)
    state = rule.take(rule.start, NOW, 2 * rule.parts_per_unit)
    assert state is not None
    now = NOW - back
    for units in range(3):
        amount = units * rule.parts_per_unit
        assert rule.take(state, now, amount) == rule.take(rule.current(state, now), now, amount)


@pytest.mark.parametrize("limit", LIMITS[:-1], ids=repr)
@pytest.mark.parametrize("back", [1, SECOND, 2 * SECOND, 3 * LEASE_US, 400 * 86_400 * SECOND])
@pytest.mark.parametrize("units", [-2, -1, 1])
def test_settle_changes_the_state_as_it_is_after_the_clock_was_set_back(
    limit: LimitDefinition, back: int, units: int
) -> None:
    rule = compile_rule(limit, LEASE_US)
    state = rule.take(rule.start, NOW, 2 * rule.parts_per_unit)
    assert state is not None
    now, change = NOW - back, units * rule.parts_per_unit
    assert rule.settle(state, now, change, NOW) == rule.settle(rule.current(state, now), now, change, NOW)


@pytest.mark.parametrize("limit", LIMITS[:-1], ids=repr)
def test_the_ceiling_is_the_most_of_one_request(limit: LimitDefinition) -> None:
    rule = compile_rule(limit, LEASE_US)
    assert rule.ceiling_parts == 3 * rule.parts_per_unit
    assert rule.take(rule.start, NOW, rule.ceiling_parts) is not None
    assert rule.take(rule.start, NOW, rule.ceiling_parts + 1) is None


@pytest.mark.parametrize(
    ("limit", "parameters"),
    [
        (RateLimit("k", 3, 7, RateLimitAlgorithm.TOKEN_BUCKET), ("token_bucket", 21_000_000, 3, 1, 7_000_000)),
        (RateLimit("k", 3, 1.5, RateLimitAlgorithm.LEAKY_BUCKET), ("leaky_bucket", 1_500_000, 1, 1, 1_500_000)),
        (RateLimit("k", 3, 1.5, RateLimitAlgorithm.SLIDING_WINDOW), ("sliding_window", 3, 1_500_000, 1464)),
        (RateLimit("k", 3, 1.5, RateLimitAlgorithm.FIXED_WINDOW), ("fixed_window", 3, 1_500_000)),
        (RateLimit("k", 3, 1.5, RateLimitAlgorithm.GCRA), ("token_bucket", 1_500_000, 1, 1, 1_500_000)),
        (ResourceLimit("k", 3), ("permits", 3, LEASE_US, 0)),
        (ResourceLimit("k", 3, max_hold_seconds=40), ("permits", 3, LEASE_US, 40_000_000)),
        (QuotaLimit.per_day("k", 3), ("quota", 3, 0)),
        (QuotaLimit.per_session("k", 3, 1.5), ("quota", 3, 1_500_000)),
        (Blocked(), ("blocked",)),
    ],
    ids=repr,
)
def test_the_lua_implementation_gets_a_name_and_parameters(
    limit: LimitDefinition, parameters: tuple[object, ...]
) -> None:
    lua = compile_rule(limit, LEASE_US).lua
    assert lua == parameters


@pytest.mark.parametrize("limit", LIMITS[:-1], ids=repr)
def test_the_lua_implementation_gets_the_capacity_first_and_integers_only(limit: LimitDefinition) -> None:
    rule = compile_rule(limit, LEASE_US)
    assert rule.lua[1] == rule.ceiling_parts
    assert all(type(number) is int for number in rule.lua[1:])


@pytest.mark.parametrize("limit", [*RATES, QuotaLimit.per_day("k", 3), QuotaLimit.per_session("k", 3, 1.5)], ids=repr)
@pytest.mark.parametrize("later_us", [1, SECOND])
def test_only_a_fixed_end_is_not_moved_by_further_use(limit: LimitDefinition, later_us: int) -> None:
    rule = compile_rule(limit, LEASE_US)
    before = rule.settle(rule.start, NOW, rule.parts_per_unit)
    after = rule.settle(before, NOW + later_us, rule.parts_per_unit)
    assert rule.has_fixed_end is (rule.restored_at(before) == rule.restored_at(after))


@pytest.mark.parametrize("limit", RATES, ids=repr)
def test_the_use_of_a_rate_returns_from_its_charge_on(limit: LimitDefinition) -> None:
    rule = compile_rule(limit, LEASE_US)
    state = rule.take(rule.start, NOW, rule.parts_per_unit)
    assert state is not None
    assert rule.recovers_since(state) == NOW


def test_the_use_of_a_bucket_returns_from_its_tick_on() -> None:
    rule = compile_rule(RateLimit("k", 10**12, 7), LEASE_US)
    state = rule.take(rule.start, NOW, rule.parts_per_unit)
    assert state is not None
    assert rule.recovers_since(state) == NOW + -NOW % 7 > NOW


@pytest.mark.parametrize("limit", LIMITS, ids=repr)
def test_no_function_changes_its_arguments(limit: LimitDefinition) -> None:
    rule = compile_rule(limit, LEASE_US)
    before = rule.take(rule.start, NOW, 1) or rule.start
    copied = [value.pack() if isinstance(value, Log) else value for value in before]
    rule.take(before, NOW + 500_000, rule.parts_per_unit)
    rule.settle(before, NOW + 700_000, rule.parts_per_unit)
    rule.carry(rule, before, NOW + 900_000)
    rule.wait(before, NOW + 900_000, rule.parts_per_unit)
    assert [value.pack() if isinstance(value, Log) else value for value in before] == copied
    assert type(before) is tuple


HOUR = 3600 * SECOND


def test_a_state_counts_permits_and_holders_apart() -> None:
    tested = Driven(ResourceLimit("db", 10))
    tested.take(NOW, 3)
    tested.take(NOW, 4)
    assert tested.state[:2] == (7, 2)
    tested.settle(NOW, -3)
    assert tested.state[:2] == (4, 1)


def test_releasing_keeps_the_number() -> None:
    tested = Driven(ResourceLimit("db", 1))
    tested.take(NOW, 1)
    fence = tested.state[2]
    tested.settle(NOW, -1)
    tested.take(NOW - SECOND, 1)
    assert tested.state[2] == fence + 1


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, LEASE_US), (3600, LEASE_US), (LEASE_US / SECOND, LEASE_US), (2.5, 2_500_000), (0.001, 1000)],
)
def test_a_lease_is_never_longer_than_a_permit_may_be_held(seconds: float | None, expected: int) -> None:
    rule = compile_rule(ResourceLimit("db", 1, seconds), LEASE_US)
    assert rule.lease_us == expected
    assert rule.hold_us == (NEVER_US if seconds is None else round(seconds * SECOND))
    assert rule.take(rule.start, NOW, 1) == (1, 1, NOW, NOW + expected)


def test_the_wait_is_until_the_first_lease_may_run_out() -> None:
    tested = Driven(ResourceLimit("db", 2))
    assert tested.wait(NOW, 2) == 0
    tested.take(NOW, 1)
    assert tested.wait(NOW, 1) == 0
    tested.take(NOW + SECOND, 1)
    assert tested.wait(NOW + SECOND, 1) == LEASE_US - SECOND
    assert tested.wait(NOW + LEASE_US - 1, 1) == 1
    assert tested.wait(NOW + LEASE_US, 1) == 1, "a wait of nothing would be a hot loop"
    assert tested.wait(NOW + HOUR, 1) == 1
    assert tested.rule.restored_at(tested.state) == NOW + LEASE_US


def test_the_wait_counts_permits_and_not_holders() -> None:
    tested = Driven(ResourceLimit("db", 2))
    tested.take(NOW, 2)
    assert tested.wait(NOW, 1) == LEASE_US


def test_an_earlier_lease_is_remembered_when_the_clock_goes_back() -> None:
    tested = Driven(ResourceLimit("db", 3))
    tested.take(NOW, 1)
    tested.take(NOW - SECOND, 1)
    assert tested.state[3] == NOW - SECOND + LEASE_US
    tested.take(NOW + SECOND, 1)
    assert tested.state[3] == NOW - SECOND + LEASE_US


def test_the_first_lease_counts_again_when_nothing_is_held_any_more() -> None:
    tested = Driven(ResourceLimit("db", 3))
    tested.take(NOW, 1)
    tested.settle(NOW, -1)
    assert tested.rule.restored_at(tested.state) == 0
    tested.take(NOW + HOUR, 1)
    assert tested.state[3] == NOW + HOUR + LEASE_US


def test_permits_survive_a_change_of_their_limit_and_nothing_else_does() -> None:
    tested = Driven(ResourceLimit("db", 3))
    tested.take(NOW, 2)
    assert tested.carried_into(ResourceLimit("db", 1), NOW).state == tested.state
    assert not tested.carried_into(ResourceLimit("db", 2), NOW).fits(NOW, 1)
    assert tested.carried_into(ResourceLimit("db", 3), NOW).fits(NOW, 1)
    rate = Driven(RateLimit("db", 3, 60))
    rate.take(NOW, 2)
    assert rate.carried_into(ResourceLimit("db", 3), NOW).state == (0, 0, 0, 0)


@pytest.mark.parametrize("amount", [0, 1, 10**12])
def test_blocked_admits_nothing_ever(amount: int) -> None:
    tested = Driven(Blocked())
    assert tested.rule.key == "blocked"
    assert tested.rule.ceiling_parts == tested.rule.parts_per_unit == 1, "so that one is refused, but not never"
    assert not tested.take(NOW, amount)
    assert tested.wait(NOW, amount) >= 2**53
    tested.settle(NOW, amount)
    tested.settle(NOW, -amount)
    assert tested.used(NOW) == 0
    assert tested.state == ()
    assert tested.rule.restored_at(tested.state) == 0
    assert not tested.take(NOW + 366 * 24 * HOUR, amount)

"""What a store may rely on, whatever the limit."""

from __future__ import annotations

import pytest

from limits_app.core.algorithms import compile_rule
from limits_app.core.algorithms.window_log import Log
from limits_app.core.limits import (
    Blocked,
    CallLimit,
    Limit,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from tests.core.algorithms.driven import LEASE_US, NOW

LIMITS: list[Limit] = [
    *[RateLimit("k", 3, 1.5, algorithm) for algorithm in RateLimitAlgorithm],
    CallLimit(3, 1.5),
    ResourceLimit("k", 3),
    QuotaLimit.per_day("k", 3),
    QuotaLimit.per_session("k", 3, 1.5),
    Blocked(),
]


@pytest.mark.parametrize("limit", LIMITS, ids=repr)
def test_a_state_of_zeros_means_unused(limit: Limit) -> None:
    rule = compile_rule(limit, LEASE_US)
    numbers = [len(value) if isinstance(value, Log) else value for value in rule.start]
    assert not any(numbers)
    assert rule.has_log is any(isinstance(value, Log) for value in rule.start)
    assert rule.used(rule.start, NOW) == 0
    assert rule.restored_at(rule.start) == 0


@pytest.mark.parametrize("limit", LIMITS[:-1], ids=repr)
def test_the_ceiling_is_what_can_be_admitted_at_once(limit: Limit) -> None:
    rule = compile_rule(limit, LEASE_US)
    assert rule.ceiling_parts == 3 * rule.parts_per_unit
    assert rule.take(rule.start, NOW, rule.ceiling_parts) is not None
    assert rule.take(rule.start, NOW, rule.ceiling_parts + 1) is None


@pytest.mark.parametrize("limit", LIMITS, ids=repr)
def test_a_rule_knows_its_limit(limit: Limit) -> None:
    rule = compile_rule(limit, LEASE_US)
    assert rule.limit is limit
    assert rule.key == limit.key
    assert rule.is_permit is isinstance(limit, ResourceLimit)


@pytest.mark.parametrize(
    ("limit", "parameters"),
    [
        (RateLimit("k", 3, 7, RateLimitAlgorithm.TOKEN_BUCKET), ("token_bucket", 3, 1, 21_000_000)),
        (RateLimit("k", 3, 1.5, RateLimitAlgorithm.LEAKY_BUCKET), ("leaky_bucket", 1, 1, 1_500_000)),
        (RateLimit("k", 3, 1.5, RateLimitAlgorithm.SLIDING_WINDOW), ("sliding_window", 3, 1_500_000, 1464)),
        (RateLimit("k", 3, 1.5, RateLimitAlgorithm.FIXED_WINDOW), ("fixed_window", 3, 1_500_000)),
        (RateLimit("k", 3, 1.5, RateLimitAlgorithm.GCRA), ("gcra", 1, 1, 1_500_000)),
        (ResourceLimit("k", 3), ("permits", 3, LEASE_US, 0)),
        (ResourceLimit("k", 3, max_hold_seconds=40), ("permits", 3, LEASE_US, 40_000_000)),
        (QuotaLimit.per_day("k", 3), ("quota", 3, 0)),
        (QuotaLimit.per_session("k", 3, 1.5), ("quota", 3, 1_500_000)),
        (Blocked(), ("blocked",)),
    ],
    ids=repr,
)
def test_code_in_another_language_is_told_its_name_and_whole_numbers(limit: Limit, parameters: tuple[object, ...]) -> None:
    told = compile_rule(limit, LEASE_US).lua
    assert told == parameters
    assert all(type(number) is int for number in told[1:])


@pytest.mark.parametrize("limit", LIMITS, ids=repr)
def test_no_function_changes_its_arguments(limit: Limit) -> None:
    rule = compile_rule(limit, LEASE_US)
    before = rule.take(rule.start, NOW, 1) or rule.start
    copied = [value.pack() if isinstance(value, Log) else value for value in before]
    rule.take(before, NOW + 500_000, rule.parts_per_unit)
    rule.settle(before, NOW + 700_000, rule.parts_per_unit)
    rule.carry(rule, before, NOW + 900_000)
    rule.wait(before, NOW + 900_000, rule.parts_per_unit)
    assert [value.pack() if isinstance(value, Log) else value for value in before] == copied
    assert type(before) is tuple

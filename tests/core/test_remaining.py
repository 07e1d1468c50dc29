"""What is left of a limit, written out, is what its rule says."""

from __future__ import annotations

from math import ceil

import pytest
from limits_app.core.remaining import remaining_of

from limits_app.core.algorithms import Rule, State, compile_rule
from limits_app.core.limits import CallLimit, Limit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.quota import QuotaLimit

SECOND_US = 1_000_000
LEASE_US = 10 * SECOND_US
START_US = 1_700_000_000 * SECOND_US

RATES: list[Limit] = [
    *[CallLimit(10, 60, algorithm) for algorithm in RateLimitAlgorithm],
    *[RateLimit("tokens", 7, 0.3, algorithm) for algorithm in RateLimitAlgorithm],
    QuotaLimit("tokens", 10, "day"),
]


def states(rule: Rule) -> list[tuple[State, int]]:
    """Unused, in use, used up, over it as by debt, and some time later."""
    part = rule.parts_per_unit
    now, used = START_US, rule.take(rule.start, START_US, part)
    assert used is not None
    full = rule.take(rule.start, now, rule.ceiling_parts)
    assert full is not None
    owed = rule.settle(full, now, 3 * part)
    later = [(state, now + more) for state in (used, full) for more in (1, 250_000, SECOND_US, 61 * SECOND_US)]
    return [(rule.start, now), (used, now), (full, now), (owed, now), *later]


@pytest.mark.parametrize("limit", RATES, ids=repr)
def test_it_is_what_the_rule_says(limit: Limit) -> None:
    rule = compile_rule(limit, LEASE_US)
    for state, now in states(rule):
        free = max(rule.ceiling_parts - rule.used(state, now), 0)
        seconds = max(ceil((rule.restored_at(state) - now) / SECOND_US), 0)
        assert remaining_of(rule)(state, now) == (free // rule.parts_per_unit, seconds)


def test_of_permits_nobody_knows_when_they_come_back() -> None:
    rule = compile_rule(ResourceLimit("slots", 3), LEASE_US)
    taken = rule.take(rule.start, START_US, 2)
    assert taken is not None
    assert remaining_of(rule)(rule.start, START_US) == (3, None)
    assert remaining_of(rule)(taken, START_US) == (1, None)

"""Soft limits as rules: they charge what a hard limit would reject, and measure as it does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from limits_app.core.limits import QuotaLimit, RateLimit, RateLimitAlgorithm
from tests.core.algorithms.driven import NOW, SECOND, Driven

LIMITS = [
    *[RateLimit("k", 10, 10, algorithm, soft=True) for algorithm in RateLimitAlgorithm],
    QuotaLimit.per_session("k", 10, 10, soft=True),
]
every_limit = pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: str(getattr(limit, "algorithm", "quota")))


def hardened(limit: RateLimit | QuotaLimit) -> Driven:
    """The same limit, which refuses."""
    return Driven(replace(limit, soft=False))


@every_limit
def test_what_does_not_fit_becomes_debt(limit: RateLimit | QuotaLimit) -> None:
    soft, hard = Driven(limit), hardened(limit)
    assert soft.take(NOW, 8)
    assert soft.take(NOW, 25)
    hard.settle(NOW, 33)
    assert soft.used(NOW) == 33
    assert soft.take(NOW, 0), "also in debt"
    assert [soft.used(NOW + second * SECOND) for second in range(40)] == [
        hard.used(NOW + second * SECOND) for second in range(40)
    ]

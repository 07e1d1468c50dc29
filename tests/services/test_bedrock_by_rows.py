"""Three regions of two accounts each, as administrators set them: all of it is used, and none of it twice."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

from limits_app import limits
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm
from limits_app.testing import FakeClock
from tests.services.pool_rows import make_pool, serve

QUOTA = {"call_count": 500, "input": 400_000, "output": 100_000}
"""Of each account in each region, per minute."""
MEMBERS = [f"{region}/{account}" for region in ("us-east-1", "us-west-2", "eu-west-1") for account in (1, 2)]
SIZES = [(input_, output) for input_ in (760, 800, 840) for output in (190, 200, 210)]
"""Of requests, whose mean uses all three limits of a member up together."""
MINUTES = 10
STEP_SECONDS = 1
ATTEMPTS = 60
"""In each step, which is more than there is room for: 3,000 fit into a minute."""

Use = tuple[int, int, int]


@pytest.mark.slow
@pytest.mark.parametrize("balancing", ["round_robin", "least_loaded"])
def test_all_quotas_are_used_up_and_none_is_exceeded(clock: FakeClock, balancing: str) -> None:
    sizes = random.Random(6)
    window = RateLimitAlgorithm.SLIDING_WINDOW
    quota = [CallLimit(QUOTA["call_count"], 60, window)]
    quotas = [*quota, *[RateLimit(key, QUOTA[key], 60, window) for key in ("input", "output")]]
    serve("claude", make_pool(dict.fromkeys(MEMBERS, quotas), load_balancing=balancing))
    served: dict[str, list[Use]] = defaultdict(list)
    refused = 0
    for second in range(0, MINUTES * 60, STEP_SECONDS):
        for _ in range(ATTEMPTS):
            input_, output = sizes.choice(SIZES)
            requested = {"input": input_, "output": output}
            with limits.try_acquire("claude", entity=f"user:{second % 50}", requested=requested) as acquisition:
                if not acquisition:
                    refused += 1
                    assert not any(one.peek(requested).allowed for one in limits.pool("bedrock/claude"))
                    break
                acquisition.update(requested)
                served[str(acquisition.config["member"])].append((second, input_, output))
        clock.advance(STEP_SECONDS)
    assert refused
    assert sorted(served) == sorted(MEMBERS)
    for uses in served.values():
        used = Counter({"call_count": len(uses), "input": sum(u[1] for u in uses), "output": sum(u[2] for u in uses)})
        assert max(used[key] / (MINUTES * most) for key, most in QUOTA.items()) >= 0.99
        assert all(most_in_a_minute(uses)[key] <= most for key, most in QUOTA.items())


def most_in_a_minute(uses: list[Use]) -> dict[str, int]:
    """The most that was used within any minute, by limit."""
    most, window, oldest = dict.fromkeys(QUOTA, 0), [0, 0, 0], 0
    for second, input_, output in uses:
        window = [window[0] + 1, window[1] + input_, window[2] + output]
        while uses[oldest][0] <= second - 60:
            window = [window[0] - 1, window[1] - uses[oldest][1], window[2] - uses[oldest][2]]
            oldest += 1
        most = {key: max(before, now) for (key, before), now in zip(most.items(), window, strict=True)}
    return most

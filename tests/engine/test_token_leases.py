"""Leases of tokens: how long they may be, and of whom."""

from __future__ import annotations

import pytest

from limits_app.engine import LEASE_LEVEL, lease_limits
from limits_app.engine.errors import InvalidRequest

SECOND = 1_000_000


@pytest.mark.parametrize("seconds", [1, 1.000001, 60, 3599.999999, 3600])
def test_lease_of_a_second_to_an_hour(seconds: float) -> None:
    lease = lease_limits("api", "user:1", round(seconds * SECOND))
    assert (lease.scope.resource, lease.scope.entity, lease.level) == ("api", "user:1", LEASE_LEVEL)
    assert lease.scope.key != lease_limits("api", "user:1", round(seconds * SECOND)).scope.key


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0"), (-1, "-1"), (0.999999, "0.999999"), (3600.000001, "3600")])
def test_other_leases_are_invalid(seconds: float, shown: str) -> None:
    with pytest.raises(InvalidRequest, match=f"lease must be 1 to 3600 seconds, not {shown}$"):
        lease_limits("api", "user:1", round(seconds * SECOND))

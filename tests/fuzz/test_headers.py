"""Headers that come from an upstream are believed within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limits_app.outbound.hints import hints_of
from limits_app.outbound.messages import Response
from tests.fuzz.making import MANY, nearly

pytestmark = pytest.mark.release

NOW = 1_775_000_000.0
A_YEAR = 366 * 86_400
FIELDS = st.sampled_from(
    [
        *("Retry-After", "RateLimit", "RateLimit-Policy"),
        *(f"{prefix}RateLimit-{name}" for prefix in ("", "X-") for name in ("Limit", "Remaining", "Reset")),
    ]
)
VALUES = nearly(
    '"rpm";q=100;w=60',
    '"rpm";r=50;t=30',
    "limit=10, remaining=1, reset=5",
    "100, 100;w=60",
    "Wed, 21 Oct 2099 07:28:00 GMT",
    "Thu, 01 Jan 0001 00:00:00 +2359",
    "120",
    "99999999999999",
    "1775000060",
)


@MANY
@given(st.lists(st.tuples(FIELDS, VALUES), max_size=6), st.sampled_from([200, 429, 503]))
def test_an_upstream_tells_something_that_can_be_or_nothing(headers: list[tuple[str, str]], status: int) -> None:
    hints = hints_of(Response(status=status, headers=headers), unix_seconds=NOW)
    assert hints.retry_after is None or 0 <= hints.retry_after <= A_YEAR
    assert len(hints.quotas) <= 8
    for quota in hints.quotas:
        assert quota.capacity > 0
        assert 0 < quota.window_seconds <= A_YEAR
        assert quota.remaining is None or quota.remaining >= 0
        assert len(quota.name) <= 64

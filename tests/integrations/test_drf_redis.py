"""Throttles over a real Redis."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from limits_app.core.limits import CallLimit
from limits_app.integrations.drf import rates
from tests.integrations.rest import ask, of, view_of
from tests.integrations.site import limit

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("default_entities", "on_redis")]

THREADS, REQUESTS, CAPACITY = 20, 2_000, 100


@pytest.mark.parametrize("several", [False, True], ids=["one_throttle", "two_throttles"])
def test_a_hundred_are_a_hundred(several: bool) -> None:
    hourly = of(rates, "UserRateThrottle", scope="hourly", rate=f"{CAPACITY}/hour")
    daily = of(rates, "UserRateThrottle", scope="daily", rate="1000/day")
    limit("unrelated", CallLimit(1, 60))
    view = view_of(hourly, *([daily] if several else []))

    def one(_: int) -> int:
        try:
            status: int = ask(view, 1).status_code
            return status
        finally:
            connection.close()

    with ThreadPoolExecutor(THREADS) as pool:
        seen = Counter(pool.map(one, range(REQUESTS)))
    assert seen == {200: CAPACITY, 429: REQUESTS - CAPACITY}

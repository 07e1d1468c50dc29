"""Throttles over a real Redis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection
from pytest_django import Settings

from limits_app import conf
from limits_app.core.limits import CallLimit
from limits_app.integrations.drf import rates
from limits_app.stores import registry
from limits_app.stores.redis import RedisStore
from tests.integrations.rest import ask, of, view_of
from tests.integrations.site import limit
from tests.servers.redis import redis_server
from tests.stores.redis.support import PATIENT

pytestmark = pytest.mark.django_db(transaction=True)

THREADS, REQUESTS, CAPACITY = 20, 2_000, 100


@pytest.fixture(autouse=True)
def on_redis(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limits in a Redis of its own."""
    settings.LIMITS = settings.LIMITS | {"ENTITY_OF_REQUEST": "limits_app.integrations.identity.entity_of_request"}
    with redis_server() as server:
        store = RedisStore(url=server.url, **PATIENT)
        monkeypatch.setitem(registry._OPENED, ("default", conf.store_settings()), store)
        yield
        store.close()


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

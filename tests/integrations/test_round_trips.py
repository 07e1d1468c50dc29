"""How often a site whose limits are in Redis asks it, from the server's own statistics."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient, Client
from redis import Redis

from limits_app import limits
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.models import Endpoint
from tests.integrations.site import Ask, afine, endpoint, fine, limit
from tests.servers.redis import RedisServer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("on_redis")]

Trips = Callable[[], int]
PLENTY = CallLimit(10**6, 60)
TEN = CallLimit(10, 3600, RateLimitAlgorithm.FIXED_WINDOW)
THREE = (PLENTY, RateLimit("tokens", 10**6, 60), ResourceLimit("connections", 10))


@pytest.fixture
def trips(server_of_limits: RedisServer) -> Iterator[Trips]:
    """How often the server has heard from anybody else since it was asked last."""
    with Redis(port=server_of_limits.port) as client:

        def counted() -> int:
            gc.collect()  # links that others have left are closed now, since the end of one is read, too
            heard = int(client.info("stats")["total_reads_processed"])
            since, before[0] = heard - before[0] - 1, heard
            return since

        before = [0]
        counted()
        yield counted


@pytest.fixture
def site(serve: Any) -> None:
    serve({"": fine, "async/": afine})


def test_totals_of_the_entity_and_the_system_are_charged_in_the_round_trip_of_the_resource(trips: Trips) -> None:
    limit("api", PLENTY)
    limits.set_entity_limits("ann", [PLENTY], counted="total")
    limits.set_system_limits([PLENTY], counted="total")
    assert limits.try_acquire("api", entity="ann")
    trips()
    levels = [[one.level for one in limits.acquire("api", entity="ann").outcome.passed] for _ in range(10)]
    assert trips() == 10
    assert levels == [["resource", "entity_total", "system_total"]] * 10


@pytest.mark.usefixtures("site")
def test_a_request_that_an_endpoint_is_about_is_one_round_trip(client: Client, trips: Trips) -> None:
    endpoint(limit("api", PLENTY))
    client.get("/")
    trips()
    assert {client.get("/").status_code for _ in range(10)} == {200}
    assert trips() == 10


@pytest.mark.usefixtures("site")
def test_an_asynchronous_request_is_one_round_trip(async_client: AsyncClient, trips: Trips) -> None:
    endpoint(limit("api", PLENTY), "/async/")

    async def ask(times: int) -> set[int]:
        return {(await async_client.get("/async/")).status_code for _ in range(times)}

    async def once_and_again() -> int:
        await ask(2)  # the first of them prepares the script, the second connects
        trips()
        assert await ask(10) == {200}
        return trips()

    assert async_to_sync(once_and_again)() == 10


@pytest.mark.usefixtures("site")
def test_a_request_that_holds_a_permit_is_two(client: Client, trips: Trips) -> None:
    endpoint(limit("api", *THREE))
    client.get("/")
    trips()
    assert {client.get("/").status_code for _ in range(10)} == {200}
    assert trips() == 20


@pytest.mark.usefixtures("site")
def test_a_changed_rule_charges_no_client(ask: Ask) -> None:
    row = endpoint(limit("api", TEN))
    other = limit("other", TEN)
    ask()
    Endpoint.objects.filter(pk=row.pk).update(resource=other)
    ask()
    used = {name: limits.status(name, entity="ann").limits["call_count"]["used"] for name in ("api", "other")}
    assert used == {"api": 1, "other": 1}


@pytest.mark.usefixtures("site")
def test_an_endpoint_that_was_changed_while_another_is_served_counts(ask: Ask) -> None:
    first, second = limit("first", TEN), limit("second", TEN)
    row = endpoint(first)
    ask()
    Endpoint.objects.filter(pk=row.pk).update(resource=second)
    # The limits are those of now, and the endpoints are not yet.
    limits.check("first", entity="ann")
    ask()
    assert limits.status("first", entity="ann").limits["call_count"]["used"] == 1

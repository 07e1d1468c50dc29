"""Requests while the store of their limits is down, and about resources in another store than the default one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.http import HttpRequest, HttpResponse
from pytest_django import Settings

from limits_app import services
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import CallLimit
from limits_app.integrations.decorators import limited
from limits_app.integrations.request import limits_of
from limits_app.models import Resource
from limits_app.services.url_matching import endpoints
from tests.integrations.rest import throttle, view_of
from tests.integrations.site import Ask, endpoint, fine, limit

pytestmark = pytest.mark.django_db(transaction=True)


def tell(request: HttpRequest) -> HttpResponse:
    """Say whether anything was decided without the store."""
    return HttpResponse("degraded" if limits_of(request).degraded else "decided")


def by_policy(policy: str) -> Resource:
    """Set a limit, and what happens while the store is down."""
    services.set_resource_limits("api", [CallLimit(1, 60)], on_unavailable=policy)
    return Resource.objects.get(name="api")


def test_block_is_503_with_the_time_of_the_next_probe(serve: Any, ask: Ask, take_down: Any, settings: Settings) -> None:
    serve({"": fine})
    endpoint(by_policy("block"))
    take_down()
    for _ in range(5):
        response = ask()
        assert (response.status_code, response["Retry-After"]) == (503, "1")
        assert response["Cache-Control"] == "no-store"


def test_a_slower_probe_is_waited_for(serve: Any, ask: Ask, take_down: Any, settings: Settings) -> None:
    serve({"": limited("api")(fine)})
    by_policy("block")
    settings.LIMITS = settings.LIMITS | {"BREAKER_PROBE_SECONDS": 6.5}
    take_down()
    assert ask()["Retry-After"] == "7"


@pytest.mark.parametrize("policy", ["allow", "local"])
def test_a_request_allowed_without_a_store_is_marked_as_uncounted(
    serve: Any, ask: Ask, take_down: Any, policy: str
) -> None:
    serve({"": tell})
    endpoint(by_policy(policy))
    assert ask(who="bob").content == b"decided"
    take_down()
    assert ask().content == b"degraded"


def test_a_share_that_is_used_up_is_a_refusal_as_ever(serve: Any, ask: Ask, take_down: Any) -> None:
    serve({"": limited("api")(tell)})
    by_policy("local")
    take_down()
    assert [ask().status_code for _ in range(3)] == [200, 429, 429]


def test_last_known_endpoints_during_an_outage(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    endpoint(limit("api"), "/")
    settings.LIMITS = settings.LIMITS | {"RESOLVER_TTL_SECONDS": 1e-9}
    with connection.execute_wrapper(_closed), pytest.raises(StoreUnavailable, match="server closed"):
        endpoints.current()
    known = endpoints.current()
    with connection.execute_wrapper(_closed):
        assert endpoints.current() is known
        assert endpoints.current() is known
    assert caplog.text.count("cannot be read from the database 'default': server closed") == 1


@pytest.mark.parametrize(("unresolved", "status"), [("block", 503), ("allow", 200)])
def test_without_known_endpoints(serve: Any, ask: Ask, settings: Settings, unresolved: str, status: int) -> None:
    serve({"": fine})
    endpoint(limit("api"), "/")
    settings.LIMITS = settings.LIMITS | {"ON_UNRESOLVED": unresolved}
    endpoints.clear()
    with connection.execute_wrapper(_closed):
        assert ask().status_code == status


def _closed(*args: object) -> object:
    raise OperationalError("server closed the connection")


@pytest.fixture
def far(settings: Settings, tmp_path: Path) -> Resource:
    """A resource that the process store counts, beside one in memory."""
    shared = {"KIND": "process", "STATE_DIR": str(tmp_path), "MAP_MEGABYTES": 4}
    settings.LIMITS = {**settings.LIMITS, "STORES": settings.LIMITS["STORES"] | {"shared": shared}}
    far = limit("far", CallLimit(2, 60))
    far.store = "shared"
    far.save()
    limit("near", CallLimit(2, 60))
    return far


def codes(ask: Ask, times: int = 3, **who: str) -> list[int]:
    return [ask(**who).status_code for _ in range(times)]


def test_endpoints_and_their_changes_apply_on_each_store(serve: Any, ask: Ask, far: Resource) -> None:
    serve({"": fine})
    rule = endpoint(far)
    assert codes(ask) == [200, 200, 429]
    services.set_resource_limits("far", [CallLimit(4, 60)])
    assert codes(ask) == [200, 200, 429]
    rule.resource = Resource.objects.get(name="near")
    rule.save()
    assert codes(ask) == [200, 200, 429]


@pytest.mark.usefixtures("far")
def test_decorators_and_throttles_charge_each_store(serve: Any, ask: Ask) -> None:
    serve({"": limited("far")(fine), "rest/": view_of(throttle("far"))})
    assert codes(ask) == [200, 200, 429]
    assert [ask("/rest/", who="bob").status_code for _ in range(3)] == [200, 200, 429]


@pytest.mark.usefixtures("far")
def test_a_rejection_by_one_store_refunds_the_other(serve: Any, ask: Ask) -> None:
    serve({"": limited("near")(limited("far")(fine))})
    assert codes(ask) == [200, 200, 429]
    assert [one["used"] < 2.5 for one in services.status("near", entity="ann").limits.values()] == [True]


def test_an_outage_affects_one_store(serve: Any, ask: Ask, far: Resource, take_down: Any) -> None:
    serve({"": tell, "near/": limited("near")(fine)})
    endpoint(far)
    take_down()
    answers = [ask(who="bob") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.content for answer in answers[:2]] == [b"decided", b"decided"]
    assert ask("/near/").status_code == 503


@pytest.mark.usefixtures("far")
def test_throttles_of_one_view_may_be_counted_in_several_stores(serve: Any, ask: Ask) -> None:
    serve({"": view_of(throttle("near"), throttle("far")), "far/": view_of(throttle("far"))})
    assert codes(ask) == [200, 200, 429]
    services.set_resource_limits("near", [CallLimit(9, 60)])
    assert codes(ask) == [429] * 3
    assert ask("/far/").status_code == 429

"""Requests while the store of their limits is down."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError, connection
from django.http import HttpRequest, HttpResponse
from pytest_django import Settings

from limits_app import services
from limits_app.core.errors import StoreUnavailable
from limits_app.core.limits import CallLimit
from limits_app.integrations.decorators import limited
from limits_app.integrations.endpoints import endpoints
from limits_app.integrations.request import limits_of
from limits_app.models import Resource
from limits_app.stores.registry import resilient_store
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


def test_a_slower_probe_is_waited_for(serve: Any, ask: Ask, take_down: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    serve({"": limited("api")(fine)})
    by_policy("block")
    monkeypatch.setattr(resilient_store(), "probe_seconds", 6.5)
    take_down()
    assert ask()["Retry-After"] == "7"


@pytest.mark.parametrize("policy", ["allow", "local"])
def test_whoever_is_let_through_can_see_that_nobody_counted(serve: Any, ask: Ask, take_down: Any, policy: str) -> None:
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
    assert caplog.text.count("the last known endpoints are used") == 1


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

"""Priorities of web requests and tasks: of URL rules, decorators, throttles and tasks, and never of the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client

from limits_app import services
from limits_app.engine.errors import InvalidRequest
from limits_app.engine.limits import CallLimit
from limits_app.integrations.celery.demand import Demand
from limits_app.integrations.decorators import limited
from limits_app.integrations.drf.throttle import LimitThrottle
from limits_app.models import Resource
from tests.integrations.rest import ask as ask_view
from tests.integrations.rest import view_of
from tests.integrations.site import Ask, endpoint, fine, limit

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("default_entities")]

CALLS = CallLimit(10, 3600, keep={"low": 60, "normal": 20})


def how_many(send: Callable[[], Any]) -> int:
    """How many requests are answered until one is rejected."""
    count = 0
    while send().status_code == 200:
        count += 1
    return count


def test_requests_of_a_url_rule_have_its_priority(serve: Any) -> None:
    serve({"batch/": fine, "usual/": fine, "urgent/": fine})
    api = limit("api", CALLS)
    endpoint(api, "/batch/", request_priority="low")
    endpoint(api, "/usual/")
    endpoint(api, "/urgent/", request_priority="high")
    client = Client()
    allowed = [how_many(lambda path=path: client.get(path)) for path in ("/batch/", "/usual/", "/urgent/")]  # type: ignore[misc]
    assert allowed == [4, 4, 2]


def test_two_rules_of_one_resource_charge_in_the_lower_priority(serve: Any) -> None:
    serve({"x/": fine})
    api = limit("api", CALLS)
    endpoint(api, "/x/", request_priority="high")
    endpoint(api, "/*", request_priority="low", name="all")
    assert how_many(lambda: Client().get("/x/")) == 4


def test_each_resource_of_a_request_has_the_priority_of_its_rule(serve: Any) -> None:
    serve({"x/": fine})
    endpoint(limit("a", CALLS), "/x/", request_priority="high", name="a")
    endpoint(limit("b", CallLimit(100, 3600, keep={"low": 92})), "/x/", request_priority="low", name="b")
    assert how_many(lambda: Client().get("/x/")) == 8


def test_client_cannot_choose_a_priority(serve: Any) -> None:
    serve({"x/": fine})
    endpoint(limit("api", CALLS), "/x/", request_priority="low")
    headers = {"X-Priority": "high", "Priority": "u=0", "X-Limits-Priority": "high", "X-Request-Priority": "high"}
    client = Client(headers=headers)
    assert how_many(lambda: client.get("/x/?priority=high&request_priority=high")) == 4
    assert how_many(lambda: client.post("/x/", {"priority": "high"})) == 0


def test_headers_report_the_remaining_amount_of_the_priority(serve: Any) -> None:
    serve({"x/": fine})
    endpoint(limit("api", CALLS), "/x/", request_priority="low")
    client = Client()
    remaining = [client.get("/x/")["RateLimit"] for _ in range(4)]
    assert [header.partition("r=")[2].partition(";")[0] for header in remaining] == ["3", "2", "1", "0"]
    rejected = client.get("/x/")
    assert rejected.status_code == 429
    assert int(rejected["Retry-After"]) == 360  # the time in which one of ten refills


def test_block_of_a_rule_does_not_begin_below_a_kept_share(serve: Any) -> None:
    serve({"batch/": fine, "urgent/": fine})
    api = limit("api", CALLS)
    endpoint(api, "/batch/", request_priority="low", block_for="10m")
    endpoint(api, "/urgent/", request_priority="high", block_for="10m")
    client = Client()
    assert how_many(lambda: client.get("/batch/")) == 4
    assert how_many(lambda: client.get("/urgent/")) == 6
    services.reset("api", entity="ip:127.0.0.1")


@pytest.mark.parametrize("priority", [None, "low", "high"])
def test_decorated_views_and_functions_have_the_priority_that_they_name(
    priority: str | None, ask: Ask, serve: Any
) -> None:
    most = {None: 8, "low": 4, "high": 10}[priority]
    services.set_resource_limits("reports", [CALLS])

    @limited("reports", priority=priority)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("fine")

    @limited("reports", entity="job:1", priority=priority)
    def job() -> HttpResponse:
        return HttpResponse("fine")

    serve({"x/": view})
    assert how_many(lambda: ask("/x/")) == most
    outcomes = [job() for _ in range(most)]
    assert len(outcomes) == most
    assert not services.try_acquire("reports", entity="job:1", priority=priority)


def test_unknown_priority_of_code_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match="priority must be one of"):
        limited("reports", priority="urgent")
    with pytest.raises(InvalidRequest, match="priority must be one of"):
        Demand("reports", priority="urgent")


def test_throttles_have_the_priority_of_their_class_or_method() -> None:
    services.set_resource_limits("uploads", [CALLS])

    class Low(LimitThrottle):
        resource, priority = "uploads", "low"

    class ByPerson(LimitThrottle):
        resource = "uploads"

        def get_priority(self, request: Any, view: Any) -> str | None:
            return "high" if request.user.pk == 2 else None

    assert [ask_view(view_of(Low), 1).status_code for _ in range(5)] == [200] * 4 + [429]
    views = view_of(ByPerson)
    assert [ask_view(views, 3).status_code for _ in range(9)] == [200] * 8 + [429]
    assert [ask_view(views, 2).status_code for _ in range(11)] == [200] * 10 + [429]


def test_demand_of_a_task_has_a_priority_or_computes_it() -> None:
    def run(tenant: str) -> None: ...

    assert Demand("llm", priority="low").of_call(run, ("acme",), {}).priority == "low"
    by_tenant = Demand("llm", priority=lambda tenant: "high" if tenant == "acme" else None)
    assert [by_tenant.of_call(run, (tenant,), {}).priority for tenant in ("acme", "other")] == ["high", None]


def test_removed_priority_of_a_rule_counts_as_none(serve: Any) -> None:
    serve({"x/": fine})
    api = limit("api", CALLS)
    Resource.objects.filter(name="api").update(request_priority="gone")
    endpoint(api, "/x/", request_priority="gone")
    assert how_many(lambda: Client().get("/x/")) == 8

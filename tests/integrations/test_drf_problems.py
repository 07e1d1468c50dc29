"""Refusals of throttles as problem details, and what no cache keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pytest_django import Settings
from rest_framework.exceptions import NotFound, Throttled
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from limits_app import services
from limits_app.core.limits import CallLimit, RateLimit
from limits_app.integrations.drf.problems import exception_handler
from tests.integrations.rest import ask, throttle, view_of
from tests.integrations.site import limit

pytestmark = pytest.mark.django_db(transaction=True)

HANDLER = "limits_app.integrations.drf.problems.exception_handler"
QUOTA = "https://iana.org/assignments/http-problem-types#quota-exceeded"


@pytest.fixture
def problems(settings: Settings) -> None:
    settings.REST_FRAMEWORK = {"EXCEPTION_HANDLER": HANDLER}


def test_no_cache_keeps_any_refusal() -> None:
    limit("api", CallLimit(1, 60))
    view = view_of(throttle("api"))
    assert [ask(view).status_code, ask(view)["Cache-Control"]] == [200, "no-store"]
    too_much = ask(view_of(throttle("api", cost=2)))
    assert (too_much.status_code, too_much["Cache-Control"]) == (422, "no-store")


def test_no_cache_keeps_that_the_store_is_down(take_down: Any) -> None:
    take_down()
    response = ask(view_of(throttle("api", default_limits=[CallLimit(1, 60)])))
    assert (response.status_code, response["Cache-Control"]) == (503, "no-store")


@pytest.mark.usefixtures("problems")
def test_a_throttled_view_answers_with_problem_details() -> None:
    limit("api", CallLimit(1, 60))
    limit("more", CallLimit(1, 60))
    view = view_of(throttle("api"), throttle("more"))
    assert ask(view).status_code == 200
    refused = ask(view)
    assert (refused.status_code, refused["Retry-After"], refused["Cache-Control"]) == (429, "60", "no-store")
    assert refused["Content-Type"] == "application/problem+json"
    assert refused["RateLimit"] == '"api:call_count";r=0;t=60, "more:call_count";r=0;t=60'
    problem = json.loads(refused.content)
    assert (problem["type"], problem["status"]) == (QUOTA, 429)
    assert problem["violated-policies"] == ["api:call_count", "more:call_count"]
    assert ask(view, headers={"Accept": "text/html"})["Content-Type"].startswith("text/html")


@pytest.mark.usefixtures("problems")
def test_too_much_at_once_names_the_limit() -> None:
    limit("api", RateLimit("tpm", 5, 60))
    response = ask(view_of(throttle("api", cost=50)))
    assert (response.status_code, response["Cache-Control"]) == (422, "no-store")
    assert response["RateLimit"] == '"tpm";r=5;t=0'
    assert b'"violated-policies": ["tpm"]' in response.content


@pytest.mark.usefixtures("problems")
def test_a_block_has_a_problem_type_of_its_own() -> None:
    services.set_resource_limits("api", [], effect="blocked")
    response = ask(view_of(throttle("api")))
    assert (response.status_code, response["Cache-Control"], response.has_header("Retry-After")) == (
        403,
        "no-store",
        False,
    )
    assert json.loads(response.content)["type"] == "urn:problem-type:limits-app:blocked"


@pytest.mark.usefixtures("problems")
def test_a_store_that_is_down_is_a_problem_too(take_down: Any) -> None:
    take_down()
    response = ask(view_of(throttle("api", default_limits=[CallLimit(1, 60)])))
    assert (response.status_code, response["Retry-After"]) == (503, "1")
    assert response["Content-Type"] == "application/problem+json"


class Never(BaseThrottle):
    """A throttle of somebody else."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        return False


@pytest.mark.usefixtures("problems")
def test_what_is_not_ours_is_answered_as_the_framework_does() -> None:
    def missing(self: APIView, request: Request) -> Response:
        raise NotFound

    assert ask(view_of(get=missing)).data["detail"].code == "not_found"
    assert ask(view_of(Never)).data["detail"].code == "throttled"


def test_errors_that_a_view_raises_itself_are_the_frameworks() -> None:
    response = exception_handler(Throttled(), {"request": Request(APIRequestFactory().get("/"))})
    assert isinstance(response, Response)

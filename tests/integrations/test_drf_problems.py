"""Rejections of throttles that are no 429, and all of them as problem details."""

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
from limits_app.engine.limits import CallLimit, RateLimit
from limits_app.integrations.drf.problems import exception_handler
from tests.integrations.rest import ask, throttle, view_of
from tests.integrations.site import limit

pytestmark = pytest.mark.django_db(transaction=True)

PROBLEMS = {"EXCEPTION_HANDLER": "limits_app.integrations.drf.problems.exception_handler"}
QUOTA = "https://iana.org/assignments/http-problem-types#quota-exceeded"


@pytest.fixture
def problems(settings: Settings) -> None:
    settings.REST_FRAMEWORK = PROBLEMS


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


def too_much(take_down: Any) -> type:
    limit("api", RateLimit("tpm", 5, 60))
    return throttle("api", cost=50)


def blocked(take_down: Any) -> type:
    services.set_resource_limits("api", [], effect="blocked")
    return throttle("api")


def store_down(take_down: Any) -> type:
    take_down()
    return throttle("api", default_limits=[CallLimit(1, 60)])


@pytest.mark.parametrize(
    ("make", "status", "code", "retry_after", "problem_type", "names"),
    [
        (too_much, 422, "too_much_at_once", None, "urn:problem-type:limits-app:too-much-at-once", ["tpm"]),
        (blocked, 403, "blocked", None, "urn:problem-type:limits-app:blocked", ["blocked"]),
        (store_down, 503, "limits_unavailable", "1", "about:blank", None),
    ],
)
def test_rejections_that_are_no_429(
    make: Any,
    status: int,
    code: str,
    retry_after: str | None,
    problem_type: str,
    names: Any,
    take_down: Any,
    settings: Settings,
) -> None:
    view = view_of(make(take_down))
    plain = ask(view, 1)
    settings.REST_FRAMEWORK = PROBLEMS
    problem = ask(view, 1)
    for refused in (plain, problem):
        assert (refused.status_code, refused.get("Retry-After")) == (status, retry_after)
        assert refused["Cache-Control"] == "no-store"
    assert plain.data["detail"].code == code
    assert problem["Content-Type"] == "application/problem+json"
    content = json.loads(problem.content)
    assert (content["type"], content.get("violated-policies")) == (problem_type, names)


class Never(BaseThrottle):
    """A throttle of somebody else."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        return False


@pytest.mark.usefixtures("problems")
def test_other_errors_are_answered_by_the_framework() -> None:
    def missing(self: APIView, request: Request) -> Response:
        raise NotFound

    assert ask(view_of(get=missing)).data["detail"].code == "not_found"
    assert ask(view_of(Never)).data["detail"].code == "throttled"


def test_errors_that_a_view_raises_itself_are_the_frameworks() -> None:
    response = exception_handler(Throttled(), {"request": Request(APIRequestFactory().get("/"))})
    assert isinstance(response, Response)

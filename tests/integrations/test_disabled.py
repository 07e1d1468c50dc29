"""`LIMITS["ENABLED"] = False` and `RATELIMIT_ENABLE = False`: integrations reject nothing, and send no headers."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from pytest_django import DjangoAssertNumQueries, Settings

from limits_app import limits
from limits_app.integrations.decorators import limited
from limits_app.integrations.ratelimit import ratelimit
from limits_app.models import Resource
from tests.integrations.site import Ask, endpoint, fine, limit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def views(serve: Any) -> None:
    serve({"": fine})


def charged(request: HttpRequest) -> HttpResponse:
    """A view that acquires by itself too."""
    limits.acquire("api", entity="ann")
    return fine(request)


@pytest.fixture
def disabled(settings: Settings) -> None:
    limit("api")
    settings.LIMITS = {**settings.LIMITS, "ENABLED": False}


def test_the_middleware_does_no_io(disabled: None, ask: Ask, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    endpoint(Resource.objects.get(name="api"))
    with django_assert_num_queries(0):
        responses = [ask("/") for _ in range(3)]
    assert [response.status_code for response in responses] == [200] * 3
    assert not any("ratelimit" in name.lower() for response in responses for name in response.headers)


@pytest.mark.parametrize("view", [charged, limited("api")(fine), ratelimit(key="ip", rate="1/m")(fine)])
def test_views_are_not_limited(disabled: None, view: Any) -> None:
    responses = [view(RequestFactory().get("/")) for _ in range(3)]
    assert [response.status_code for response in responses] == [200] * 3
    assert not any("ratelimit" in name.lower() for response in responses for name in response.headers)


def test_ratelimit_enable_is_that_of_django_ratelimit(settings: Settings) -> None:
    seen = []

    @ratelimit(key="ip", rate="1/m", block=False)
    def view(request: Any) -> HttpResponse:
        seen.append(request.limited)
        return fine(request)

    for enabled in (True, True, False, True):
        settings.RATELIMIT_ENABLE = enabled
        view(RequestFactory().get("/"))
    assert seen == [False, True, False, True]

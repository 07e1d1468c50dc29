"""Whoever is logged in without a primary key, as tokens and services are, is charged by address, and breaks nothing."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from pytest_django import Settings
from rest_framework.authentication import BaseAuthentication

from limits_app.integrations.drf import rates
from tests.integrations.conftest import MIDDLEWARE
from tests.integrations.rest import RATES, statuses, view_of
from tests.integrations.site import Ask, afine, endpoint, fine, left, limit

pytestmark = pytest.mark.django_db(transaction=True)


class Service:
    """Somebody who is logged in and has no `pk` at all."""

    is_authenticated = True


class Token(Service):
    """Somebody who is logged in and has no number."""

    pk = None


class Nobody(Service):
    """A user that is false, as the framework takes it: nobody is logged in."""

    def __bool__(self) -> bool:
        return False


@pytest.fixture(params=[Service, Token])
def kind(request: pytest.FixtureRequest) -> type:
    """A kind of user."""
    given: type = request.param
    return given


def as_user(kind: type) -> type[BaseAuthentication]:
    """An authentication that finds everybody to be a user of this kind."""
    return type("Found", (BaseAuthentication,), {"authenticate": lambda self, request: (kind(), None)})


def test_the_throttle_for_visitors_lets_them_through(module: ModuleType, kind: type) -> None:
    view = view_of(module.AnonRateThrottle, authentication_classes=[as_user(kind)])
    assert statuses(view, 4) == [200] * 4


@pytest.mark.parametrize("nobody", [Nobody, type(None)])
def test_the_throttle_for_visitors_takes_a_user_that_is_false_for_one(module: ModuleType, nobody: type) -> None:
    view = view_of(module.AnonRateThrottle, authentication_classes=[as_user(nobody)])
    assert statuses(view, 3) == [200, 200, 429]


@pytest.mark.parametrize("name", ["UserRateThrottle", "ScopedRateThrottle"])
def test_other_throttles_charge_them_by_address(name: str, kind: type, settings: Settings) -> None:
    settings.REST_FRAMEWORK = {"DEFAULT_THROTTLE_RATES": RATES}
    view = view_of(getattr(rates, name), authentication_classes=[as_user(kind)], throttle_scope="user")
    assert statuses(view, 4) == [200, 200, 200, 429]
    assert statuses(view, 1, REMOTE_ADDR="203.0.113.2") == [200]


def as_service(get_response: Any) -> Any:
    """A middleware of which everybody is a service."""

    def answer(request: Any) -> Any:
        request.user = Service()
        return get_response(request)

    return answer


@pytest.mark.parametrize("view", [fine, afine], ids=["sync", "async"])
@pytest.mark.usefixtures("default_entities")
def test_charged_by_address(view: Any, ask: Ask, serve: Any, settings: Settings) -> None:
    settings.MIDDLEWARE = [*MIDDLEWARE[:2], f"{__name__}.as_service", *MIDDLEWARE[2:]]
    serve({"": view})
    endpoint(limit("api"))
    assert [ask().status_code for _ in range(2)] == [200, 429]
    assert left("api", "ip:127.0.0.1") == {"call_count": 0}

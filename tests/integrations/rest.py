"""A REST API in these tests: views under throttles, the framework's own or ours, on a clock that both read."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from limits_app.integrations.drf.throttle import LimitThrottle, ThrottledViewMixin

__all__ = ["RATES", "Members", "Named", "Person", "ask", "of", "statuses", "throttle", "view_of"]

RATES = {"anon": "2/min", "user": "3/min", "uploads": "1/hour", "burst": "2/sec", "daily": "4/day", "free": None}


class Person:
    """Somebody who is logged in, as far as throttles look."""

    is_authenticated = True

    def __init__(self, pk: int) -> None:
        self.pk = pk


class Named(BaseAuthentication):
    """Whoever says a number is that person; whoever says anything else is turned away."""

    def authenticate(self, request: Request) -> tuple[Any, None] | None:
        said = request.headers.get("X-Person")
        return (Person(int(said)), None) if said else None


class Members(IsAuthenticated):
    """Only for people who are logged in."""


def view_of(*throttles: type, **attributes: Any) -> Callable[..., Any]:
    """A view under some throttles."""

    def get(self: APIView, request: Request, **captured: object) -> Response:
        return Response("fine")

    names = {"throttle_classes": throttles, "authentication_classes": [Named], "permission_classes": []}
    verbs = {"get": get, "post": get}
    kind = type("View", (ThrottledViewMixin, APIView), names | verbs | attributes)
    view: Callable[..., Any] = kind.as_view()
    return view


def throttle(resource: str | None = "api", **attributes: Any) -> type:
    """A throttle of a resource."""
    return type("Throttle", (LimitThrottle,), {"resource": resource} | attributes)


def of(module: ModuleType, name: str, **attributes: Any) -> type:
    """A throttle class of a module, with attributes of its own."""
    return type(name, (getattr(module, name),), attributes)


def ask(view: Callable[..., Any], person: int | None = None, **extra: Any) -> Any:
    """Ask a view by itself, without middleware."""
    headers = extra.pop("headers", {}) | ({"X-Person": str(person)} if person else {})
    request = APIRequestFactory().get("/", headers=headers, **extra)
    response = view(request)
    response.close()
    return response


def statuses(view: Callable[..., Any], times: int, person: int | None = None, **extra: Any) -> list[int]:
    """What a view answers, several times."""
    return [ask(view, person, **extra).status_code for _ in range(times)]

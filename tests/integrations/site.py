"""What a site in these tests is made of: views, limits, endpoints, and who asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from django.http import HttpRequest, HttpResponse

from limits_app import services
from limits_app.engine.limits import CallLimit, LimitDefinition
from limits_app.models import Endpoint, Resource
from tests.flushing import made_once

View = Callable[..., Any]


class Ask(Protocol):
    """Sends a request to the site, from somebody."""

    def __call__(self, path: str = "/", method: str = "GET", who: str = "ann", **headers: str) -> Any: ...


def who(request: HttpRequest) -> str:
    """The entity of a request in these tests: what it says of itself."""
    return request.headers.get("X-Who", "nobody")


def fine(request: HttpRequest, **captured: object) -> HttpResponse:
    """Answer."""
    return HttpResponse("fine")


async def afine(request: HttpRequest, **captured: object) -> HttpResponse:
    """Answer from a coroutine."""
    return HttpResponse("fine")


def limit(resource: str, *limits: LimitDefinition) -> Resource:
    """Set limits for everyone on a resource."""
    definitions = limits or (CallLimit(1, 60),)
    made_once((resource, definitions), lambda: services.set_resource_limits(resource, definitions))
    return Resource.objects.get(name=resource)


def endpoint(resource: Resource | None, path: str = "/", **fields: Any) -> Endpoint:
    """Set an endpoint."""
    given = {"name": path, "path": "" if "view_name" in fields else path, "resource": resource} | fields
    return Endpoint.objects.create(**given)


def left(resource: str, entity: str | None = "ann") -> dict[str, object]:
    """How much is left of each limit."""
    return {key: stats["available"] for key, stats in services.status(resource, entity=entity).limits.items()}

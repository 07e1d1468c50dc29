"""Throttles of views whose handlers are coroutines, dispatched as the package `adrf` does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.test import AsyncClient
from django.utils.functional import classproperty
from pytest_django import Settings
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from limits_app.engine.limits import CallLimit, ResourceLimit
from limits_app.integrations.drf.throttle import ThrottledViewMixin
from tests.integrations.conftest import MIDDLEWARE
from tests.integrations.rest import Members, Named, throttle
from tests.integrations.site import left, limit

pytestmark = pytest.mark.django_db(transaction=True)


class AsyncView(ThrottledViewMixin, APIView):
    """A view of the framework whose handlers are awaited; what comes before them runs in a thread."""

    authentication_classes = (Named,)
    permission_classes = (Members,)
    throttle_classes = tuple(throttle(name) for name in ("api", "exports"))

    @classproperty
    def view_is_async(cls) -> bool:  # noqa: N805 - of the class
        return True

    async def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Dispatch as the framework does."""
        self.args, self.kwargs, self.headers = args, kwargs, self.default_response_headers
        self.request = self.initialize_request(request, *args, **kwargs)
        try:
            await sync_to_async(self.initial)(self.request, *args, **kwargs)
            response = await self.get(self.request)
        except Exception as error:  # noqa: BLE001 - as the framework does
            response = self.handle_exception(error)
        return self.finalize_response(self.request, response, *args, **kwargs)

    async def get(self, request: Request) -> Response:
        """Say what is left meanwhile."""
        await asyncio.sleep(0)
        return Response(await sync_to_async(left)("api", "user:1"))


def ask(times: int) -> list[Any]:
    """Ask the site several times at once."""

    async def everybody() -> list[Any]:
        return await asyncio.gather(*[AsyncClient().get("/", headers={"X-Person": "1"}) for _ in range(times)])

    return async_to_sync(everybody)()


@pytest.fixture(autouse=True, params=["with_the_middleware", "without_it"])
def site(request: pytest.FixtureRequest, serve: Any, settings: Settings, default_entities: None) -> None:
    """A site with such a view."""
    settings.MIDDLEWARE = MIDDLEWARE if request.param == "with_the_middleware" else MIDDLEWARE[:-1]
    serve({"": AsyncView.as_view()})
    limit("api", CallLimit(9, 60), ResourceLimit("slots", 8))
    limit("exports", CallLimit(2, 60))


def test_all_throttles_of_a_view_decide_together_and_set_headers() -> None:
    answers = ask(6)
    assert sorted(one.status_code for one in answers) == [200, 200, 429, 429, 429, 429]
    assert left("api", "user:1") == {"call_count": 7, "slots": 8}
    for one in answers:
        assert '"exports:call_count"' in one["RateLimit"]
        assert (one.status_code == 429) is one.has_header("Retry-After")


def test_permits_are_held_while_the_handler_is_awaited() -> None:
    [answer] = ask(1)
    assert answer.data["slots"] == 7
    assert left("api", "user:1")["slots"] == 8

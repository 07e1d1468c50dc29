"""Decorated views that run at the same time for one request, without the middleware: each answers for its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import RequestFactory

from limits_app import limited, services
from limits_app.engine.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.integrations.ratelimit import ratelimit
from limits_app.integrations.request import limits_of
from tests.integrations.site import fine, left, limit

pytestmark = pytest.mark.django_db(transaction=True)

View = Callable[[HttpRequest], Awaitable[HttpResponse]]


@pytest.fixture
def request_of_ann() -> Iterator[HttpRequest]:
    request = RequestFactory().get("/", headers={"X-Who": "ann"})
    yield request
    request.close()


class Parts:
    """Parts of a view: one waits until it may go on, the other one ends, as it is told to, while the first waits."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def wait(self, request: HttpRequest) -> HttpResponse:
        self.waits.set()
        await self.goes_on.wait()
        return fine(request)

    def ending(self, error: Exception | None = None) -> View:
        async def end(request: HttpRequest) -> HttpResponse:
            await self.waits.wait()
            if error is not None:
                raise error
            return fine(request)

        return end


async def answered(view: View, request: HttpRequest) -> int:
    """Call a view, and drop its response, which was sent then."""
    return (await view(request)).status_code


async def lefts(*resources: str) -> list[dict[str, object]]:
    return [await sync_to_async(left)(resource) for resource in resources]


ENDS = {"raises": ValueError("no"), "raises a response": Http404(), "returns": None}


@pytest.mark.parametrize("is_charged_first", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_view_that_ends_leaves_the_permits_of_a_concurrent_one(
    request_of_ann: HttpRequest, end: str, is_charged_first: bool
) -> None:
    async def run() -> Any:
        parts = Parts()
        views = [limited("one", requested={"tpm": 5})(parts.wait), limited("two")(parts.ending(ENDS[end]))]
        if is_charged_first:
            views.reverse()
        first, second = [asyncio.create_task(answered(view, request_of_ann)) for view in views]
        waiting, ending = (second, first) if is_charged_first else (first, second)
        await asyncio.gather(ending, return_exceptions=True)
        during = await lefts("one", "two")
        parts.goes_on.set()
        await waiting
        return during, await lefts("one", "two")

    limit("one", RateLimit("tpm", 100, 60), ResourceLimit("slots", 1))
    limit("two", ResourceLimit("slots", 2))
    during, afterwards = async_to_sync(run)()
    assert during == [{"tpm": 95, "slots": 0}, {"slots": 2}]
    assert afterwards == [{"tpm": 95, "slots": 1}, {"slots": 2}]


@pytest.mark.parametrize("error", [None, ValueError("no")], ids=["returns", "raises"])
def test_a_charge_that_two_views_use_is_released_with_the_last(
    request_of_ann: HttpRequest, error: Exception | None
) -> None:
    async def run() -> Any:
        parts = Parts()
        task = asyncio.create_task(answered(limited("api")(parts.wait), request_of_ann))
        await parts.waits.wait()
        await asyncio.gather(answered(limited("api")(parts.ending(error)), request_of_ann), return_exceptions=True)
        during = (await lefts("api"))[0]
        parts.goes_on.set()
        await task
        return during, (await lefts("api"))[0]

    limit("api", RateLimit("tpm", 100, 60), ResourceLimit("slots", 2))
    during, afterwards = async_to_sync(run)()
    assert during == {"tpm": 99, "slots": 1}
    assert afterwards == {"tpm": 99, "slots": 2}


def test_a_shared_charge_is_refunded_only_if_no_view_has_used_it(request_of_ann: HttpRequest) -> None:
    async def run() -> None:
        parts = Parts()

        async def fails(request: HttpRequest) -> HttpResponse:
            await parts.wait(request)
            raise ValueError("no")

        task = asyncio.create_task(limited("api")(fails)(request_of_ann))
        await parts.waits.wait()
        await limited("api")(parts.ending())(request_of_ann)
        parts.goes_on.set()
        await asyncio.gather(task, return_exceptions=True)

    limit("api", RateLimit("tpm", 100, 60), ResourceLimit("slots", 1))
    async_to_sync(run)()
    assert left("api") == {"tpm": 99, "slots": 1}


def test_an_inner_view_that_raises_refunds_its_own_and_the_outer_one_goes_on(request_of_ann: HttpRequest) -> None:
    @limited("inner", requested={"tpm": 5})
    async def inner(request: HttpRequest) -> HttpResponse:
        await limits_of(request).atry_acquire("by-view")
        raise ValueError("no")

    @limited("outer", requested={"tpm": 7})
    async def outer(request: HttpRequest) -> HttpResponse:
        await asyncio.gather(inner(request), limited("beside")(parts_of_outer)(request), return_exceptions=True)
        seen.append(await lefts("outer", "inner", "beside", "by-view"))
        return fine(request)

    async def parts_of_outer(request: HttpRequest) -> HttpResponse:
        return fine(request)

    seen: list[Any] = []
    for name in ("outer", "inner"):
        limit(name, RateLimit("tpm", 100, 60), ResourceLimit("slots", 1))
    for name in ("beside", "by-view"):
        limit(name, ResourceLimit("slots", 1))
    async_to_sync(outer)(request_of_ann)
    # What an inner view has returned with is held until the outer one has answered.
    assert seen == [[{"tpm": 93, "slots": 0}, {"tpm": 100, "slots": 1}, {"slots": 0}, {"slots": 1}]]
    assert left("outer") == {"tpm": 93, "slots": 1}
    assert left("beside") == {"slots": 1}


def test_streamed_response_of_a_view_does_not_hold_the_charges_of_another(
    request_of_ann: HttpRequest,
) -> None:
    @limited("stream")
    async def stream(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse([b"a", b"b"])

    @limited("plain")
    async def plain(request: HttpRequest) -> HttpResponse:
        return fine(request)

    async def run() -> Any:
        response, _ = await asyncio.gather(stream(request_of_ann), answered(plain, request_of_ann))
        seen = await lefts("stream", "plain")
        await sync_to_async(response.close)()
        return seen, await lefts("stream", "plain")

    for name in ("stream", "plain"):
        limit(name, ResourceLimit("slots", 1))
    assert async_to_sync(run)() == ([{"slots": 0}, {"slots": 1}], [{"slots": 1}, {"slots": 1}])


def test_rejected_view_leaves_the_charges_of_a_concurrent_one(request_of_ann: HttpRequest) -> None:
    async def run() -> Any:
        parts = Parts()
        inner = limited("full")(parts.ending())
        task = asyncio.create_task(answered(limited("one")(parts.wait), request_of_ann))
        await parts.waits.wait()
        status = await answered(limited("two")(inner), request_of_ann)
        during = await lefts("one", "two")
        parts.goes_on.set()
        await task
        return status, during

    limit("full", CallLimit(1, 60))
    assert services.try_acquire("full", entity="ann")
    limit("one", CallLimit(9, 60), ResourceLimit("slots", 1))
    limit("two", CallLimit(9, 60), ResourceLimit("slots", 1))
    assert async_to_sync(run)() == (429, [{"call_count": 8, "slots": 0}, {"call_count": 9, "slots": 1}])


def test_acquisitions_of_a_thread_are_released_with_the_view(request_of_ann: HttpRequest) -> None:
    @limited("api")
    def view(request: HttpRequest) -> HttpResponse:
        thread = threading.Thread(target=limits_of(request).acquire, args=("by-view",))  # without the context
        thread.start()
        thread.join()
        seen.append(left("by-view"))
        return fine(request)

    seen: list[Any] = []
    for name in ("api", "by-view"):
        limit(name, ResourceLimit("slots", 1))
    view(request_of_ann)
    assert seen == [{"slots": 0}]
    assert left("by-view") == {"slots": 1}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_raising_view_with_ratelimit_returns_its_permits(request_of_ann: HttpRequest, kind: str) -> None:
    def fails(request: HttpRequest) -> HttpResponse:
        raise ValueError("no")

    async def afails(request: HttpRequest) -> HttpResponse:
        raise ValueError("no")

    limit("group", ResourceLimit("slots", 1))
    decorated = ratelimit(key=lambda _group, _request: "ann", rate="5/m", group="group")(
        fails if kind == "sync" else afails
    )
    with pytest.raises(ValueError, match="no"):
        decorated(request_of_ann) if kind == "sync" else async_to_sync(decorated)(request_of_ann)
    assert left("group", "ratelimit:ann") == {"slots": 1}

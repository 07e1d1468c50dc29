"""What is first taken while a response streams comes back when it was sent, by a server that asks nobody's hand."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from threading import Event
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.signals import request_finished
from django.http import HttpRequest, StreamingHttpResponse
from django.test import AsyncClient
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from limits_app.engine.limits import ResourceLimit
from limits_app.integrations.decorators import limited
from tests.integrations.conftest import MIDDLEWARE
from tests.integrations.site import left, limit
from tests.integrations.test_holding import Connection, wsgi

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def one_slot() -> None:
    """One request at a time."""
    limit("api", ResourceLimit("slots", 1))
    assert left("api") == {"slots": 1}


@limited("api")
def rows(request: HttpRequest) -> Iterator[bytes]:
    """Two rows."""
    yield b"one"
    yield b"two"


@limited("api")
async def arows(request: HttpRequest) -> AsyncIterator[bytes]:
    """The same, asynchronously."""
    for row in (b"one", b"two"):
        yield row


def decorated(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(rows(request))


def by_hand(request: Any) -> StreamingHttpResponse:
    """A stream that keeps nothing of its request but the limits."""

    def content(limits: Any) -> Iterator[bytes]:
        limits.acquire("api", entity="ann")
        yield b"one"
        limits.try_acquire("nothing", entity="ann")
        yield b"two"

    return StreamingHttpResponse(content(request.limits))


async def adecorated(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(arows(request))


@contextmanager
def finished() -> Iterator[None]:
    """Wait until a server has done with a response."""
    done = Event()

    def finish(**_: object) -> None:
        done.set()

    request_finished.connect(finish)
    try:
        yield
        assert done.wait(10)
    finally:
        request_finished.disconnect(finish)


@pytest.mark.parametrize("view", [decorated, by_hand])
def test_a_sent_stream_releases_its_permits(serve: Any, live_server: LiveServer, view: Any) -> None:
    serve({"": view})
    for _ in range(2):
        connection = HTTPConnection(live_server.thread.host, live_server.thread.port, timeout=10)
        with finished():
            connection.request("GET", "/", headers={"X-Who": "ann", "Connection": "close"})
            assert connection.getresponse().read() == b"onetwo"
        connection.close()
        assert left("api") == {"slots": 1}


def test_stream_sent_by_an_asgi_server_returns_its_permits(serve: Any) -> None:
    serve({"": adecorated})
    connection = Connection()
    async_to_sync(connection.run)()
    assert [message.get("body") for message in connection.sent] == [None, b"one", b"two", None]
    assert connection.slots == [1, 0, 0, 0]
    assert left("api") == {"slots": 1}


@pytest.mark.parametrize("options", [{"leaves_after": 2}, {"breaks_after": 2}], ids=["leaves", "breaks"])
def test_stream_of_a_client_that_leaves_returns_its_permits(serve: Any, options: Any) -> None:
    serve({"": adecorated})
    if "breaks_after" in options:
        with pytest.raises(OSError, match="connection reset"):
            async_to_sync(Connection(**options).run)()
    else:
        async_to_sync(Connection(**options).run)()
    gc.collect()
    assert left("api") == {"slots": 1}


@pytest.mark.parametrize(
    ("view", "middleware"), [(decorated, MIDDLEWARE), (limited("api")(decorated), [])], ids=["middleware", "decorator"]
)
def test_permits_of_a_stream_last_until_it_was_sent(serve: Any, settings: Settings, view: Any, middleware: Any) -> None:
    settings.MIDDLEWARE = middleware
    serve({"": view})
    response = wsgi()
    assert list(response) == [b"one", b"two"]
    assert left("api") == {"slots": 0}
    response.close()
    assert left("api") == {"slots": 1}


@pytest.mark.parametrize("view", [decorated, adecorated])
def test_without_a_middleware_a_stream_holds_while_it_runs(serve: Any, settings: Settings, view: Any) -> None:
    settings.MIDDLEWARE = []
    serve({"": view})

    async def read() -> list[bytes]:
        response: Any = await AsyncClient().get("/", headers={"X-Who": "ann"})
        return [chunk async for chunk in response.streaming_content]

    for _ in range(2):
        if view is adecorated:
            assert async_to_sync(read)() == [b"one", b"two"]
        else:
            assert list(wsgi()) == [b"one", b"two"]  # and never closes it
        assert left("api") == {"slots": 1}

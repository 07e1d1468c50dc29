"""Permits are held until the response has been sent, and come back whatever becomes of it."""

from __future__ import annotations

import asyncio
import gc
import io
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import Client, RequestFactory
from pytest_django import Settings

from limits_app.engine.limits import RateLimit, ResourceLimit
from limits_app.integrations.decorators import limited
from tests.integrations.conftest import MIDDLEWARE
from tests.integrations.site import afine, endpoint, fine, left, limit
from tests.opened import fail_at

pytestmark = pytest.mark.django_db(transaction=True)

ONE = {"slots": 1, "tpm": 100}
NONE = {"slots": 0, "tpm": 99}
GIVEN_BACK = {"slots": 1, "tpm": 99}


@pytest.fixture(autouse=True)
def one_slot(settings: Settings) -> None:
    """Let one request at a time use what is served at the root."""
    endpoint(limit("api", ResourceLimit("slots", 1), RateLimit("tpm", 100, 3600)))


def chunks(fail: bool = False) -> Iterator[bytes]:
    """Two chunks, and maybe an error between them."""
    yield b"one"
    if fail:
        raise ValueError("in the middle")
    yield b"two"


async def achunks(fail: bool = False) -> AsyncIterator[bytes]:
    """The same, asynchronously."""
    for chunk in chunks(fail):
        yield chunk


def stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(chunks("fail" in request.GET))


async def astream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(achunks("fail" in request.GET))


def test_a_stream_holds_its_permit_until_its_end(serve: Any) -> None:
    serve({"": stream})
    content = iter(Client().get("/", headers={"X-Who": "ann"}))
    assert (next(content), left("api")) == (b"one", NONE)
    assert (list(content), left("api")) == ([b"two"], GIVEN_BACK)


def _slots() -> object:
    """The free permits, without asking the database."""
    from limits_app.policies import resolver

    kept = resolver.cached(("api", "ann", (), None))
    assert kept is not None
    return kept.limit_set.get_stats()["slots"]["available"]


@pytest.mark.parametrize("read", [0, 1])
def test_a_stream_that_is_closed_early_gives_back(serve: Any, read: int) -> None:
    serve({"": stream})
    response: Any = Client().get("/", headers={"X-Who": "ann"})
    content = iter(response)
    assert [next(content) for _ in range(read)] == [b"one"][:read]
    assert left("api") == NONE
    response.close()
    assert left("api") == GIVEN_BACK


def test_a_stream_that_fails_gives_back(serve: Any) -> None:
    serve({"": stream})
    with pytest.raises(ValueError, match="in the middle"):
        list(Client().get("/?fail", headers={"X-Who": "ann"}))
    assert left("api") == GIVEN_BACK


def wsgi(query: str = "", **environ: Any) -> Any:
    """Ask as a WSGI server does; the server has to close what it gets."""
    scope = RequestFactory(headers={"X-Who": "ann"})._base_environ(PATH_INFO="/", QUERY_STRING=query, **environ)
    return WSGIHandler()(scope, lambda status, headers: None)


def test_a_response_holds_its_permit_until_the_server_has_sent_it(serve: Any) -> None:
    serve({"": fine})
    response = wsgi()
    assert (list(response), left("api")) == ([b"fine"], NONE)
    response.close()
    assert left("api") == GIVEN_BACK


def test_a_file_that_the_server_sends_itself_holds_its_permit_until_it_is_closed(serve: Any, tmp_path: Path) -> None:
    serve({"": lambda request: FileResponse(io.BytesIO(b"file"))})
    given = wsgi(**{"wsgi.file_wrapper": lambda file, size: file})
    assert (given.read(), left("api")) == (b"file", NONE)
    given.close()
    assert left("api") == GIVEN_BACK


@pytest.mark.parametrize(
    ("around", "status"),
    [
        ("django.middleware.http.ConditionalGetMiddleware", 304),
        ("django.middleware.cache.UpdateCacheMiddleware", 200),
        ("tests.integrations.test_holding.instead", 202),
        ("tests.integrations.test_holding.broken", 500),
    ],
)
def test_a_replaced_response_releases_permits(serve: Any, settings: Settings, around: str, status: int) -> None:
    settings.MIDDLEWARE = [around, *MIDDLEWARE]
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    serve({"": lambda request: HttpResponse("fine", headers={"ETag": '"1"', "Cache-Control": "max-age=60"})})
    client = Client(raise_request_exception=False)
    assert client.get("/", headers={"X-Who": "ann", "If-None-Match": '"1"'}).status_code == status
    assert left("api") == GIVEN_BACK


def instead(get_response: Any) -> Any:
    """A middleware that drops what it gets."""

    def answer(request: HttpRequest) -> HttpResponse:
        get_response(request)
        return HttpResponse(status=202)

    return answer


def broken(get_response: Any) -> Any:
    """A middleware that fails after the view."""

    def answer(request: HttpRequest) -> HttpResponse:
        get_response(request)
        raise ValueError

    return answer


def test_a_failed_release_is_logged(
    serve: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    serve({"": fine})
    fail_at(monkeypatch, "settle")
    assert Client().get("/", headers={"X-Who": "ann"}).status_code == 200
    assert "cannot settle a release now; it is settled later" in caplog.text


class Handler(ASGIHandler):
    """Django's handler, which leaves the body of the request open when it cannot send."""

    async def read_body(self, receive: Any) -> Any:
        self.body = await super().read_body(receive)
        return self.body


class InServersTask(Handler):
    """A handler that sends in the task of the server, as that of Django 6.1 does."""

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        with closing(await self.read_body(receive)) as body:
            request, _ = self.create_request(scope, body)
            assert request is not None
            try:
                response = await self.run_get_response(request)
                await self.send_response(response, send)
            except Exception as error:
                group = ExceptionGroup("of a task group", [error])
                error.__context__ = group  # a cycle, which keeps the response
                raise
            await sync_to_async(response.close)()


class Connection:
    """An ASGI server's end of one request: the client may leave, and the connection may break, after some messages."""

    def __init__(
        self, query: str = "", leaves_after: int = -1, breaks_after: int = -1, handler: type[Handler] = Handler
    ) -> None:
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "path": "/",
            "query_string": query.encode(),
            "headers": [(b"x-who", b"ann"), (b"host", b"testserver")],
        }
        self.sent: list[dict[str, Any]] = []
        self.slots: list[object] = []
        self._asked = False
        self._handler = handler
        self._leaves_after, self._breaks_after = leaves_after, breaks_after

    async def run(self) -> None:
        handler = self._handler()
        self.scope["leave"] = asyncio.Event()
        try:
            await handler(self.scope, self.receive, self.send)
        finally:
            handler.body.close()

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b""}
        await self.scope["leave"].wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self.slots.append(_slots())
        if len(self.sent) == self._breaks_after:
            raise OSError("connection reset")
        if len(self.sent) == self._leaves_after:
            await left_by_client(self.scope)


async def left_by_client(scope: dict[str, Any]) -> None:
    """The client leaves, which cancels whoever is at work."""
    scope["leave"].set()
    await asyncio.Event().wait()


def test_an_asgi_server_holds_the_permit_while_it_sends(serve: Any) -> None:
    serve({"": astream})
    connection = Connection()
    async_to_sync(connection.run)()
    assert [message.get("body") for message in connection.sent] == [None, b"one", b"two", None]
    assert connection.slots == [0] * 4
    assert left("api") == GIVEN_BACK


@pytest.mark.parametrize("view", [afine, astream], ids=["response", "stream"])
@pytest.mark.parametrize("after", [1, 2])
def test_a_client_that_leaves_an_asgi_server_gives_back(serve: Any, view: Any, after: int) -> None:
    serve({"": view})
    async_to_sync(Connection(leaves_after=after).run)()
    assert left("api") == GIVEN_BACK


@pytest.mark.slow
@pytest.mark.parametrize(
    ("view", "options", "error"),
    [
        pytest.param(astream, {"query": "fail"}, ValueError, id="the_stream_fails"),
        pytest.param(astream, {"breaks_after": 2}, OSError, id="the_connection_fails_in_the_stream"),
        pytest.param(afine, {"breaks_after": 1}, OSError, id="the_connection_fails"),
    ],
)
def test_an_unclosed_asgi_response_releases(serve: Any, view: Any, options: Any, error: type[Exception]) -> None:
    serve({"": view})
    with pytest.raises(error):
        async_to_sync(Connection(**options).run)()
    gc.collect()
    assert left("api") == GIVEN_BACK


@pytest.mark.parametrize("has_middleware", [True, False])
@pytest.mark.parametrize("handler", [Handler, InServersTask])
@pytest.mark.parametrize(
    ("view", "options"),
    [
        pytest.param(astream, {"query": "fail"}, id="the_stream_fails"),
        pytest.param(astream, {"breaks_after": 2}, id="the_connection_fails_in_the_stream"),
        pytest.param(afine, {"breaks_after": 1}, id="the_connection_fails"),
        pytest.param(fine, {"breaks_after": 2}, id="the_connection_fails_after_a_synchronous_view"),
    ],
)
def test_a_server_that_goes_on_after_an_error_has_returned_the_permit(
    serve: Any, settings: Settings, has_middleware: bool, handler: type[Handler], view: Any, options: Any
) -> None:
    """A server logs the error in its task, and garbage is not collected yet."""
    serve({"": view if has_middleware else limited("api")(view)})
    settings.MIDDLEWARE = settings.MIDDLEWARE if has_middleware else []
    connection = Connection(handler=handler, **options)

    async def run() -> object:
        with suppress(OSError, ValueError):
            await connection.run()
        return _slots()

    gc.disable()
    try:
        assert async_to_sync(run)() == 1
    finally:
        gc.enable()
    assert connection.slots[0] == 0
    assert left("api") == GIVEN_BACK


def leaving(get_response: Callable[..., Any]) -> Callable[..., Any]:
    """A middleware whose client leaves while it handles the response."""

    async def answer(request: Any) -> HttpResponse:
        await get_response(request)
        await left_by_client(request.scope)
        return fine(request)

    return answer


leaving.async_capable = True  # type: ignore[attr-defined]  # as Django has it
leaving.sync_capable = False  # type: ignore[attr-defined]  # as Django has it


def test_request_of_a_client_that_leaves_refunds_unused_amounts(serve: Any) -> None:
    async def view(request: Any) -> HttpResponse:
        await left_by_client(request.scope)
        return fine(request)

    serve({"": view})
    async_to_sync(Connection().run)()
    assert left("api") == ONE


def test_a_client_that_leaves_while_other_middleware_works_gives_back(serve: Any, settings: Settings) -> None:
    settings.MIDDLEWARE = ["tests.integrations.test_holding.leaving", *MIDDLEWARE]
    serve({"": afine})
    async_to_sync(Connection().run)()
    assert left("api") == GIVEN_BACK

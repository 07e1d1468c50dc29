"""The client that really sends, against a real server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from pydantic import SecretStr, ValidationError

from limits_app.outbound import HttpClient, Request, Response, UpstreamFailed, UpstreamTimeout
from limits_app.outbound.events import Called
from tests.outbound.timelines import Recorder
from tests.outbound.upstream import LimitedServer, limited_server
from tests.servers.ports import free_ports


@pytest.fixture
def server() -> Iterator[LimitedServer]:
    with limited_server(1000) as server:
        yield server


def asked(client: HttpClient, request: Request) -> Response:
    """One answer."""

    async def ask() -> Response:
        try:
            return await client.send(request)
        finally:
            await client.aclose()

    return asyncio.run(ask())


def test_an_answer_has_all_that_the_upstream_said(server: LimitedServer) -> None:
    watch = Recorder()
    client = HttpClient(server.url, name="eu", observer=watch)
    response = asked(client, Request.with_json("/items", {"a": 1}, params={"q": "x y"}, headers={"X-One": "1"}))
    assert (response.status, response.ok, response.upstream) == (200, True, "eu")
    assert response.json_value() == {"path": "/items?q=x%20y"} or response.json_value() == {"path": "/items?q=x+y"}
    assert server.seen_headers[0]["content-type"] == "application/json"
    assert server.seen_headers[0]["x-one"] == "1"
    assert watch.events == [Called("eu", "POST", 200, response.seconds)]


def test_the_key_goes_to_the_upstream_and_is_shown_nowhere(
    server: LimitedServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    client = HttpClient(server.url, key=SecretStr("s3cret"))
    response = asked(client, Request(path="/", headers={"authorization": "Bearer mine"}))
    assert server.seen_headers[0]["authorization"] == "Bearer s3cret"
    assert "s3cret" not in f"{vars(client)} {response!r} {client!r}"
    assert "s3cret" not in caplog.text


def test_a_redirect_is_an_answer_and_nobody_follows_it_with_the_key(server: LimitedServer) -> None:
    assert asked(HttpClient(server.url, key=SecretStr("s3cret")), Request(path="/moved")).status == 302
    assert len(server.seen_headers) == 1


def test_an_upstream_that_is_silent_is_given_up_in_time(server: LimitedServer) -> None:
    watch = Recorder()
    with pytest.raises(UpstreamTimeout, match="did not answer: no answer in time") as caught:
        asked(HttpClient(server.url, observer=watch), Request(path="/silent", timeout_seconds=0.1))
    assert caught.value.maybe_sent
    assert isinstance(caught.value, TimeoutError)
    assert [event.status for event in watch.of(Called)] == [0]


def test_an_upstream_that_is_not_there_has_never_seen_the_request() -> None:
    with pytest.raises(UpstreamFailed, match="ConnectError") as caught:
        asked(HttpClient(f"http://127.0.0.1:{free_ports()[0]}"), Request(path="/"))
    assert not caught.value.maybe_sent


def test_a_connection_that_breaks_may_have_brought_the_request() -> None:
    async def scenario() -> None:
        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(UpstreamFailed) as caught:
            await client.send(Request(path="/"))
        assert caught.value.maybe_sent
        await client.aclose()
        server.close()
        await server.wait_closed()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "path",
    ["", "items", "//elsewhere/x", "http://elsewhere/", "/a b", "/a\r\nX: 1", "/\\elsewhere", "/a?key=1", "/a#b"],
)
def test_a_path_that_leads_elsewhere_is_no_path(path: str) -> None:
    with pytest.raises(ValidationError):
        Request(path=path)


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "TRACE"},
        {"timeout_seconds": 0},
        {"timeout_seconds": float("inf")},
        {"wait_seconds": -1},
        {"amounts": {"tpm": True}},
        {"amounts": {"tpm": "3"}},
        {"surprise": 1},
    ],
    ids=str,
)
def test_a_request_that_cannot_be_is_refused_when_it_is_made(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Request.model_validate({"path": "/", **fields})


def test_requests_and_responses_do_not_change() -> None:
    request = Request(path="/", headers={"A": "1"})
    with pytest.raises(ValidationError, match="frozen"):
        request.path = "/other"
    assert hash(request) == hash(Request(path="/", headers=(("A", "1"),)))


def test_headers_are_found_by_any_spelling_and_joined() -> None:
    response = Response(status=200, headers=(("X-A", "1"), ("x-a", "2")))
    assert response.header("x-A") == "1, 2"
    assert response.header("none") is None
    assert Response(status=503).failed


def test_a_key_in_plain_text_is_refused_and_not_shown() -> None:
    with pytest.raises(TypeError, match="SecretStr") as refused:
        HttpClient("http://upstream.test", key="s3cret")  # type: ignore[arg-type]  # as those without types would
    assert "s3cret" not in str(refused.value)

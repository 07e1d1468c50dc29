"""The client that really sends, against a real server."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest
from pydantic import SecretStr, ValidationError

from limits_app.outbound import (
    Closed,
    HttpClient,
    OutboundError,
    Request,
    Response,
    Unsendable,
    UpstreamFailed,
    UpstreamTimeout,
)
from limits_app.outbound.events import Called
from tests.outbound.timelines import Recorder
from tests.outbound.upstream import LimitedServer, limited_server
from tests.servers.machine import free_ports


@pytest.fixture
def server() -> Iterator[LimitedServer]:
    with limited_server(1000) as server:
        yield server


def asked(client: HttpClient, request: Request) -> Response:
    """One answer."""

    async def ask() -> Response:
        async with client:
            return await client.send(request)

    return asyncio.run(ask())


def test_a_response_has_all_headers_of_the_upstream(server: LimitedServer) -> None:
    watch = Recorder()
    client = HttpClient(server.url, name="eu", observer=watch)
    response = asked(client, Request.with_json("/items", {"a": 1}, params={"q": "x y"}, headers={"X-One": "1"}))
    assert (response.status, response.ok, response.upstream) == (200, True, "eu")
    assert json.loads(response.content) in ({"path": "/items?q=x%20y"}, {"path": "/items?q=x+y"})
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


def test_a_redirect_is_returned_and_not_followed_with_the_key(server: LimitedServer) -> None:
    assert asked(HttpClient(server.url, key=SecretStr("s3cret")), Request(path="/moved")).status == 302
    assert len(server.seen_headers) == 1


def test_an_upstream_that_is_silent_is_given_up_in_time(server: LimitedServer) -> None:
    watch = Recorder()
    with pytest.raises(UpstreamTimeout, match="did not respond: no response in time") as caught:
        asked(HttpClient(server.url, observer=watch), Request(path="/silent", timeout_seconds=0.1))
    assert caught.value.maybe_sent
    assert isinstance(caught.value, TimeoutError)
    assert [event.status for event in watch.of(Called)] == [0]


def test_unreachable_upstream_has_not_received_the_request() -> None:
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
    [
        *["", "items", "//elsewhere/x", "http://elsewhere/", "/a b", "/a\r\nX: 1", "/\\elsewhere", "/a?key=1", "/a#b"],
        *["/\x00x", "/a\x7f", "/\ud800"],
    ],
)
def test_a_path_that_leads_elsewhere_is_no_path(path: str) -> None:
    with pytest.raises(ValidationError, match="a path must begin with one slash"):
        Request(path=path)


@pytest.mark.parametrize(
    "path",
    [
        *["/.", "/..", "/../", "/../../tenant-b/v1/x", "/a/../../b", "/a/..", "/a/./b", "/a//../../b"],
        *["/%2e%2e/x", "/%2E./x", "/.%2e", "/%2e/x", "/%252e%252E/x"],
        *["/..%2fx", "/a%2f..%2F..%2fb", "/a%2f%2e%2e", "/a%5c..%5c..%5Cb", "/a%252f..%255cx"],
        *["/..;/x", "/..;a=1/x", "/..%3b/x", "/..%3fx", "/..%23", "/..%00/x", "/..%20/x"],
    ],
)
def test_path_of_no_spelling_leads_upwards(path: str) -> None:
    with pytest.raises(ValidationError, match="must stay below the address of the client"):
        Request(path=path)


def test_a_request_does_not_change_and_a_copy_is_checked_like_any_request() -> None:
    request = Request(path="/a", headers={"X": "1"}, amounts={"tpm": 3})
    assert hash(request) == hash(Request(path="/a", headers=(("X", "1"),), amounts={"tpm": 3}))
    with pytest.raises(ValidationError, match="frozen"):
        request.path = "/other"
    assert request.model_copy() == request
    assert request.model_copy(update={"path": "/b"}) == Request(path="/b", headers={"X": "1"}, amounts={"tpm": 3})
    with pytest.raises(ValidationError, match="must stay below"):
        request.model_copy(update={"path": "/../b"})


@pytest.mark.parametrize(
    "path", ["/", "/...", "/.well-known/x", "/a..b/..c", "/v1..2", "/a//b", "/%2e%2ea", "/é", "/@b", "/:80/x"]
)
def test_other_paths_arrive_below_the_address(server: LimitedServer, path: str) -> None:
    answer = json.loads(asked(HttpClient(f"{server.url}/tenant-a/v1"), Request(path=path)).content)
    assert answer["path"].startswith("/tenant-a/v1/")


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "TRACE"},
        {"timeout_seconds": 0},
        {"timeout_seconds": float("inf")},
        {"wait_seconds": -1},
        {"amounts": {"tpm": True}},
        {"amounts": {"tpm": "3"}},
        {"amounts": {"tpm": -1}},
        {"amounts": {"tpm": -0.5}},
        {"amounts": {"tpm": float("nan")}},
        {"amounts": {"tpm": float("inf")}},
        {"headers": {"X": "é"}},
        {"headers": {"X": "a\r\nY: b"}},
        {"headers": {"X": "a\n"}},
        {"headers": {"X": "a\x00"}},
        {"headers": {"X": " a"}},
        {"headers": {"X:": "a"}},
        {"headers": {"é": "a"}},
        {"headers": {"": "a"}},
        {"headers": {"host": "elsewhere"}},
        {"headers": {"Content-Length": "1"}},
        {"headers": {"Transfer-Encoding": "chunked"}},
        {"surprise": 1},
    ],
    ids=str,
)
def test_a_request_that_cannot_be_is_refused_when_it_is_made(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Request.model_validate({"path": "/", **fields})


def test_all_valid_headers_of_a_request_arrive(server: LimitedServer) -> None:
    headers = {"x-empty": "", "x-tab": "a\tb c", "x!#$%&'*+-.^_`|~9": "~!"}
    asked(HttpClient(server.url), Request(path="/", headers=headers))
    assert headers.items() <= server.seen_headers[0].items()


def test_cookies_of_one_answer_are_not_sent_with_the_next_request(server: LimitedServer) -> None:
    async def twice() -> None:
        client = HttpClient(server.url)
        for _ in range(2):
            await client.send(Request(path="/cookie"))
        await client.aclose()

    asyncio.run(twice())
    assert [headers.get("cookie") for headers in server.seen_headers] == [None, None]


def test_a_request_that_is_refused_does_not_show_its_secrets() -> None:
    with pytest.raises(ValidationError) as refused:
        Request(path="/", headers={"Authorization": "s3cret\n"})
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "reason"), [("x" * 70_000, "too long"), ("\ud800", "surrogates")], ids=["long", "half"]
)
def test_unsendable_request_is_an_error_of_the_caller(server: LimitedServer, text: str, reason: str) -> None:
    watch = Recorder()
    with pytest.raises(Unsendable, match=rf"the request to 127.0.0.1 is invalid: .*{reason}") as caught:
        asked(HttpClient(server.url, observer=watch), Request(path="/", params={"q": text}))
    assert isinstance(caught.value, OutboundError)
    assert isinstance(caught.value, ValueError)
    assert server.seen_headers == []
    assert [event.status for event in watch.of(Called)] == [0]


def test_a_client_that_was_closed_sends_nothing_more(server: LimitedServer) -> None:
    async def scenario() -> None:
        client = HttpClient(server.url, name="eu")
        await client.aclose()
        with pytest.raises(Closed, match="eu was closed"):
            await client.send(Request(path="/"))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "url",
    [
        *["", "nonsense", "upstream.test/v1", "ftp://upstream.test", "http://", "http://h:port", "http://h\x00"],
        *["http://upstream.test/v1?key=1", "http://upstream.test/v1#part"],
    ],
)
def test_an_address_that_cannot_be_is_refused_when_the_client_is_made(url: str) -> None:
    with pytest.raises(ValueError, match="base_url must be"):
        HttpClient(url)


def test_headers_are_found_by_any_spelling_and_joined() -> None:
    response = Response(status=200, headers=(("X-A", "1"), ("x-a", "2")))
    assert response.header("x-A") == "1, 2"
    assert response.header("none") is None
    assert Response(status=200, headers={"X": "é"}).header("x") == "é"  # as the upstream says it


def test_a_key_in_plain_text_is_refused_and_not_shown() -> None:
    with pytest.raises(TypeError, match="SecretStr") as refused:
        HttpClient("http://upstream.test", key="s3cret")  # type: ignore[arg-type]  # as those without types would
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("key", ["s3cret\n", "s3crét", "s3cret "])
def test_a_key_that_no_header_can_have_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ValueError, match="key_header, key_prefix and key must be") as refused:
        HttpClient("http://upstream.test", key=SecretStr(key))
    assert "s3cr" not in str(refused.value)

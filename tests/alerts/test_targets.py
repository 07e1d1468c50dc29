"""Where alerts may go, how long a delivery may take, and what visitors can write into a message."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from threading import Event, Thread, active_count
from time import monotonic
from typing import Any

import pytest
from django.core import mail
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from limits_app.alerts import NotDelivered, send_test, targets
from limits_app.alerts.delivery import deliver
from limits_app.models import AlertRule
from tests.alerts.conftest import Receiver, rule
from tests.alerts.test_alerts import NOON, NOT_ACCEPTED

pytestmark = pytest.mark.django_db

PRIVATE = "in a private network: set LIMITS['ALERT_PRIVATE_TARGETS'] = True"


@pytest.fixture
def strict(settings: Settings) -> None:
    settings.LIMITS = {**settings.LIMITS, "ALERT_PRIVATE_TARGETS": False}


def hook(url: str, **fields: Any) -> AlertRule:
    return AlertRule(name="hook", kind="store", channel="webhook", target=url, **fields)


def resolve_by(getaddrinfo: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let targets resolve names by another function."""
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def resolve(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Let names have these addresses, one answer after the other; returns the names that were resolved."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, **_: object) -> list[Any]:
        asked.append(host)
        found = answers[min(len(asked), len(answers)) - 1]
        return [
            (socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found
        ]

    resolve_by(getaddrinfo, monkeypatch)
    return asked


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", True),
        ("2606:4700:4700::1111", True),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::808:808", True),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.0.1", False),
        ("100.64.0.1", False),
        ("127.0.0.1", False),
        ("127.9.9.9", False),
        ("169.254.169.254", False),
        ("0.0.0.0", False),  # noqa: S104 - an address that is rejected
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("::127.0.0.1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:169.254.169.254", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b:1::808:808", False),
        ("2002:7f00:1::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("ff0e::1", False),
        ("fec0::1", False),
        ("::ffff:0:127.0.0.1", False),
        ("4000::1", False),
        ("2002:808:808::", True),
    ],
)
def test_only_addresses_of_the_internet_are_public(address: str, expected: bool) -> None:
    assert targets.is_public(ip_address(address)) is expected


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "0", "2130706433", "0x7f000001", "localhost", "[::1]", "[::ffff:127.0.0.1]"]
)
def test_a_private_target_is_rejected_however_it_is_written(host: str, receiver: Receiver) -> None:
    for channel in ("webhook", "slack"):
        with pytest.raises(NotDelivered, match="private network"):
            deliver(
                AlertRule(channel=channel, target=f"http://{host}:{receiver.server_port}/"), {"text": "a"}, now=NOON
            )
    assert receiver.received == []


@pytest.mark.usefixtures("strict")
def test_a_name_with_a_private_address_is_rejected(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for found in (["10.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["::ffff:10.0.0.1"]):
        resolve(monkeypatch, found)
        with pytest.raises(NotDelivered, match="private network"):
            send_test(hook(f"http://hooks.example:{receiver.server_port}/"))


@pytest.mark.usefixtures("strict")
def test_the_address_that_was_checked_is_the_one_that_is_connected_to(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name means 8.8.8.8 when it is checked, and this machine from then on."""
    asked = resolve(monkeypatch, ["8.8.8.8"], ["127.0.0.1"])
    connected: list[Any] = []

    class Socket(socket.socket):
        def connect(self, address: Any) -> None:
            connected.append(address[0])
            raise ConnectionRefusedError

    monkeypatch.setattr(socket, "socket", Socket)
    with pytest.raises(NotDelivered):
        send_test(hook(f"http://rebinding.example:{receiver.server_port}/"))
    assert (asked, connected, receiver.received) == (["rebinding.example"], ["8.8.8.8"], [])


def test_a_private_target_is_allowed_by_the_setting(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch, ["127.0.0.1"])
    send_test(hook(f"http://hooks.internal:{receiver.server_port}/x"))
    [(headers, _)] = receiver.received
    assert headers["Host"] == f"hooks.internal:{receiver.server_port}"


def test_another_address_of_a_name_is_tried(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch, ["::1", "127.0.0.1"])
    send_test(hook(f"http://hooks.internal:{receiver.server_port}/"))
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "metadata.internal", "[::1]", "[::ffff:169.254.169.254]", "user@127.0.0.1", "a:b@[fd00::1]"]
)
def test_a_target_behind_a_proxy_is_checked_and_the_proxy_is_not(
    host: str, receiver: Receiver, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", receiver.url)
    monkeypatch.delenv("no_proxy", raising=False)
    settings.LIMITS = {**settings.LIMITS, "ALERT_PRIVATE_TARGETS": False}
    real = socket.getaddrinfo

    def getaddrinfo(name: str, port: int, **options: Any) -> Any:
        if name == "hooks.example":
            raise socket.gaierror("only the proxy knows it")
        return real("169.254.169.254" if name == "metadata.internal" else name, port, **options)

    resolve_by(getaddrinfo, monkeypatch)
    with pytest.raises(NotDelivered, match="private network"):
        send_test(hook(f"http://{host}/"))
    assert receiver.received == []
    send_test(hook("http://hooks.example/x"))
    assert receiver.received[0][0]["Host"] == "hooks.example"


def drip(connection: socket.socket, stop: Event) -> None:
    """Send a header every tenth of a second."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while not stop.wait(0.05):
        connection.sendall(b"X-More: a\r\n")


def stay_silent(connection: socket.socket, stop: Event) -> None:
    stop.wait(20)


def drip_interim_answers(connection: socket.socket, stop: Event) -> None:
    while not stop.wait(0.05):
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")


def greet(connection: socket.socket, stop: Event) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")


def hang_up(connection: socket.socket, stop: Event) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")


def fail(connection: socket.socket, stop: Event) -> None:
    connection.recv(65_536)
    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


@contextmanager
def answering(answer: Callable[[socket.socket, Event], None]) -> Iterator[int]:
    """A server on this machine that answers a connection like this; yields its port."""
    stop = Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                connection, _ = server.accept()
                with connection, suppress(OSError):
                    answer(connection, stop)

        thread = Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            stop.set()
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("answer", [drip, drip_interim_answers, stay_silent])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_one_deadline_is_for_the_whole_delivery(
    scheme: str, answer: Callable[[socket.socket, Event], None], wait_at_most: Callable[[float], None]
) -> None:
    wait_at_most(0.5)
    threads, begun = active_count(), monotonic()
    with answering(answer) as port:
        with pytest.raises(NotDelivered, match=NOT_ACCEPTED):
            send_test(hook(f"{scheme}://127.0.0.1:{port}/"))
        assert monotonic() - begun < 3
        ends = monotonic() + 5
        while active_count() > threads + 1 and monotonic() < ends:  # the server is the other one
            Event().wait(0.01)
        assert active_count() == threads + 1, "the connection of the delivery was closed"


def test_the_deadline_is_also_for_resolving_a_name(
    monkeypatch: pytest.MonkeyPatch, wait_at_most: Callable[[float], None]
) -> None:
    resolves = Event()

    def getaddrinfo(*_: object, **__: object) -> list[Any]:
        resolves.wait(20)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 9))]

    resolve_by(getaddrinfo, monkeypatch)
    wait_at_most(0.1)
    with pytest.raises(NotDelivered) as raised:
        send_test(hook("http://slow.example/"))
    assert raised.value.cause == "the receiver cannot be reached: TimeoutError"
    resolves.set()


def test_the_deadline_is_also_for_mail(settings: Settings, wait_at_most: Callable[[float], None]) -> None:
    settings.EMAIL_BACKEND, settings.EMAIL_HOST = "django.core.mail.backends.smtp.EmailBackend", "127.0.0.1"
    wait_at_most(0.3)

    def drip_greeting(connection: socket.socket, stop: Event) -> None:
        while not stop.wait(0.05):
            connection.sendall(b"220-wait\r\n")

    with answering(drip_greeting) as port:
        settings.EMAIL_PORT = port
        with pytest.raises(NotDelivered, match=NOT_ACCEPTED):
            send_test(AlertRule(name="mail", channel="email", target="a@example.com"))
    assert mail.outbox == []


@pytest.mark.parametrize("answer", [None, greet, hang_up, stay_silent, fail, drip])
def test_the_test_button_does_not_reveal_closed_ports(
    answer: Callable[[socket.socket, Event], None] | None, admin_client: Client, wait_at_most: Callable[[float], None]
) -> None:
    wait_at_most(0.3)
    with answering(answer or greet) as port:
        made = AlertRule.objects.create(
            name="hook", kind="store", channel="webhook", target=f"http://127.0.0.1:{1 if answer is None else port}/"
        )
        page = admin_client.post(reverse("admin:limits_app_alertrule_test", args=[made.pk]), follow=True)
    [message] = page.context["messages"]
    assert str(message) == f"The test alert was not sent: {NOT_ACCEPTED}."


@pytest.mark.usefixtures("strict")
def test_the_test_button_shows_that_a_target_is_private(admin_client: Client, receiver: Receiver) -> None:
    page = admin_client.post(reverse("admin:limits_app_alertrule_test", args=[rule("store", receiver).pk]), follow=True)
    [message] = page.context["messages"]
    assert PRIVATE in str(message)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<!channel> <http://evil.example|click>", "&lt;!channel&gt; &lt;http://evil.example|click&gt;"),
        ("a & b &lt;!here&gt;", "a &amp; b &amp;lt;!here&amp;gt;"),
        ("<@U123> <#C123> <!subteam^S1>", "&lt;@U123&gt; &lt;#C123&gt; &lt;!subteam^S1&gt;"),
        ("@channel @All @here @everyone", "@\u200bchannel @\u200bAll @\u200bhere @\u200beveryone"),
        ("ann@example.org @ann @allegra", "ann@example.org @ann @allegra"),
    ],
)
def test_text_of_visitors_is_no_markup(text: str, expected: str, receiver: Receiver) -> None:
    deliver(rule("threshold", receiver, channel="slack"), {"text": text}, now=NOON)
    deliver(rule("store", receiver), {"text": text}, now=NOON)
    assert [json.loads(body)["text"] for _, body in receiver.received] == [expected, text]


def test_a_certificate_is_verified(receiver: Receiver) -> None:
    with pytest.raises(NotDelivered) as raised:
        send_test(hook(receiver.url.replace("http:", "https:")))
    assert "cannot be reached" in raised.value.cause
    assert ssl.create_default_context().check_hostname

"""A receiver of webhooks, and rules that send to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest
from pytest_django import Settings

from limits_app.alerts import delivery, recorder
from limits_app.models import AlertRule


class _Request(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((dict(self.headers.items()), body))
        if self.server.hangs:
            self.server.released.wait(30)
            return
        self.send_response(self.server.status)
        if self.server.status == 302:
            self.send_header("Location", self.server.url)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Stay silent."""


class Receiver(ThreadingHTTPServer):
    """An HTTP server with the requests that it has received; answers with `status`, or not at all."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.status = 200
        self.hangs = False
        self.released = Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook/s3cr3t"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _no_events(settings: Settings) -> Iterator[None]:
    """Start without events; the receiver is on this machine."""
    settings.LIMITS = {**settings.LIMITS, "ALERT_PRIVATE_TARGETS": True}
    recorder.clear()
    yield
    recorder.clear()


@pytest.fixture
def wait_at_most(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Wait for an answer for so many seconds."""

    def wait(seconds: float) -> None:
        monkeypatch.setattr(delivery, "TIMEOUT_SECONDS", seconds)

    return wait


def rule(kind: str, receiver: Receiver, **fields: object) -> AlertRule:
    """A rule that sends webhooks."""
    defaults: dict[str, object] = {"name": kind, "channel": "webhook", "target": receiver.url, "secret": "signing-key"}
    return AlertRule.objects.create(**{**defaults, "kind": kind, **fields})

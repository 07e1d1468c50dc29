"""A real HTTP server on loopback that has a limit of its own."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import ceil
from threading import Event, Lock, Thread

__all__ = ["LimitedServer", "limited_server"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LimitedServer

    def do_GET(self) -> None:
        self.server.seen_headers.append({name.lower(): value for name, value in self.headers.items()})
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/silent":
            self.server.closing.wait(60)
        headers = {"/moved": {"Location": "http://localhost/elsewhere"}, "/cookie": {"Set-Cookie": "who=somebody"}}
        status, told = (302, {}) if self.path == "/moved" else self.server.decide(self.path)
        body = b'{"path": "%s"}' % self.path.encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **told, **headers.get(self.path, {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the name is that of the standard library

    def log_message(self, *args: object) -> None:
        """Say nothing."""


class LimitedServer(ThreadingHTTPServer):
    """Admits `capacity` requests in any second, and refuses the others with 429 and headers that say so."""

    request_queue_size = 1024

    def __init__(self, capacity: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.capacity = capacity
        self.admitted: list[str] = []
        self.refused: list[str] = []
        self.seen_headers: list[dict[str, str]] = []
        self.closing = Event()
        self._window: deque[float] = deque()
        self._lock = Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def decide(self, path: str) -> tuple[int, dict[str, str]]:
        """The status of a response, and the headers of a refusal."""
        with self._lock:
            now = time.monotonic()
            while self._window and self._window[0] <= now - 1.0:
                self._window.popleft()
            if len(self._window) < self.capacity:
                self._window.append(now)
                self.admitted.append(path)
                return 200, {}
            self.refused.append(path)
            reset = max(ceil(self._window[0] + 1.0 - now), 1)
            policy = f'"rps";q={self.capacity};w=1'
            return 429, {"Retry-After": str(reset), "RateLimit-Policy": policy, "RateLimit": f'"rps";r=0;t={reset}'}


@contextmanager
def limited_server(capacity: int) -> Iterator[LimitedServer]:
    """A server in threads of its own."""
    with LimitedServer(capacity) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
            thread.join(10)

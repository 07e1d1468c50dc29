"""A real HTTP server on loopback that has a limit of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

__all__ = ["LimitedServer", "limited_server"]

_REASONS = {200: "OK", 302: "Found", 404: "Not Found", 429: "Too Many Requests"}


class LimitedServer:
    """Admits `capacity` requests in any second, and refuses the others with 429 and headers that say so."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.port = 0
        self.admitted: list[str] = []
        self.refused: list[str] = []
        self.seen_headers: list[dict[str, str]] = []
        self._window: deque[float] = deque()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, stop: asyncio.Event, ready: threading.Event) -> None:
        """Serve until told to stop."""
        tasks: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                while await self._answer(reader, writer):
                    pass
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass
            finally:
                tasks.discard(task)
                writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            return False
        line, *rest = head.split("\r\n")
        path = line.split()[1]
        headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in rest if one)}
        self.seen_headers.append(headers)
        await reader.readexactly(int(headers.get("content-length", 0)))
        if path == "/silent":
            await asyncio.sleep(60)
        extra = ["Location: http://localhost/elsewhere"] if path == "/moved" else []
        extra += ["Set-Cookie: who=somebody; Path=/"] if path == "/cookie" else []
        status = 302 if path == "/moved" else self._decide(path)
        if status == 429:
            extra += self._told()
        body = b'{"path": "%s"}' % path.encode()
        lines = [f"HTTP/1.1 {status} {_REASONS[status]}", f"Content-Length: {len(body)}", *extra]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
        return True

    def _decide(self, path: str) -> int:
        now = time.monotonic()
        while self._window and self._window[0] <= now - 1.0:
            self._window.popleft()
        if len(self._window) >= self.capacity:
            self.refused.append(path)
            return 429
        self._window.append(now)
        self.admitted.append(path)
        return 200

    def _told(self) -> list[str]:
        reset = ceil(self._window[0] + 1.0 - time.monotonic())
        return [
            f"Retry-After: {max(reset, 1)}",
            f'RateLimit-Policy: "rps";q={self.capacity};w=1',
            f'RateLimit: "rps";r=0;t={reset}',
        ]


@contextmanager
def limited_server(capacity: int) -> Iterator[LimitedServer]:
    """A server in a thread of its own, with an event loop of its own."""
    server, ready = LimitedServer(capacity), threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.serve(stop, ready)))
    thread.start()
    try:
        assert ready.wait(10)
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()

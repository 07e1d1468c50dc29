"""A proxy between a store and its server, which loses replies after the server has done its work."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread

from tests.servers.ports import HOST

__all__ = ["Proxy", "proxy"]

_CHUNK = 65_536


class Proxy:
    """Listens on a port of its own; `loses` says of each reply to a command whether it is lost."""

    def __init__(self, port: int, loses: Callable[[bytes], bool]) -> None:
        self._target = port
        self._loses = loses
        self._listener = socket.create_server((HOST, 0))
        self.port = int(self._listener.getsockname()[1])
        self.lost = 0
        self._lock = Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[Thread] = []
        self._start(self._accept)

    def _start(self, work: Callable[..., None], *given: object) -> None:
        with self._lock:
            thread = Thread(target=work, args=given, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    self._sockets.append(client)
                server = socket.create_connection((HOST, self._target))
                with self._lock:
                    self._sockets.append(server)
                self._start(self._serve, client, server)

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        """Pass commands on, and replies back by another thread, until one of them is lost."""
        lost = Event()
        self._start(self._reply, client, server, lost)
        with suppress(OSError):
            while command := client.recv(_CHUNK):
                if self._loses(command):
                    lost.set()
                server.sendall(command)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _reply(self, client: socket.socket, server: socket.socket, lost: Event) -> None:
        with suppress(OSError):
            while reply := server.recv(_CHUNK):
                if lost.is_set():
                    self.lost += 1
                    break
                client.sendall(reply)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close everything, and wait until nobody uses it any more."""
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        while self._threads:
            self._threads.pop().join()
        for one in (self._listener, *self._sockets):
            one.close()


@contextmanager
def proxy(port: int, loses: Callable[[bytes], bool]) -> Iterator[Proxy]:
    """A proxy to a port, until the block ends."""
    made = Proxy(port, loses)
    try:
        yield made
    finally:
        made.close()

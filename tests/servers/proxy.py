"""A proxy between a store and its server, which loses replies after the server has done its work."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from tests.servers.machine import HOST

__all__ = ["Proxy", "proxy"]

_CHUNK = 65_536


class Proxy:
    """Listens on a port of its own; `loses` says of each reply to a command whether it is lost."""

    def __init__(self, port: int, loses: Callable[[bytes], bool]) -> None:
        self.target = port
        """The port to which it passes further connections."""
        self._loses = loses
        self._listener = socket.create_server((HOST, 0))
        self.port = int(self._listener.getsockname()[1])
        self.lost = 0
        self.delay = 0.0
        """How many seconds late replies are."""
        self._sockets: set[socket.socket] = set()
        self._serving: list[Thread] = []
        self._accepting = Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.add(client)
                serving = Thread(target=self._serve, args=(client,), daemon=True)
                self._serving.append(serving)
                serving.start()

    def _serve(self, client: socket.socket) -> None:
        """Pass commands on, and replies back by another thread, until one of them is lost."""
        with client, suppress(OSError), socket.create_connection((HOST, self.target)) as server:
            lost = Event()
            replying = Thread(target=self._reply, args=(client, server, lost), daemon=True)
            replying.start()
            try:
                while command := client.recv(_CHUNK):
                    if self._loses(command):
                        lost.set()
                    server.sendall(command)
            finally:
                _hang_up(server)
                replying.join()

    def _reply(self, client: socket.socket, server: socket.socket, lost: Event) -> None:
        with suppress(OSError):
            while reply := server.recv(_CHUNK):
                if lost.is_set():
                    self.lost += 1
                    break
                if self.delay:
                    Event().wait(self.delay)
                client.sendall(reply)
        _hang_up(client)

    def close(self) -> None:
        """Close everything, and wait until nobody uses it any more."""
        _hang_up(self._listener)
        self._accepting.join()
        self._listener.close()
        for client in self._sockets:
            _hang_up(client)
        for serving in self._serving:
            serving.join()


def _hang_up(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy(port: int, loses: Callable[[bytes], bool]) -> Iterator[Proxy]:
    """A proxy to a port, until the block ends."""
    made = Proxy(port, loses)
    try:
        yield made
    finally:
        made.close()

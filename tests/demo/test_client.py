"""The demo's side of HTTP: an answer stays open for as long as its client."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from project.demo.client import Client
from project.demo.server import Address, listen

PATIENCE = 10


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen() as listener:
        listener.settimeout(PATIENCE)
        yield listener


@pytest.mark.parametrize("kept", [True, False])
def test_an_answer_that_nobody_reads_stays_open_until_its_client_hangs_up(listener: socket.socket, kept: bool) -> None:
    host, port = listener.getsockname()
    with closing(Client(Address(host, port), kept=kept)) as client:
        client._connection.connect()
        with listener.accept()[0] as site:
            site.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nfirst row\n")
            assert client.open("/").status == 200
            gc.collect()
            while b"\r\n\r\n" not in site.recv(4096, socket.MSG_PEEK):
                pass
            site.recv(4096)
            site.setblocking(False)
            with pytest.raises(BlockingIOError):
                site.recv(1)
            client.close()
            site.settimeout(PATIENCE)
            assert site.recv(1) == b""

"""Programs that the tests of other languages start, and where these keep their files."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers.machine import ServerProcess, answers, free_ports


class Program(ServerProcess):
    """Any server that is started by one command, and ends its own processes when it is told to end."""

    _end_signal = signal.SIGTERM

    def start(self, command: list[str], **options: object) -> None:
        self._launch(command, lambda: answers(self.port), **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the servers keep their files."""
    return tmp_path_factory.mktemp("proxies")


@pytest.fixture(scope="module")
def start(folder: Path) -> Iterator[Callable[..., int]]:
    """Starts programs by a function of their port, and returns the port; all are stopped at the end."""
    started: list[Program] = []

    def begin(command: Callable[[int], list[str]], **options: object) -> int:
        [port] = free_ports()
        server = Program(folder, port)
        started.append(server)
        server.start(command(port), **options)
        return port

    yield begin
    for server in reversed(started):
        server.stop()

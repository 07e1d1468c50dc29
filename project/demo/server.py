"""The server of the demo: gunicorn with several worker processes, on a socket that is opened before it starts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from project.demo import DemoFailed
from project.demo.place import ROOT, Place

__all__ = ["WORKERS", "Address", "Server", "command", "listen"]

WORKERS: Final = 2
_THREADS: Final = 8
_HOST: Final = "127.0.0.1"
_BACKLOG: Final = 512
_STOP_SECONDS: Final = 5
_LAST_LINES: Final = 20


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a site."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The address as a URL, with a slash at its end."""
        return f"http://{self.host}:{self.port}/"


def listen(port: int = 0) -> socket.socket:
    """Open a socket on the loopback interface, which a server can inherit; port 0 is any free port.

    Clients can connect immediately: they wait until a worker accepts them.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_HOST, port))
    except OSError as error:
        listener.close()
        instead = 'use another one, such as make run ARGS="--port 8001"'
        raise DemoFailed(f"port {port} cannot be used ({error.strerror}): {instead}") from error
    listener.listen(_BACKLOG)
    return listener


def command(listener: socket.socket) -> list[str]:
    """Return the command that starts gunicorn on an inherited socket."""
    options = {
        "bind": f"fd://{listener.fileno()}",
        "workers": WORKERS,
        "worker-class": "gthread",
        "threads": _THREADS,
        "keep-alive": 60,
        "timeout": 60,
        "graceful-timeout": 2,
    }
    given = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "gunicorn", *given, "--no-control-socket", "project.wsgi:application"]


class Server:
    """Serves a site until the end of the block, in a separate process group."""

    def __init__(self, place: Place) -> None:
        self._place = place
        with listen() as listener:
            host, port = listener.getsockname()
            self.address = Address(host, port)
            self._process = self._start(listener)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def last_words(self) -> str:
        """Return the last lines of the log."""
        lines = self._place.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LAST_LINES:])

    def stop(self) -> None:
        """Terminate the server; kill it and its workers if it does not exit."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # Its exit was not collected yet, so the process id still belongs to its group.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(_STOP_SECONDS)

    def _start(self, listener: socket.socket) -> subprocess.Popen[bytes]:
        with self._place.log.open("wb") as log:
            return subprocess.Popen(
                command(listener),
                cwd=ROOT,
                env=self._place.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )

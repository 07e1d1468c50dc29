"""This machine: its free ports, the programs on it, and server processes that tests start and stop."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

__all__ = ["HOST", "ServerProcess", "answers", "free_ports", "install", "library", "program", "until_ready"]

HOST = "127.0.0.1"
WITHOUT = "LIMITS_TESTS_WITHOUT_SERVERS"
"""With this variable in the environment no server starts."""
PATIENCE = 60
"""Seconds after which a server that does not answer counts as broken."""
_PORTS = range(10_000, 22_768)
"""Below those that a system gives to clients: no connection takes a port between its choice and the server's start."""
_CHANCE = random.SystemRandom()  # without the seed that tests share
_APT = ["apt-get", "--yes", "--option", "DPkg::Lock::Timeout=120", "--no-install-recommends"]


def free_ports(count: int = 1, also: int = 0) -> list[int]:
    """Ports that nobody listens on, all different, and so are those that are `also` higher."""
    found: set[int] = set()
    with ExitStack() as stack:
        while len(found) < count:
            port = _CHANCE.choice(_PORTS)
            with suppress(OSError):
                for taken in {port, port + also}:
                    stack.enter_context(socket.socket()).bind((HOST, taken))
                found.add(port)
    return list(found)


def answers(port: int) -> bool:
    """Whether somebody listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def install(package: str) -> None:
    """Try to install a Debian package, without starting what it brings; whoever needs it looks whether it is there."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    import fcntl

    # In runlevel 1 a package starts no service of its own.
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    with (Path(tempfile.gettempdir()) / "limits-tests-install.lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        for commands in ([["install", package]], [["update"], ["install", package]]):
            done = [
                subprocess.run([*_APT, *command], check=False, capture_output=True, env=environment).returncode
                for command in commands
            ]
            if done[-1] == 0:
                return


def program(name: str, package: str, *folders: str) -> str:
    """Where a program is: in some folders or on the path, after the installation of its Debian package if need be."""
    path = ":".join([*folders, os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    if shutil.which(name, path=path) is None:
        install(package)
    found = shutil.which(name, path=path)
    assert found is not None, f"put {name} on the path (Debian: {package})"
    return found


def library(pattern: str, package: str) -> str:
    """Where a shared library of the system is, after the installation of its Debian package if need be."""
    for attempt in range(2):
        for folder in ("/usr/lib", "/usr/local/lib"):
            found = sorted(Path(folder).glob(pattern))
            if found:
                return str(found[0])
        if attempt == 0:
            install(package)
    raise AssertionError(f"put {pattern} into /usr/lib (Debian: {package})")


def until_ready(process: subprocess.Popen[bytes], ready: Callable[[], bool], log: Path) -> None:
    """Wait until a server is ready, and fail with its log if it ends before."""
    deadline, pause = monotonic() + PATIENCE, Event()
    while not ready():
        assert process.poll() is None, f"the server ended: {log.read_text(errors='replace')}"
        assert monotonic() < deadline, f"the server does not answer: {log.read_text(errors='replace')}"
        pause.wait(0.02)


class ServerProcess:
    """One server in a directory of its own, which can be stopped, killed and started again on its port."""

    _end_signal = signal.SIGKILL

    def __init__(self, directory: Path, port: int) -> None:
        self.port = port
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self._process is not None, "the server was not started"
        return self._process

    def _launch(self, command: list[str], ready: Callable[[], bool], **options: Any) -> None:
        """Start the program, and wait until it is ready."""
        reason = (
            f"{WITHOUT} is set: this test needs a server; if `make quick` selected it, it lacks the marker `server`"
        )
        assert os.environ.get(WITHOUT) is None, reason
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **options)
        until_ready(self._process, ready, self._log)

    def kill(self) -> None:
        """End it immediately, as a crash does, also where it is frozen."""
        self.process.send_signal(self._end_signal)
        self.process.wait(PATIENCE)

    def stop(self) -> None:
        """End it, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop it and its children for a while, in the middle of whatever they do."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        processes = [self.process.pid, *map(int, children)]
        try:
            for one in processes:
                os.kill(one, signal.SIGSTOP)
            yield
        finally:
            for one in processes:
                os.kill(one, signal.SIGCONT)

    @property
    def _log(self) -> Path:
        return self._directory / f"{self.port}.log"

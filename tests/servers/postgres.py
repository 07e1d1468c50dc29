"""PostgreSQL servers: the programs on the path or where Debian puts them, installed where root may do so."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event
from time import monotonic

from tests.servers.freezing import frozen
from tests.servers.installing import install
from tests.servers.ports import HOST, answers, free_ports

__all__ = ["PostgresServer", "postgres_server"]

PATIENCE = 30
"""Seconds after which a server that does not answer counts as broken."""
USER = "limits"
_HOMES = "/usr/lib/postgresql"


def programs() -> Path:
    """The directory of `initdb` and `postgres`."""
    found = _programs()
    if found is None:
        install("postgresql")
        found = _programs()
    assert found is not None, "there is no PostgreSQL: put initdb and postgres on the path (Debian: postgresql)"
    return found


def _programs() -> Path | None:
    homes = sorted(Path(_HOMES).glob("*/bin/postgres"), key=lambda path: path.parent.parent.name.zfill(4))
    on_path = shutil.which("postgres")
    program = homes[-1] if homes else on_path and Path(on_path)
    return program.parent if program and (program.parent / "initdb").exists() else None


def whoever_may() -> dict[str, object]:
    """As whom to run a server that refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    import pwd

    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


class PostgresServer:
    """One server, which can be stopped, killed and started again on its port."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.port = free_ports()[0]
        self._directory = directory
        self._options = options
        self._programs = programs()
        self._who = whoever_may()
        self._run("initdb", "-D", str(directory / "data"), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def settings(self) -> dict[str, object]:
        """What Django needs to know."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": USER,
            "HOST": HOST,
            "PORT": str(self.port),
        }

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = ["fsync=off", "full_page_writes=off", "unix_socket_directories=", *self._options]
        command = [str(self._programs / "postgres"), "-D", str(self._directory / "data")]
        command += ["-h", HOST, "-p", str(self.port), *[part for option in options for part in ("-c", option)]]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._who)  # type: ignore[call-overload]  # its own types
        deadline, pause = monotonic() + PATIENCE, Event()
        while not self._is_ready():
            assert self._process.poll() is None, f"the server ended: {self._log.read_text()}"
            assert monotonic() < deadline, f"the server does not answer: {self._log.read_text()}"
            pause.wait(0.02)

    def kill(self) -> None:
        """End it at once, as a crash does, with all its processes."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(PATIENCE)

    def frozen(self) -> AbstractContextManager[None]:
        """Stop all its processes for a while, in the middle of whatever they do."""
        assert self._process is not None
        return frozen(self._process.pid)

    def stop(self) -> None:
        """End it, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def _is_ready(self) -> bool:
        if not answers(self.port):
            return False
        asked = [str(self._programs / "pg_isready"), "-q", "-h", HOST, "-p", str(self.port)]
        return subprocess.run(asked, check=False).returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, cwd=self._directory, **self._who)  # type: ignore[call-overload]  # its own types
        assert done.returncode == 0, done.stderr.decode(errors="replace")


@contextmanager
def postgres_server(*options: str) -> Iterator[PostgresServer]:
    """A server with a directory of its own, which syncs nothing; `options` are settings such as `fsync=on`."""
    directory = Path(tempfile.mkdtemp(prefix="postgres-"))
    try:
        if who := whoever_may():
            shutil.chown(directory, who["user"], who["group"])  # type: ignore[call-overload]  # numbers
        server = PostgresServer(directory, *options)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)

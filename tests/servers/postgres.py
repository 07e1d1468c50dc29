"""PostgreSQL servers: the programs on the path or where Debian puts them, installed where root may do so."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.machine import HOST, ServerProcess, answers, free_ports, install

__all__ = ["PostgresServer", "postgres_server"]

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


class PostgresServer(ServerProcess):
    """One server with an empty database."""

    _end_signal = signal.SIGQUIT  # which ends all its processes at once

    def __init__(self, directory: Path, *options: str) -> None:
        super().__init__(directory, free_ports()[0])
        self._options = options
        self._programs = programs()
        self._who = whoever_may()
        self._run("initdb", "-D", str(directory / "data"), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync")

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
        self._launch(command, self._is_ready, **self._who)

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

"""MariaDB servers: the program on the path, installed where root may do so.

With `LIMITS_TESTS_MYSQL_PORT` in the environment, the MySQL server on that port takes their place.
"""

from __future__ import annotations

import os
import shutil
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

__all__ = ["MariaDBServer", "mariadb_server"]

PATIENCE = 30
"""Seconds after which a server that does not answer counts as broken."""
DATABASE = "limits"


def program(name: str) -> str:
    """Where one of the server's programs is."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
    if shutil.which(name, path=path) is None:
        install("mariadb-server")
    found = shutil.which(name, path=path)
    assert found is not None, f"there is no MariaDB: put {name} on the path (Debian: mariadb-server)"
    return found


class MariaDBServer:
    """One server, which can be stopped, killed and started again on its port."""

    def __init__(self, directory: Path, *options: str) -> None:
        self._options = options
        self.port = free_ports()[0]
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        make = [program("mariadb-install-db"), "--no-defaults", f"--datadir={directory / 'data'}"]
        # Two servers that use one directory for temporary tables may take each other's away.
        make += [f"--tmpdir={directory}", "--auth-root-authentication-method=normal"]
        make += ["--skip-test-db", "--skip-name-resolve", "--innodb-flush-method=nosync", "--innodb-log-file-size=8M"]
        if os.geteuid() == 0:
            make.append("--user=root")
        done = subprocess.run(make, check=False, capture_output=True)
        assert done.returncode == 0, done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
        # Read once, when the server starts.
        (directory / "init.sql").write_text(
            f"CREATE DATABASE IF NOT EXISTS {DATABASE} CHARACTER SET utf8mb4; "
            f"CREATE USER IF NOT EXISTS {DATABASE}@'{HOST}' IDENTIFIED BY ''; "
            f"GRANT ALL ON *.* TO {DATABASE}@'{HOST}' WITH GRANT OPTION;\n".replace("; ", ";\n")
        )

    @property
    def settings(self) -> dict[str, object]:
        """What Django needs to know."""
        return {
            "ENGINE": "django.db.backends.mysql",
            "NAME": DATABASE,
            "USER": DATABASE,
            "HOST": HOST,
            "PORT": str(self.port),
            "OPTIONS": {"ssl_disabled": True},  # of which the driver reads all certificates for each connection
        }

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [program("mariadbd"), "--no-defaults", f"--datadir={self._directory / 'data'}", f"--port={self.port}"]
        command += [
            f"--tmpdir={self._directory}",
            f"--bind-address={HOST}",
            f"--socket={self._directory / 'socket'}",
            "--skip-name-resolve",
        ]
        command += [f"--init-file={self._directory / 'init.sql'}", "--innodb-flush-log-at-trx-commit=2"]
        command += ["--innodb-flush-method=nosync", "--innodb-log-file-size=8M", "--innodb-buffer-pool-size=16M"]
        command += self._options
        if os.geteuid() == 0:
            command.append("--user=root")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline, pause = monotonic() + PATIENCE, Event()
        while not answers(self.port):
            assert self._process.poll() is None, f"the server ended: {self._log.read_text()}"
            assert monotonic() < deadline, f"the server does not answer: {self._log.read_text()}"
            pause.wait(0.02)

    def kill(self) -> None:
        """End it at once."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE)

    def frozen(self) -> AbstractContextManager[None]:
        """Stop it for a while, in the middle of whatever they do."""
        assert self._process is not None
        return frozen(self._process.pid)

    def stop(self) -> None:
        """End it, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    @property
    def _log(self) -> Path:
        return self._directory / "log"


class RunningServer(MariaDBServer):
    """A MySQL server that runs already, with an empty database; tests can neither stop nor configure it."""

    def __init__(self, port: int) -> None:
        import pymysql

        self.port = port
        with pymysql.connect(host=HOST, port=port, user="root", ssl_disabled=True) as connection:
            for statement in ("DROP DATABASE IF EXISTS", "CREATE DATABASE"):
                connection.cursor().execute(f"{statement} {DATABASE}")

    @property
    def settings(self) -> dict[str, object]:
        """What Django needs to know."""
        return {**super().settings, "USER": "root"}


@contextmanager
def mariadb_server(*options: str) -> Iterator[MariaDBServer]:
    """A server with a directory of its own, and with further options of its program."""
    if port := os.environ.get("LIMITS_TESTS_MYSQL_PORT"):
        yield RunningServer(int(port))
        return
    with tempfile.TemporaryDirectory(prefix="mariadb-", ignore_cleanup_errors=True) as directory:
        server = MariaDBServer(Path(directory), *options)
        try:
            server.start()
            yield server
        finally:
            server.stop()

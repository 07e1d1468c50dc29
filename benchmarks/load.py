"""A load generator for a server on this machine: `wrk` where it is on the path, else a small one in Python."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

from benchmarks.harness import percentile

__all__ = ["CONNECTIONS", "Outcome", "Target", "python_load", "send", "visit", "wrk_load"]

CONNECTIONS: Final = 4
_HOST: Final = "127.0.0.1"
_SCRIPT: Final = Path(__file__).with_suffix(".lua")
_TIMEOUT_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go, and the header that names one of `users` at random in each, from `first` on."""

    port: int
    path: str
    header: str
    first: int
    users: int


class Outcome(NamedTuple):
    """How many responses there were in how many seconds, and the p99 of their latencies in seconds."""

    requests: int
    seconds: float
    p99: float


def send(target: Target, seconds: float) -> Outcome:
    """Send requests over 4 connections at a time.

    Raises AssertionError if a response is not 200.
    """
    return wrk_load(target, seconds) if shutil.which("wrk") else python_load(target, seconds)


def wrk_load(target: Target, seconds: float) -> Outcome:
    """`send` by wrk, for whole seconds."""
    command = ["wrk", "--threads=1", f"--connections={CONNECTIONS}", f"--duration={ceil(seconds)}s"]
    command += [f"--timeout={_TIMEOUT_SECONDS}s", f"--script={_SCRIPT}", f"http://{_HOST}:{target.port}{target.path}"]
    arguments = ["--", target.header, target.first, target.users, random.randrange(2**31)]
    done = subprocess.run([*command, *map(str, arguments)], check=False, capture_output=True, text=True)
    figures = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("figures ")]
    assert done.returncode == 0, f"wrk failed: {done.stdout}{done.stderr}"
    assert figures, f"wrk failed: {done.stdout}{done.stderr}"
    requests, spent_us, p99_us, errors = map(float, figures[0])
    assert requests > errors == 0, f"{errors:g} of {requests:g} requests failed: {done.stdout}"
    return Outcome(int(requests), spent_us / 1e6, p99_us / 1e6)


def python_load(target: Target, seconds: float) -> Outcome:
    """`send` by threads of this process, which takes more of the processor than wrk."""
    started = perf_counter()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        each = list(pool.map(lambda _: list(_latencies(target, started + seconds)), range(CONNECTIONS)))
    latencies = [latency for one in each for latency in one]
    return Outcome(len(latencies), perf_counter() - started, percentile(latencies, 0.99))


def visit(target: Target, times: int) -> list[bytes]:
    """Send requests of each user, so many over each of 4 connections, which keeps all workers of a server busy.

    Returns the responses.
    """
    users = [*range(target.first, target.first + target.users)] * times
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        return list(pool.map(partial(_send_one, target), users * CONNECTIONS))


def _latencies(target: Target, end: float) -> Iterator[float]:
    chance = random.Random()
    now = perf_counter()
    while now < end:
        _send_one(target, target.first + chance.randrange(target.users))
        yield (done := perf_counter()) - now
        now = done


def _send_one(target: Target, user: int) -> bytes:
    """Send one request, and return its response."""
    head = f"GET {target.path} HTTP/1.1\r\nHost: {_HOST}\r\n{target.header}: {user}\r\nConnection: close\r\n\r\n"
    with socket.create_connection((_HOST, target.port), _TIMEOUT_SECONDS) as connection:
        connection.sendall(head.encode())
        response = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert response.startswith(b"HTTP/1.1 200 "), response[:2000]
    return response

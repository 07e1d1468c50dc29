"""Kills a process that has a permit."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from time import perf_counter
from typing import Final

from project.demo import DemoFailed
from project.demo.client import Client, client_of_each_process
from project.demo.report import BAR_MS, Permits
from project.demo.server import WORKERS, Address
from project.demo.traffic import ADMITTED, REFUSED
from project.demo.visitors import SLOTS, STREAM

__all__ = ["kill_a_holder"]

_LONG: Final = f"{STREAM}?ms=30000"
_PATIENCE: Final = 5
"""Maximum wait for the permit as a multiple of the allowed time, so that the delay can be reported."""


def kill_a_holder(address: Address, cookies: Mapping[str, str]) -> Permits:
    """Acquire a permit in each process, kill one, and return how many permits are released, and when."""
    with ExitStack() as stack:
        holders = client_of_each_process(address, WORKERS, path="/login/", cookies=cookies)
        for holder in holders.values():
            stack.callback(holder.close)
        for process, holder in holders.items():
            _hold(process, holder)
        refused_before = _try(stack, address, cookies) == REFUSED
        victim = min(holders)
        os.kill(victim, signal.SIGKILL)
        killed = perf_counter()
        refused = 0
        while _try(stack, address, cookies) == REFUSED:
            refused += 1
            if perf_counter() - killed > _PATIENCE * BAR_MS / 1000:
                return Permits(SLOTS, victim, refused_before, (perf_counter() - killed) * 1000, refused, came_back=0)
        back_ms = (perf_counter() - killed) * 1000
        came_back = 1
        while came_back < SLOTS and _try(stack, address, cookies) == ADMITTED:
            came_back += 1
        return Permits(SLOTS, victim, refused_before, back_ms, refused, came_back)


def _hold(process: int, holder: Client) -> None:
    """Start a long response, which has a permit until its end, and check that this process sends it."""
    answer = holder.open(_LONG)
    first = answer.readline().decode().strip()
    if answer.status != ADMITTED or first != f"process {process}":
        raise DemoFailed(f"process {process} should have a permit, but responded with {answer.status} {first!r}")


def _try(stack: ExitStack, address: Address, cookies: Mapping[str, str]) -> int:
    """Try to acquire a further permit until the end of the stack, and return the status."""
    client = Client(address, cookies)
    status = client.open(_LONG).status
    if status == ADMITTED:
        stack.callback(client.close)
        return status
    # Until the client closes its connection, the server accepts no other one.
    client.close()
    if status != REFUSED:
        raise DemoFailed(f"{STREAM} responded with {status}")
    return status

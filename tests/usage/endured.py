"""A site whose processes acquire, roll up, are killed and started again; run by `test_endurance`.

It prints what it found as JSON. The truth is what limits with a window of a year say was used.
"""

from __future__ import annotations

import json
import mmap
import sys
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from threading import Event
from time import monotonic
from typing import Any, Final

import django
from django.core.management import call_command
from django.db import connections

RESOURCE: Final = "endured"
ENTITIES: Final = 7
YEAR: Final = 365 * 24 * 3600
PATIENCE: Final = 600.0

Process = Any
Counts = dict[str, int]
"""Thousandths by entity and key."""


def main(acquisitions: int, processes: int, kills: int, roll_every: float) -> None:
    """Set the site up, have it at work and killed, and say what was counted and what was admitted."""
    django.setup()
    call_command("migrate", verbosity=0)
    _set_limits()
    done = memoryview(mmap.mmap(-1, 8 * processes)).cast("q")
    share = acquisitions // processes
    running: list[Process] = []
    for turn in range(kills + 1):
        running = [_forked(_work, done, slot, share) for slot in range(processes)]
        roller = _forked(_roll, roll_every)
        _until(lambda wanted=share * processes * (turn + 1) // (kills + 1): sum(done) >= wanted)
        for one in [roller, *(running if turn < kills else [])]:
            one.kill()
            one.join()
    for one in running:
        one.join()
    admitted, counted = _admitted(), _counted()
    print(json.dumps({"admitted": admitted, **counted}))  # noqa: T201 - for the command


def _set_limits() -> None:
    from limits_app import CallLimit, RateLimit, RateLimitAlgorithm, limits

    fixed = RateLimitAlgorithm.FIXED_WINDOW
    limits.set_resource_limits(RESOURCE, [CallLimit(10**9, YEAR, fixed), RateLimit("tokens", 10**9, YEAR, fixed)])


def _forked(run: Callable[..., None], *arguments: Any) -> Process:
    connections.close_all()
    process = get_context("fork").Process(target=run, args=arguments)
    process.start()
    return process


def _until(condition: Callable[[], bool]) -> None:
    deadline, pause = monotonic() + PATIENCE, Event()
    while not condition():
        assert monotonic() < deadline, "the site does not get on"
        pause.wait(0.005)


def _work(done: Any, slot: int, share: int) -> None:
    """Acquire until the share of a slot is done, whoever has begun it; every third uses more than it asked for."""
    from limits_app import limits

    while done[slot] < share:
        number = done[slot]
        asked = number % 5
        with limits.acquire(RESOURCE, entity=f"user:{number % ENTITIES}", requested={"tokens": asked}) as acquisition:
            acquisition.update({"tokens": asked + (number % 3 == 0)})
        done[slot] = number + 1


def _roll(every: float) -> None:
    from limits_app import limits

    pause = Event()
    while True:
        limits.roll_up()
        pause.wait(every)


def _admitted() -> Counts:
    """What the limits say was used."""
    from limits_app import limits

    found: Counts = {}
    for number in range(ENTITIES):
        entity = f"user:{number}"
        for key, stats in limits.limit_set(RESOURCE, entity).get_stats().items():
            found[f"{entity} {key}"] = round(stats["used"] * 1000)
    return found


def _counted() -> dict[str, Counts]:
    """What the snapshots say, by their length."""
    from limits_app import limits
    from limits_app.models import UsageSnapshot

    for _ in range(3):  # what a killed roll-up has left comes first, and alone
        rolled = limits.roll_up()
    assert rolled.as_dict() == {"added": {"default": 0}, "failed": {}}
    found: dict[str, Counter[str]] = {"hour": Counter(), "day": Counter()}
    for one in UsageSnapshot.objects.filter(resource=RESOURCE):
        found[one.period][f"{one.entity} {one.key}"] += one.admitted_milli
    return {period: dict(counts) for period, counts in found.items()}


if __name__ == "__main__":
    given = sys.argv[1:]
    main(*map(int, given[:3]), roll_every=float(given[3]))

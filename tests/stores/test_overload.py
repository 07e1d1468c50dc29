"""Three priorities overload one limit from three processes, on the clock of their machine."""

from __future__ import annotations

from multiprocessing.connection import Connection
from time import monotonic, sleep

import pytest

from limits_app.acquiring import LimitSet, Store
from limits_app.engine import ScopedLimits, schema_of, scope_of
from limits_app.engine.limits import CallLimit, RateLimitAlgorithm
from tests.stores.races import FINISH_SECONDS, STORES, Opener
from tests.stores.support import MULTI_THREADED_FORK, running

PER_SECOND = 200
BURST = 100
KEEP = {"low": 60, "normal": 40}
SECONDS = 3.0
"""How long each of the two phases takes."""
PACES: dict[str, tuple[float | None, float | None]] = {"high": (80, 0), "normal": (None, 0), "low": (None, None)}
"""How many requests of a priority are made in a second of each phase; None: as many as are allowed."""


def shared_limit(store: Store) -> LimitSet:
    limit = CallLimit(PER_SECOND, 1, RateLimitAlgorithm.GCRA, burst=BURST, keep=KEEP)
    return LimitSet.composed([ScopedLimits(scope_of("overload", None), schema_of((limit,), store.lease_us))], store)


def make_requests(pipe: Connection, open_store: Opener, priority: str) -> None:
    """Make requests of a priority, in two phases; send how many were made and allowed, and how long it took."""
    limits = shared_limit(open_store())
    pipe.send("ready")
    for per_second in PACES[priority]:
        pipe.recv()
        made, allowed, started = 0, 0, monotonic()
        while (passed := monotonic() - started) < SECONDS:
            if per_second is not None and made >= per_second * passed:
                sleep(0.001)
                continue
            made += 1
            if limits.try_acquire(priority=priority):
                allowed += 1
            elif per_second is None:
                sleep(0.0005)
        pipe.send((made, allowed, monotonic() - started))


@pytest.mark.filterwarnings(MULTI_THREADED_FORK)
@pytest.mark.parametrize("kind", ["process", "redis"])
def test_three_priorities_share_a_limit_under_overload(kind: str) -> None:
    with STORES[kind]() as open_store:
        processes = {priority: running(make_requests, open_store, priority) for priority in PACES}
        started = {priority: process.__enter__() for priority, process in processes.items()}
        try:
            for process in started.values():
                process.hear()
            phases = []
            for _ in range(2):
                began = monotonic()
                for process in started.values():
                    process.pipe.send("go")
                results = {priority: process.hear(FINISH_SECONDS) for priority, process in started.items()}
                phases.append((results, monotonic() - began))
        finally:
            for process in processes.values():
                process.__exit__(None, None, None)
    (busy, busy_seconds), (idle, idle_seconds) = phases
    made, allowed, _ = busy["high"]
    assert allowed >= 0.99 * made, "the high priority gets all that it asks for, up to its share"
    together = sum(allowed for _, allowed, _ in busy.values())
    assert together <= BURST + PER_SECOND * busy_seconds, "never more than the limit"
    assert busy["normal"][1] > busy["low"][1], "the normal priority comes before the low one"
    _, allowed, seconds = idle["low"]
    assert allowed >= 0.95 * PER_SECOND * seconds - BURST, "the low priority takes what is idle"
    assert allowed <= BURST + PER_SECOND * idle_seconds

"""Races, many times over: `python -m tests.stores.races --runs 20` prints how often each came out exact."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic

from limits_app.core.limits import RateLimit, RateLimitAlgorithm
from limits_app.core.store import Store
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore, open_process_store
from limits_app.testing.conformance.races import in_processes, in_threads, switch_interval

CAPACITY = 1000
YEAR = 366 * 86_400


@contextmanager
def memory() -> Iterator[Store]:
    """A fresh memory store."""
    yield MemoryStore()


@contextmanager
def process() -> Iterator[Store]:
    """A fresh process store."""
    with tempfile.TemporaryDirectory() as directory:
        store = ProcessStore(directory, map_megabytes=2)
        yield store
        store.close()


def threads(make: Callable[[], object], algorithm: RateLimitAlgorithm, interval: float | None) -> int:
    """Eight threads, each of which tries as often as there is capacity."""
    with make() as store, switch_interval(interval):  # type: ignore[attr-defined]
        return sum(in_threads(store, limit(algorithm)))


def processes(method: str, algorithm: RateLimitAlgorithm, interval: float | None) -> int:
    """Four processes on one process store."""
    with tempfile.TemporaryDirectory() as directory:
        opener = partial(opened, directory, interval)
        return sum(in_processes(opener, limit(algorithm), method=method))


def opened(directory: str, interval: float | None) -> Store:
    """Open the store in a process that races."""
    if interval is not None:
        sys.setswitchinterval(interval)
    return open_process_store(Path(directory), map_megabytes=2)


def limit(algorithm: RateLimitAlgorithm) -> RateLimit:
    """One limit of 1,000 in a long window."""
    return RateLimit("units", CAPACITY, YEAR, algorithm)


RACES: dict[str, Callable[[RateLimitAlgorithm, float | None], int]] = {
    "8 threads, memory store": partial(threads, memory),
    "8 threads, process store": partial(threads, process),
    "4 processes, fork": partial(processes, "fork"),
    "4 processes, spawn": partial(processes, "spawn"),
}


def main() -> int:
    """Run all races; returns 1 when one of them was not exact."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="how often each race is run (default: 20)")
    runs = parser.parse_args().runs
    failed = False
    sys.stdout.write(f"{'race':26} {'algorithm':15} {'switching':>10} {'exact':>9} {'seconds':>8}\n")
    for name, race in RACES.items():
        for algorithm in RateLimitAlgorithm:
            for interval in (None, 1e-6):
                started = monotonic()
                exact = sum(race(algorithm, interval) == CAPACITY for _ in range(runs))
                failed = failed or exact < runs
                shown = "usual" if interval is None else "1 us"
                took = (monotonic() - started) / runs
                sys.stdout.write(f"{name:26} {algorithm:15} {shown:>10} {exact:>4} of {runs:2} {took:8.2f}\n")
                sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""Turns: `python -m tests.stores.fairness --store redis` prints how several processes share the only permit.

Within a process whoever came first is first; between processes nobody stands in line, and this says how unfair that is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from threading import Barrier, Event, Thread
from time import monotonic
from typing import NamedTuple

from limits_app.core.limits import ResourceLimit
from limits_app.core.store import Store
from tests.stores.races import STORES
from tests.stores.support import PATIENCE, limits_of, running

PROCESSES = 4
THREADS = 2
HOLD_SECONDS = 0.001


class Turns(NamedTuple):
    """How often a thread had the permit, and for how long it waited for it at most."""

    count: int
    longest_seconds: float


def turns(open_store: Callable[[], Store], seconds: float) -> list[list[Turns]]:
    """Have the threads of some processes take the only permit as often as they can; the turns of each, by process."""
    with ExitStack() as stack:
        takers = [stack.enter_context(running(_take, open_store, seconds)) for _ in range(PROCESSES)]
        for taker in takers:
            taker.hear()
        for taker in takers:
            taker.pipe.send("go")
        return [taker.hear() for taker in takers]  # type: ignore[misc]  # what `_take` has sent


def _take(pipe: Connection, open_store: Callable[[], Store], seconds: float) -> None:
    limits, found = limits_of(open_store(), ResourceLimit("db", 1)), list[Turns]()
    pipe.send("ready")
    pipe.recv()
    together, pause = Barrier(THREADS), Event()

    def take() -> None:
        together.wait()
        count, longest, since = 0, 0.0, monotonic()
        end = since + seconds
        while monotonic() < end:
            with limits.acquire(timeout=PATIENCE):
                longest = max(longest, monotonic() - since)
                count += 1
                pause.wait(HOLD_SECONDS)
            since = monotonic()
        found.append(Turns(count, longest))

    threads = [Thread(target=take) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send(found)


def main() -> None:
    """Print a line for each store."""
    names = list(STORES)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=names, nargs="+", default=names, help="which stores lend it (default: all)")
    parser.add_argument("--seconds", type=float, default=3.0, help="for how long (default: 3)")
    options = parser.parse_args()
    sys.stdout.write(f"{'store':9} {'turns of each thread, by process':48} {'longest wait':>12}\n")
    for name in options.store:
        with STORES[name]() as open_store:
            shared = turns(open_store, options.seconds)
        counts = "  ".join("/".join(str(one.count) for one in process) for process in shared)
        longest = max(one.longest_seconds for process in shared for one in process)
        sys.stdout.write(f"{name:9} {counts:48} {longest:10.2f} s\n")


if __name__ == "__main__":
    main()

"""Fairness: `python -m tests.stores.fairness --store redis` prints how several processes share the only permit.

Within a process, waiters are served in the order in which they arrived. Processes have no common order, and this
measures how evenly they share.
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

from limits_app.acquiring.store import Store
from limits_app.engine.errors import LimitTimeout
from limits_app.engine.limits import ResourceLimit
from tests.stores.races import STORES
from tests.stores.support import PATIENCE, limits_of, running

PROCESSES = 4
THREADS = 2
HOLD_SECONDS = 0.001


class Turns(NamedTuple):
    """How often a thread had the permit, how long it waited for it at most, and how many waits timed out."""

    count: int
    longest_seconds: float
    timeouts: int


class Load(NamedTuple):
    """What each process does: so many threads hold the permit for so long, again and again."""

    seconds: float
    threads: int = THREADS
    hold_seconds: float = HOLD_SECONDS
    timeout: float = PATIENCE


def turns(open_store: Callable[[], Store], load: Load) -> list[list[Turns]]:
    """Have the threads of some processes take the only permit as often as they can; the turns of each, by process."""
    with ExitStack() as stack:
        takers = [stack.enter_context(running(_take, open_store, load)) for _ in range(PROCESSES)]
        for taker in takers:
            taker.hear()
        for taker in takers:
            taker.pipe.send("go")
        return [taker.hear() for taker in takers]  # type: ignore[misc]  # what `_take` has sent


def most_to_fewest(shared: list[list[Turns]]) -> float:
    """The turns of the process that had most, divided by those of the one that had fewest."""
    counts = [sum(one.count for one in process) for process in shared]
    return max(counts) / max(min(counts), 1)


def _take(pipe: Connection, open_store: Callable[[], Store], load: Load) -> None:
    limits, found = limits_of(open_store(), ResourceLimit("db", 1)), list[Turns]()
    pipe.send("ready")
    pipe.recv()
    together, pause = Barrier(load.threads), Event()

    def take() -> None:
        together.wait()
        count, longest, timeouts, since = 0, 0.0, 0, monotonic()
        end = since + load.seconds
        while monotonic() < end:
            try:
                with limits.acquire(timeout=load.timeout):
                    longest = max(longest, monotonic() - since)
                    count += 1
                    pause.wait(load.hold_seconds)
            except LimitTimeout:
                timeouts += 1
            since = monotonic()
        found.append(Turns(count, longest, timeouts))

    threads = [Thread(target=take) for _ in range(load.threads)]
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
    parser.add_argument("--threads", type=int, default=THREADS, help=f"in each process (default: {THREADS})")
    parser.add_argument("--hold", type=float, default=HOLD_SECONDS, help="seconds of a turn (default: 0.001)")
    options = parser.parse_args()
    load = Load(options.seconds, options.threads, options.hold)
    sys.stdout.write(f"{'store':9} {'turns of each thread, by process':48} {'most/fewest':>11} {'longest wait':>12}\n")
    for name in options.store:
        with STORES[name]() as open_store:
            shared = turns(open_store, load)
        counts = "  ".join("/".join(str(one.count) for one in process) for process in shared)
        longest = max(one.longest_seconds for process in shared for one in process)
        sys.stdout.write(f"{name:9} {counts:48} {most_to_fewest(shared):11.2f} {longest:10.2f} s\n")


if __name__ == "__main__":
    main()

"""Rows about bytes: what an entity leaves behind on a resource when it is gone."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.harness import Effort, absolute
from benchmarks.references import redis_server
from benchmarks.rows import Line, Row, at_most
from benchmarks.stores import memory_store, process_store, redis_store_at
from benchmarks.subjects import OURS, THREE, calls, limits_of
from limits_app import RateLimit, RateLimitAlgorithm
from limits_app.acquiring.store import Store
from limits_app.engine.limits import LimitDefinition

__all__ = ["ROWS"]

_COUNTED: Final = "one limit, usage counted"
_CASES: Final[dict[str, Sequence[LimitDefinition]]] = {
    "one limit": [calls()],
    _COUNTED: [calls()],
    "one limit, sliding window": [calls(RateLimitAlgorithm.SLIDING_WINDOW)],
    "three limits": THREE,
}
# In a process of its own, since one process must not open a file twice.
_PAGES_IN_USE: Final = """
import lmdb, sys
pages = lmdb.open(sys.argv[1], readonly=True).stat()
print(pages["psize"] * (pages["branch_pages"] + pages["leaf_pages"] + pages["overflow_pages"]))
"""


def _in_memory(effort: Effort) -> Iterable[Line]:
    for label in _CASES:
        with memory_store() as store:
            tracemalloc.start()
            try:
                added = _added_by_each(store, label, _traced_bytes, effort)
            finally:
                tracemalloc.stop()
        yield Line(f"{OURS}, {label}", absolute([added]), "bytes", at_most(900))


def _in_process_store(effort: Effort) -> Iterable[Line]:
    for label in _CASES:
        with process_store(map_megabytes=64) as store:
            added = _added_by_each(store, label, partial(_bytes_in_file, store.directory), effort)
        yield Line(f"{OURS}, {label}", absolute([added]), "bytes", at_most(250))


def _in_redis(effort: Effort) -> Iterable[Line]:
    # 168 of one limit: 80 for its state, 48 for the key, and 40 of Redis. A key of at most 30 characters would take 32,
    # but has to be text, so that it can be read and typed, with the 128 bits that keep scopes apart.
    bars = {"one limit": 168, "three limits": 320}
    for label in _CASES:
        with redis_server() as port, redis_store_at(port) as store:
            added = _added_by_each(store, label, partial(_bytes_on_server, port), effort)
        bar = at_most(bars[label]) if label in bars else None
        yield Line(f"{OURS}, {label}", absolute([added]), "bytes", bar)


def _added_by_each(store: Store, label: str, bytes_in_use: Callable[[], int], effort: Effort) -> float:
    """How many bytes each of many entities adds that came once and left."""
    entities = effort.sized(20_000, 5_000)
    # What is there once, however many come.
    _visit(store, label, range(-100, 0))
    before = bytes_in_use()
    _visit(store, label, range(entities))
    return (bytes_in_use() - before) / entities


def _visit(store: Store, label: str, numbers: Iterable[int]) -> None:
    limits = _CASES[label]
    requested = {limit.key: 1 for limit in limits if isinstance(limit, RateLimit)}
    for number in numbers:
        limit_set = limits_of(limits, store, f"user:{number}", counts_usage=label == _COUNTED)
        with limit_set.try_acquire(requested or None) as acquisition:
            acquisition.update(requested)


def _traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _bytes_in_file(directory: Path) -> int:
    state = next(directory.rglob("data.mdb")).parent
    command = [sys.executable, "-c", _PAGES_IN_USE, str(state)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _bytes_on_server(port: int) -> int:
    from redis import Redis

    with Redis(port=port) as client:
        return sum(int(client.memory_usage(key, samples=0) or 0) for key in client.scan_iter(count=1000))


ROWS: Final = (
    Row("memory: bytes per idle entity and resource", _in_memory),
    Row("process store: bytes per idle entity and resource", _in_process_store),
    Row("Redis: bytes per idle entity and resource", _in_redis),
)

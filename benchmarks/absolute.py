"""Rows in microseconds: what one request takes on each store, for those who choose between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import repeat
from time import perf_counter_ns
from typing import Final

from benchmarks.database_store import Place, postgres, sqlite
from benchmarks.harness import Contender, Effort, Figure, absolute
from benchmarks.rows import Line, Row
from benchmarks.stores import memory_store, process_store, redis_store
from benchmarks.subjects import THREE, calls, limits_of, one_call, three_limits
from limits_app.acquiring.store import Store

_CALLS: Final = 4_000
_WARM_UP: Final = 100


@contextmanager
def _database(place: Place) -> Iterator[Store]:
    with place() as (_, opener):
        yield opener()


_STORES: Final[Mapping[str, Callable[[], AbstractContextManager[Store]]]] = {
    "memory": memory_store,
    "process": process_store,
    "redis": redis_store,
    "database, PostgreSQL": partial(_database, postgres),
    "database, SQLite": partial(_database, sqlite),
}


def _by_store(effort: Effort, *, three: bool) -> Iterable[Line]:
    for name, opened in _STORES.items():
        with opened() as store:
            limits = limits_of(THREE if three else [calls()], store, "absolute")
            times = _times(three_limits(limits) if three else one_call(limits), effort)
        yield Line(name, absolute(times, tail=True), "us")
        a_second = 1e6 * len(times) / sum(times)
        yield Line("  one after the other", Figure(a_second, a_second), "a second")


def _times(contender: Contender, effort: Effort) -> list[float]:
    """What each of many calls took, in microseconds."""
    for _ in repeat(None, _WARM_UP):
        contender.once()
    times = []
    for _ in repeat(None, effort.sized(_CALLS, _CALLS // 10)):
        started = perf_counter_ns()
        contender.once()
        times.append((perf_counter_ns() - started) / 1_000)
    return times


ROWS: Final = (
    Row("in microseconds: one call limit, acquire and release", partial(_by_store, three=False)),
    Row("in microseconds: three limits, update and release", partial(_by_store, three=True)),
)

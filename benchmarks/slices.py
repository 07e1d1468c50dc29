"""Rows of local slices: beside a script of four lines and other libraries on Redis, and with several processes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.harness import Effort, absolute, in_turns, take_turns
from benchmarks.process_store import count_calls, seconds_per_call, workers_of
from benchmarks.references import REF_REDIS, beside_redis, redis_server
from benchmarks.rows import Line, Row, at_least, at_most
from benchmarks.stores import redis_store_at
from benchmarks.subjects import OURS, one_call
from limits_app import CallLimit, LimitSet
from limits_app.acquiring.store import Store
from limits_app.engine.keys import scope_of
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["ROWS"]

_PROCESSES: Final = (1, 2, 4, 8)
_LEAST_CALLS: Final = 400_000
_SLICE_SECONDS: Final = 2


def _hot(store: Store, slice_seconds: int) -> LimitSet:
    """One limit on all requests, as a policy with slices has it (0 seconds: without)."""
    from limits_app.stores.resilient import ResilientStore
    from limits_app.stores.slices import sliced

    applied, slice_us = sliced([(CallLimit.per_hour(10**9), slice_seconds)])
    scoped = ScopedLimits(scope_of("hot", None), schema_of(applied, store.lease_us), slice_us=slice_us)
    return LimitSet.composed([scoped], ResilientStore("hot", lambda _: store).open())


def _one_call(effort: Effort) -> Iterable[Line]:
    from benchmarks.peers import limits, throttled_py

    with beside_redis() as (reference, port), redis_store_at(port) as store:
        ours = [one_call(_hot(store, _SLICE_SECONDS)), one_call(_hot(store, 0), "without slices")]
        others = [limits.on_redis(port), throttled_py.on_redis(port)]
        samples = take_turns([reference, *ours, *others], effort)
    yield Line(OURS, samples.ratio(OURS, REF_REDIS), "x ref-redis", at_most(0.05))
    yield Line("  without slices", samples.ratio("without slices", REF_REDIS), "x ref-redis")
    for other in others:
        yield Line(f"  {other.name}", samples.ratio(other.name, REF_REDIS), "x ref-redis")


def _processes(effort: Effort) -> Iterable[Line]:
    seconds = effort.turn_seconds * 10
    with redis_server() as port:
        for count in _PROCESSES:
            for target, label in ((_with_slices, OURS), (_without_slices, "  without slices")):
                with workers_of(count, target, str(port)) as workers:
                    samples = in_turns({"all": partial(seconds_per_call, workers, seconds)}, effort.rounds)
                a_second = absolute([1 / figure for figure in samples.figures("all")])
                bar = at_least(_LEAST_CALLS) if target is _with_slices and count > 1 else None
                yield Line(f"{label}, processes: {count}", a_second, "a second", bar)


def _with_slices(port: str, orders: Connection) -> None:
    _work(port, orders, _SLICE_SECONDS)


def _without_slices(port: str, orders: Connection) -> None:
    _work(port, orders, 0)


def _work(port: str, orders: Connection, slice_seconds: int) -> None:
    """Acquire from the hot limit, as `count_calls` does; the settings of a site are not needed."""
    from django.conf import settings

    settings.configure()
    with redis_store_at(int(port)) as store:
        count_calls(one_call(_hot(store, slice_seconds)).once, orders)


ROWS: Final = (
    Row("Redis: one hot limit with slices", _one_call),
    Row("Redis: processes on one hot limit, with and without slices", _processes),
)

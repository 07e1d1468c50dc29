"""Rows of the process store: beside one LMDB transaction, beside Redis, and with several processes at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from benchmarks import peers
from benchmarks.harness import Contender, Effort, Turn, in_turns, microseconds, take_turns
from benchmarks.references import REF_LMDB, REF_REDIS, ref_lmdb, ref_redis
from benchmarks.rows import Line, Row, at_least, at_most
from benchmarks.stores import process_store
from benchmarks.subjects import OURS, THREE, calls, limits_of, one_call, three_limits
from limits_app import CallLimit, LimitSet

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["ROWS", "work"]

_X_LMDB: Final = "x ref-lmdb"
_X_REDIS: Final = "x ref-redis"
_PROCESSES: Final = 4
_LEAD_SECONDS: Final = 0.02


def _one_call(effort: Effort) -> Iterable[Line]:
    with process_store() as store, ref_lmdb() as reference:
        limits = LimitSet([calls()], store=store, shared=True, mode="process")
        others = peers.between_processes()
        samples = take_turns([reference, one_call(limits), *others], effort)
    yield Line(OURS, samples.ratio(OURS, REF_LMDB), _X_LMDB, at_most(5))
    for peer in others:
        yield Line(f"  {peer.name}, in a manager process", samples.ratio(peer.name, REF_LMDB), _X_LMDB)
    yield Line(f"  {REF_LMDB} itself", microseconds(samples, REF_LMDB), "us")


def _one_call_beside_redis(effort: Effort) -> Iterable[Line]:
    with process_store() as store, ref_redis() as reference:
        limits = LimitSet([calls()], store=store, shared=True, mode="process")
        samples = take_turns([reference, one_call(limits)], effort)
    yield Line(OURS, samples.ratio(OURS, REF_REDIS), _X_REDIS, at_most(0.2))
    yield Line(f"  {REF_REDIS} itself", microseconds(samples, REF_REDIS), "us")


def _three_limits(effort: Effort) -> Iterable[Line]:
    with process_store() as store, ref_lmdb() as reference:
        limits = LimitSet(THREE, store=store, shared=True, mode="process")
        samples = take_turns([reference, three_limits(limits)], effort)
    yield Line(OURS, samples.ratio(OURS, REF_LMDB), _X_LMDB, at_most(14))


def _refused(effort: Effort) -> Iterable[Line]:
    with process_store() as store, ref_lmdb() as reference:
        limits = LimitSet([CallLimit(1, 86_400)], store=store, shared=True, mode="process")
        limits.try_acquire()
        assert not limits.try_acquire()
        samples = take_turns([reference, Contender(OURS, limits.try_acquire)], effort)
    yield Line(OURS, samples.ratio(OURS, REF_LMDB), _X_LMDB)


def _processes(effort: Effort) -> Iterable[Line]:
    seconds = effort.turn_seconds * 10
    with process_store() as store, workers_of(_PROCESSES, work, str(store.directory)) as workers:
        measures = {
            "one": partial(seconds_per_call, workers[:1], seconds),
            "all": partial(seconds_per_call, workers, seconds),
        }
        samples = in_turns(measures, effort.rounds)
    label = f"{OURS}, {_PROCESSES} processes against one"
    yield Line(label, samples.ratio("one", "all"), "x throughput", at_least(0.8))


def seconds_per_call(workers: list[Connection], seconds: float) -> Turn:
    """Seconds per call of several processes together, so that half of it is twice the throughput."""
    start = monotonic() + _LEAD_SECONDS
    for worker in workers:
        worker.send((start, start + seconds))
    return Turn(seconds / sum(worker.recv() for worker in workers))


@contextmanager
def workers_of(count: int, target: Callable[[str, Connection], None], place: str) -> Iterator[list[Connection]]:
    """Processes that are told when to start and to stop, and say how many calls they made."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        connections = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=target, args=(place, theirs), daemon=True)
            process.start()
            stack.callback(process.join, 10)
            stack.callback(ours.send, None)
            connections.append(ours)
        for connection in connections:
            connection.recv()
        yield connections


def work(directory: str, orders: Connection) -> None:
    """Acquire from one limit of a process store, as `count_calls` does."""
    from limits_app.stores.process import open_process_store

    count_calls(one_call(limits_of([calls()], open_process_store(directory), "hot")).once, orders)


def count_calls(once: Callable[[], object], orders: Connection) -> None:
    """Say when ready, then call as often as possible between the two moments of each order; None ends it."""
    orders.send(None)
    while (order := orders.recv()) is not None:
        start, end = order
        sleep(max(0.0, start - monotonic()))
        count = 0
        while monotonic() < end:
            once()
            count += 1
        orders.send(count)


ROWS: Final = (
    Row("process store: one call limit, beside LMDB", _one_call),
    Row("process store: one call limit, beside Redis", _one_call_beside_redis),
    Row("process store: three limits, update and release", _three_limits),
    Row("process store: refused", _refused),
    Row("process store: 4 processes on one hot bucket", _processes),
)

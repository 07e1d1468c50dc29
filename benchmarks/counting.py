"""Rows of counting: what a store takes for it, beside the same without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

from benchmarks.harness import Contender, Effort, take_turns
from benchmarks.rows import Line, Row, at_most
from benchmarks.stores import memory_store, process_store, redis_store
from benchmarks.subjects import THREE, calls, one_call, three_limits
from limits_app import LimitSet
from limits_app.acquiring.store import Store
from limits_app.engine.keys import scope_of
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits

__all__ = ["ROWS"]

_STORES: Final[Mapping[str, Callable[[], AbstractContextManager[Store]]]] = {
    "memory": memory_store,
    "process": process_store,
    "Redis": redis_store,
}


def _pair(store: Store, *, three: bool) -> list[Contender]:
    """The same limits, counted and not."""
    pair = []
    for name, counts in (("plain", False), ("counted", True)):
        schema = schema_of(tuple(THREE) if three else (calls(),), store.lease_us, counts)
        limits = LimitSet.composed([ScopedLimits(scope_of("bench", name), schema)], store)
        pair.append(three_limits(limits, name) if three else one_call(limits, name))
    return pair


def _counting(effort: Effort, *, three: bool) -> Iterable[Line]:
    for kind, opened in _STORES.items():
        with opened() as store:
            samples = take_turns(_pair(store, three=three), effort)
        yield Line(f"{kind} store", samples.ratio("counted", "plain"), "x uncounted", at_most(1.2))


ROWS: Final = (
    Row("counting: one call limit", partial(_counting, three=False)),
    Row("counting: three limits, update and release", partial(_counting, three=True)),
)

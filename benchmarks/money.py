"""Rows of limits in money: an acquisition whose unit is charged in money too, beside the same one of the unit alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.harness import Contender, Effort, take_turns
from benchmarks.references import beside_redis
from benchmarks.rows import Bar, Line, Row, at_most
from benchmarks.stores import redis_store_at
from limits_app import LimitSet, QuotaLimit, RateLimit
from limits_app.acquiring.store import Store
from limits_app.engine.keys import scope_of
from limits_app.engine.limits import AnyLimit
from limits_app.engine.prices import UnitPrice
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import open_process_store

__all__ = ["ROWS"]

_UNIT: Final = "unit alone"
_MONEY: Final = "unit and money"
_QUOTA: Final = "unit and a quota"
_TOKENS: Final = RateLimit("tokens", 1_000_000_000, 3600)
_PRICE: Final = UnitPrice.of("tokens", "usd", Decimal("2.5"), 1_000_000)


def _tokens(store: Store, name: str, *limits: AnyLimit, more: int = 0) -> Contender:
    """Acquire tokens, and `more` of another unit, report that fewer were used, and release."""
    requested, used = {"tokens": 10}, {"tokens": 8}
    if more:
        requested, used = requested | {"units": more}, used | {"units": more - 1}
    schema = schema_of((_TOKENS, *limits), store.lease_us, True)
    limit_set = LimitSet.composed([ScopedLimits(scope_of("bench", name), schema, prices=(_PRICE,))], store)

    def once() -> None:
        with limit_set.try_acquire(requested) as acquisition:
            acquisition.update(used)

    once()
    return Contender(name, once)


def _compared(store: Store, effort: Effort, bar: Bar | None = None) -> Iterable[Line]:
    contenders = [
        _tokens(store, _UNIT),
        _tokens(store, _MONEY, QuotaLimit.per_month("usd", 1_000_000_000)),
        _tokens(store, _QUOTA, QuotaLimit.per_month("units", 1_000_000_000), more=5),
    ]
    samples = take_turns(contenders, effort)
    yield Line(_MONEY, samples.ratio(_MONEY, _UNIT), f"x {_UNIT}", bar)
    yield Line(f"  {_QUOTA}", samples.ratio(_QUOTA, _UNIT), f"x {_UNIT}")


def _in_memory(effort: Effort) -> Iterable[Line]:
    """Without a bar: a further limit alone takes longer than that where nothing else is done."""
    yield from _compared(MemoryStore(), effort)


@contextmanager
def _process_store() -> Iterator[Store]:
    with TemporaryDirectory() as directory:
        yield open_process_store(Path(directory), map_megabytes=2)


def _in_a_process_store(effort: Effort) -> Iterable[Line]:
    with _process_store() as store:
        yield from _compared(store, effort, at_most(1.3))


def _on_redis(effort: Effort) -> Iterable[Line]:
    with beside_redis() as (_, port), redis_store_at(port) as store:
        yield from _compared(store, effort, at_most(1.3))


ROWS: Final = [
    Row("Money: an amount with its price, memory store", _in_memory),
    Row("Money: an amount with its price, process store", _in_a_process_store),
    Row("Money: an amount with its price, Redis store", _on_redis),
]

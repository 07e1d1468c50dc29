"""Rows of the database store: beside the least statement of the same driver, under the same durability."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.django_site import configure
from benchmarks.harness import Contender, Effort, microseconds, take_turns
from benchmarks.rows import Line, Row, Skipped, at_most
from benchmarks.subjects import OURS, THREE, calls, limits_of, one_call, three_limits
from limits_app import CallLimit, RateLimitAlgorithm

if TYPE_CHECKING:
    from limits_app.acquiring.limit_set import LimitSet
    from limits_app.stores.database import DatabaseStore

__all__ = ["ROWS", "Place", "postgres", "sqlite"]

_UPDATE: Final = "UPDATE reference SET count = count + 1 WHERE id = {mark} RETURNING count"
_HOT_ENTITIES: Final = 1_000
_WINDOW_SECONDS: Final = 100
_GROWN: Final = 100_000
_NUMBERS: Final = count(1)
_START_US: Final = 1_000_000_000_000_000
_WAL: Final = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"

Place = Callable[[], AbstractContextManager[tuple[Callable[[], object], Callable[..., "DatabaseStore"]]]]
"""Somewhere for a while: the least statement there, and how to open a store on it."""


@contextmanager
def postgres(*options: str) -> Iterator[tuple[Callable[[], object], Callable[..., DatabaseStore]]]:
    """A PostgreSQL server of its own; durable, as it is where nobody says otherwise."""
    import psycopg

    from tests.servers.postgres import postgres_server

    try:
        started = postgres_server(*(options or ("fsync=on", "full_page_writes=on")))
    except AssertionError as reason:
        raise Skipped(str(reason)) from reason
    with started as server, _open(server.settings) as opener:
        where = f"host=127.0.0.1 port={server.port} user=limits dbname=postgres"
        with psycopg.connect(where, autocommit=True) as connection:
            yield _reference(connection.cursor(), "%s"), opener


@contextmanager
def sqlite(pragmas: str = "") -> Iterator[tuple[Callable[[], object], Callable[..., DatabaseStore]]]:
    """A file with Django's defaults, or with what it is told to do first."""
    with tempfile.TemporaryDirectory(prefix="database-store-") as directory:
        path = Path(directory)
        options = {"OPTIONS": {"init_command": pragmas}} if pragmas else {}
        settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path / "limits.sqlite3"), **options}
        with _open(settings) as opener:
            connection = sqlite3.connect(path / "reference.sqlite3", isolation_level=None)
            connection.executescript(pragmas)
            yield _reference(connection.cursor(), "?"), opener
            connection.close()


def _reference(cursor: Any, mark: str) -> Callable[[], object]:
    cursor.execute("CREATE TABLE reference (id bigint PRIMARY KEY, count bigint)")
    cursor.execute("INSERT INTO reference VALUES (1, 0)")
    sql = _UPDATE.format(mark=mark)

    def once() -> None:
        cursor.execute(sql, (1,))
        cursor.fetchall()

    return once


@contextmanager
def _open(settings: dict[str, Any]) -> Iterator[Callable[..., DatabaseStore]]:
    """An alias of its own, with the tables of the store, on which stores can be opened."""
    configure()
    import django
    from django.db import connections

    django.setup()
    from limits_app.models import LayoutDefinition, ScopeCount, ScopeState, StoreVersion, WaitingBatch
    from limits_app.stores.database import DatabaseStore

    alias = f"database {next(_NUMBERS)}"
    connections.settings[alias] = connections.configure_settings({"default": {}, alias: settings})[alias]
    with connections[alias].schema_editor() as editor:
        for model in (LayoutDefinition, ScopeCount, ScopeState, StoreVersion, WaitingBatch):
            editor.create_model(model)
    connections[alias].close()
    with ExitStack() as stack:

        def opener(**options: Any) -> DatabaseStore:
            store = DatabaseStore(alias, lock_timeout=30, **options)
            stack.callback(store.close)
            return store

        yield opener
    del connections[alias], connections.settings[alias]


def _three_limits(place: Place, reference: str, most: float | None, effort: Effort) -> Iterable[Line]:
    unit = f"x {reference}"
    with place() as (update, opener):
        store = opener()
        contenders = [
            Contender(reference, update),
            _acquire_alone(limits_of(THREE, store, "alone")),
            one_call(limits_of([calls()], store, "call"), "one call limit"),
            three_limits(limits_of(THREE, store, "three"), "all"),
        ]
        samples = take_turns(contenders, effort)
    bar = None if most is None else at_most(most)
    yield Line(f"{OURS}, acquire: one transaction", samples.ratio("acquire", reference), unit, bar)
    yield Line(f"  {OURS}, acquire, update, release: two transactions", samples.ratio("all", reference), unit)
    yield Line(f"  {OURS}, one call limit, acquire to release", samples.ratio("one call limit", reference), unit)
    yield Line(f"  {reference} itself", microseconds(samples, reference), "us")


def _acquire_alone(limits: LimitSet) -> Contender:
    """Acquire three limits, of which one is a permit that has to be given back: before the next time, and not timed."""
    held: list[Any] = []

    def prepare() -> None:
        while held:
            acquired = held.pop()
            acquired.update({"tokens": 8})
            acquired.release()

    return Contender("acquire", lambda: held.append(limits.try_acquire({"tokens": 10})), prepare, slice_calls=5)


def _hits(place: Place, effort: Effort) -> Iterable[Line]:
    with place() as (_, opener):
        for algorithm in RateLimitAlgorithm:
            samples = take_turns([_steady(opener, algorithm, hits) for hits in (10, 5_000)], effort)
            yield Line(f"{OURS}, {algorithm}", samples.ratio("5000", "10"), "x 10 hits", at_most(1.1))


def _steady(opener: Callable[..., DatabaseStore], algorithm: RateLimitAlgorithm, hits: int) -> Contender:
    """A limit whose clock moves with each call, so that always about `hits` hits are in its window."""
    now, step = [_START_US], _WINDOW_SECONDS * 1_000_000 // hits
    limits = limits_of(
        [CallLimit(10_000, _WINDOW_SECONDS, algorithm)], opener(clock=lambda: now[0]), f"{algorithm} {hits}"
    )

    def once() -> None:
        now[0] += step
        with limits.try_acquire():
            pass

    for _ in range(hits + 1):
        once()
    return Contender(str(hits), once)


def _entities(place: Place, effort: Effort) -> Iterable[Line]:
    many = effort.sized(_GROWN, _HOT_ENTITIES * 5)
    with place() as (_, open_few), place() as (_, open_many):
        few, grown = open_few(), open_many()
        contenders = [_hot(few, "few"), _hot(grown, "many")]
        for number in range(_HOT_ENTITIES, many):
            assert limits_of([calls()], grown, f"user:{number}").try_acquire()
        for contender in contenders:  # so that both rows and plans are in caches
            for _ in range(_HOT_ENTITIES):
                contender.once()
        samples = take_turns(contenders, effort)
    label = f"{OURS}, after {many:,}, one of {_HOT_ENTITIES:,}"
    yield Line(label, samples.ratio("many", "few"), f"x {_HOT_ENTITIES:,} seen", at_most(1.2))


def _hot(store: DatabaseStore, name: str) -> Contender:
    """Those who come all the time."""
    regulars = [limits_of([calls()], store, f"user:{number}") for number in range(_HOT_ENTITIES)]
    for limits in regulars:
        assert limits.try_acquire()
    turns = cycle(regulars)

    def once() -> None:
        with next(turns).try_acquire():
            pass

    return Contender(name, once)


_FAST = partial(postgres, "fsync=off", "full_page_writes=off")
_LOGGED = partial(sqlite, _WAL)

ROWS: Final = (
    Row("PostgreSQL: three limits", partial(_three_limits, postgres, "ref-pg", 4.5)),
    Row("PostgreSQL that never syncs: three limits", partial(_three_limits, _FAST, "ref-pg", None)),
    Row("SQLite: three limits", partial(_three_limits, sqlite, "ref-sqlite", None)),
    Row("SQLite with write-ahead log: three limits", partial(_three_limits, _LOGGED, "ref-sqlite", 3.5)),
    Row("PostgreSQL: 10 against 5,000 hits in the window", partial(_hits, _FAST)),
    Row("SQLite: 10 against 5,000 hits in the window", partial(_hits, _LOGGED)),
    Row("PostgreSQL: 1,000 against 100,000 entities seen", partial(_entities, _FAST)),
    Row("SQLite: 1,000 against 100,000 entities seen", partial(_entities, _LOGGED)),
)

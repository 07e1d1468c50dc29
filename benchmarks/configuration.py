"""Rows of configuration: what it takes to write it, beside as many plain INSERT statements of the same connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.harness import Effort, Figure, absolute
from benchmarks.rows import Line, Row, Skipped, at_most
from benchmarks.site import Site
from benchmarks.subjects import OURS

__all__ = ["ROWS", "on_postgres"]

_MOST_MS: Final = 8
_MOST_SECONDS: Final = 30


@contextmanager
def on_postgres(**fields: Any) -> Iterator[Site]:
    """A site on a PostgreSQL server of its own, which is as durable as it is by default; `fields` are those of Site."""
    from tests.servers.postgres import postgres_server

    try:
        started = postgres_server("fsync=on", "full_page_writes=on")
    except AssertionError as reason:
        raise Skipped(str(reason)) from reason
    with started as server, TemporaryDirectory(prefix="benchmark-site-") as directory:
        site = Site(server.settings, **{"limits": {"STATE_DIR": directory}, **fields})
        site.run("prepare")
        yield site


_PLACES: Final[dict[str, Callable[[], AbstractContextManager[Site]]]] = {
    "PostgreSQL": on_postgres,
    "SQLite with write-ahead log": Site.on_sqlite,
}


def _written(effort: Effort) -> Iterable[Line]:
    for place, opened in _PLACES.items():
        with opened() as site:
            figures = site.run("written", effort.sized(200, 20))
        written, inserted = figures["written"], figures["inserted"]
        yield Line(f"{OURS}, {place}", absolute([us / 1000 for us in written], tail=True), "ms", at_most(_MOST_MS))
        yield Line(f"  {OURS}, {place}, beside three INSERTs", _beside(written, inserted), "x INSERTs")
        yield Line(f"  {place}, three INSERTs in a transaction", absolute([us / 1000 for us in inserted]), "ms")


def _file(effort: Effort) -> Iterable[Line]:
    entities = effort.sized(10_000, 200)
    figures = []
    for _ in range(effort.long_rounds(3)):
        with on_postgres() as site:
            figures.append(site.run("applied", entities))
    applied, inserted = ([1e-6 * figure[kind] for figure in figures] for kind in ("applied", "inserted"))
    bar = None if effort.quick else at_most(_MOST_SECONDS)
    yield Line(f"{OURS}, {entities:,} entities", absolute(applied), "s", bar)
    yield Line(f"  {OURS}, beside {3 * entities:,} INSERTs", _beside(applied, inserted), "x INSERTs")
    yield Line(f"  {3 * entities:,} INSERTs in a transaction", absolute(inserted), "s")


def _beside(own: list[float], reference: list[float]) -> Figure:
    ratios = [one / other for one, other in zip(own, reference, strict=True)]
    return Figure(median(ratios), ratios[reference.index(min(reference))])


ROWS: Final = (
    Row("writing: one entity with a policy and a limit", _written),
    Row("writing: 10,000 entities with policies from a limits file, PostgreSQL", _file),
)

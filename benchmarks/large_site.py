"""Rows of a site with a million clients: its pages, commands, rows and roll-up, in one run of at most ten minutes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from benchmarks.configuration import on_postgres
from benchmarks.harness import Effort, Figure, absolute
from benchmarks.references import redis_server
from benchmarks.rows import Line, Row, at_most
from benchmarks.site import Site
from benchmarks.subjects import OURS

__all__ = ["ROWS"]

_CLIENTS, _POLICIES, _COUNTED, _EVENTS = 1_000_000, 111_015, 1_000_000, 100_000
_FEWER: Final = 100
"""How many times fewer rows there are for a quick look."""
_SECONDS: Final = 600
_MOST_QUERIES: Final = 15
_MOST_MEGABYTES: Final = 200
_MOST_ROWS_OF_A_DAY: Final = 30_000
_COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "limits doctor": ("large_command", "doctor"),
    "limits snapshot": ("large_command", "snapshot"),
    "limits simulate, an hour": ("large_command", "simulate", "--resource", "api/1", "--since", "1h"),
    "limits status of a resource": ("large_command", "status", "api/1"),
    "limits apply, 300 clients": ("large_apply", "300"),
    "limits apply, 10,000 clients": ("large_apply", "10000"),
    "limits usage, 30 days by client": ("large_command", "usage", "--by", "entity", "--most", "20"),
    "limits denials": ("large_command", "denials"),
    "limits prune, of all but 24 hours": ("large_command", "prune"),
}
"""Programs of the site; the last one deletes what the pages show."""
_MOST_SECONDS: Final = {"limits apply, 300 clients": 10, "limits apply, 10,000 clients": 30}


def _site(effort: Effort) -> Iterable[Line]:
    with on_postgres(view="admin") as prepared:
        kept = {"USAGE_HOURS_KEPT": 24, "DENIALS_HOURS_KEPT": 24}
        site = replace(prepared, database={**prepared.database, "CONN_MAX_AGE": None})
        sizes = [effort.sized(rows, rows // _FEWER) for rows in (_CLIENTS, _POLICIES, _COUNTED, _EVENTS)]
        site.run("fill_large", *sizes, timeout=_SECONDS)
        yield from _pages(site)
        preview = site.run("large_preview", timeout=_SECONDS)
        yield Line(
            "preview of a limit on everything", Figure(preview["processors"], preview["seconds"]), "s", at_most(1)
        )
        for name, program in _COMMANDS.items():
            figures = replace(site, limits={**site.limits, **kept}).run(*program, timeout=_SECONDS)
            bar = at_most(_MOST_SECONDS[name]) if name in _MOST_SECONDS else None
            yield Line(f"{name}, seconds", absolute([figures["seconds"]]), "s", bar)
            yield Line(f"{name}, memory", absolute([figures["megabytes"]]), "MB", at_most(_MOST_MEGABYTES))


def _pages(site: Site) -> Iterator[Line]:
    """The slowest pages first, by the time of processors, which other programs of the machine do not add to."""
    pages: dict[str, Any] = site.run("large_pages", timeout=_SECONDS)
    for name, page in sorted(pages.items(), key=lambda named: -named[1]["processors"]):
        yield Line(f"page: {name}", Figure(page["processors"], page["seconds"]), "s", at_most(1))
    most = max(pages, key=lambda name: pages[name]["queries"])
    yield Line(f"most queries of a page: {most}", absolute([pages[most]["queries"]]), "queries", at_most(_MOST_QUERIES))


def _one_time(effort: Effort) -> Iterable[Line]:
    clients = effort.sized(_CLIENTS, _CLIENTS // _FEWER)
    with on_postgres() as site:
        figures = site.run("one_time_clients", clients, timeout=_SECONDS)
    bar = at_most(_MOST_ROWS_OF_A_DAY)
    yield Line(f"{OURS}, after {2 * clients:,} rows were folded", absolute([figures["rows"]]), "rows", bar)
    each = 1e6 * figures["processors"] / max(figures["folded"], 1)
    yield Line("  folding one of them, processors", absolute([each]), "us")


def _roll_up(effort: Effort) -> Iterable[Line]:
    clients = effort.sized(20_000, 1_000)
    with on_postgres() as site, redis_server() as port:
        stores: dict[str, dict[str, Any]] = {
            "process": {"KIND": "process"},
            "Redis": {"KIND": "redis", "URL": f"redis://127.0.0.1:{port}/0"},
            "database": {"KIND": "database"},
        }
        for name, store in stores.items():
            figures = site.limited(store).run("roll_up_counts", clients, timeout=_SECONDS)
            rate = clients / figures["processors"]
            yield Line(f"{name} store, for each second of processors", absolute([rate]), "counts")
            yield Line(f"  {name} store, for each second", absolute([clients / figures["seconds"]]), "counts")
            if name == "database":
                yield Line(f"  {name} store, on PostgreSQL", absolute([figures["bytes"] / clients]), "bytes a client")


ROWS: Final = (
    Row("growth: pages and commands of a site with 1,000,000 clients", _site),
    Row("growth: rows of a day with 1,000,000 one-time clients", _one_time),
    Row("growth: roll-up of the usage of 20,000 clients", _roll_up),
)

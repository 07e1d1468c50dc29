"""What 1, 50 and 1,000 machines with 20 processes each ask of Redis and of the database, by what they do.

`python -m benchmarks.fleet` measures one process with all its threads, and multiplies. The one process of the site that
has the lease of the background jobs is measured with them, and is part of each number once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from benchmarks.configuration import on_postgres
from benchmarks.references import redis_server
from benchmarks.site import Site

__all__ = ["MACHINES", "table"]

MACHINES: Final = (1, 50, 1_000)
_PROCESSES: Final = 20
_EACH_SECOND: Final = 10
"""Requests of each process."""
_SECONDS: Final = 20
_JOB_SECONDS: Final = 62
"""Longer than the background job pauses."""

Figures = Mapping[str, float]


def table(figures: Mapping[str, Figures]) -> str:
    """Return the table of the documentation: calls, queries and connections by what a process does."""
    head = ["each process", "in a second", *(f"{number:,} x {_PROCESSES}" for number in MACHINES)]
    rows = [head, ["---"] * len(head)]
    kinds = {
        "calls of Redis": "calls",
        "queries": "queries",
        "new connections to the database": "new_connections",
        "connections to Redis": "redis_connections",
        "connections to the database": "database_connections",
    }
    for name, measured in figures.items():
        for what, field in kinds.items():
            totals = [f"{measured[field] * number * _PROCESSES:,.0f}" for number in MACHINES]
            rows.append([f"{name}: {what}", f"{measured[field]:.2f}", *totals])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Measure, and print the table."""
    with on_postgres() as site, redis_server() as port:
        store = {"KIND": "redis", "URL": f"redis://127.0.0.1:{port}/0", "REPLY_TIMEOUT_SECONDS": 5}
        shared = site.limited(store)
        without_jobs = replace(shared, limits={**shared.limits, "BACKGROUND_JOBS": False})
        kinds: dict[str, tuple[Site, str, int]] = {
            "all allowed": (without_jobs, "allowed", _SECONDS),
            "all rejected": (without_jobs, "rejected", _SECONDS),
            "allowed by a pool": (without_jobs, "pool", _SECONDS),
            "with the background jobs": (shared, "allowed", _JOB_SECONDS),
        }
        figures: dict[str, Any] = {}
        for name, (measured, kind, seconds) in kinds.items():
            figures[name] = measured.run("traffic", kind, _EACH_SECOND, seconds)
            print(name, figures[name], flush=True)
    jobs = figures.pop("with the background jobs")
    print(table(figures))
    besides = {field: jobs[field] - jobs["requests"] * (field == "calls") for field in ("calls", "queries")}
    print("the background jobs of the site, in a second:", besides)


if __name__ == "__main__":
    main()

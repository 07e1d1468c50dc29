"""Tables for people, and the same as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from benchmarks.harness import Effort
from benchmarks.rows import Line

__all__ = ["Result", "heading", "table", "verdict", "write_json"]

_PACKAGES: Final = (
    "Django",
    "concurry",
    "django-ratelimit",
    "djangorestframework",
    "hiredis",
    "limits",
    "lmdb",
    "pyrate-limiter",
    "redis",
    "throttled-py",
)
_TITLES: Final = f"{'':58}{'median':>9}{'quietest':>10}{'p99':>9}  {'unit':<16}{'bar':<15}{'':>6}"


@dataclass(frozen=True, slots=True)
class Result:
    """What a row gave: its lines, or why there are none."""

    title: str
    lines: Sequence[Line] = ()
    skipped: str | None = None


def heading(effort: Effort) -> str:
    """When, where and how it was measured, above the tables."""
    busy = ", ".join(f"{load:.2f}" for load in os.getloadavg())
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, Python {platform.python_version()}, {platform.system()} "
        f"{platform.machine()}, {os.cpu_count()} cores, load {busy}\n"
        f"{effort.rounds} rounds; median and p99 are medians of the ratios of all rounds, "
        f"quietest is the ratio of the round with the fastest reference"
        + ("\na quick look: too short to be quoted" if effort.quick else "")
        + f"\n\n{_TITLES}"
    )


def table(result: Result) -> str:
    """One row's lines."""
    if result.skipped is not None:
        return f"{result.title}\n  skipped: {result.skipped}"
    return "\n".join([result.title, *map(_line, result.lines)])


def verdict(results: Iterable[Result]) -> str:
    """How many bars were met, and which were not."""
    results = list(results)
    judged = [(result, line) for result in results for line in result.lines if line.bar is not None]
    missed = [f"  {result.title}: {line.label}" for result, line in judged if not _met(line)]
    skipped = sum(result.skipped is not None for result in results)
    return "\n".join([f"{len(judged) - len(missed)} of {len(judged)} bars met, {skipped} rows skipped", *missed])


def write_json(path: Path, results: Iterable[Result], effort: Effort) -> None:
    """Everything that the tables show, and the versions of what was measured."""
    content = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "effort": asdict(effort),
        "packages": {name: _version(name) for name in _PACKAGES},
        "rows": [
            {
                "title": result.title,
                "skipped": result.skipped,
                "lines": [asdict(line) | {"met": _met(line) if line.bar else None} for line in result.lines],
            }
            for result in results
        ],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _line(line: Line) -> str:
    figure = line.figure
    tail = "" if figure.p99 is None else _number(figure.p99)
    bar = "" if line.bar is None else str(line.bar)
    mark = "" if line.bar is None else "met" if _met(line) else "MISSED"
    return (
        f"  {line.label:<56}{_number(figure.median):>9}{_number(figure.quietest):>10}{tail:>9}  "
        f"{line.unit:<16}{bar:<15}{mark:>6}"
    ).rstrip()


def _number(value: float) -> str:
    """Three digits that count."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:.3f}"


def _met(line: Line) -> bool:
    return line.bar is not None and line.bar.met_by(line.figure)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

"""`python -m benchmarks [--only TEXT ...] [--rounds N] [--turn-seconds S] [--json FILE] [--quick] [--list]`."""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks import (
    absolute,
    compiled,
    configuration,
    counting,
    database_store,
    footprint,
    growth,
    imports,
    in_process,
    large_site,
    longest,
    money,
    process_store,
    redis_store,
    resolver,
    server,
    slices,
    waiting,
    web,
    workers,
)
from benchmarks.harness import Effort
from benchmarks.report import Result, heading, table, verdict, write_json
from benchmarks.rows import Row, Skipped

ROWS: Final = (
    *absolute.ROWS,
    *in_process.ROWS,
    *compiled.ROWS,
    *process_store.ROWS,
    *redis_store.ROWS,
    *money.ROWS,
    *slices.ROWS,
    *database_store.ROWS,
    *counting.ROWS,
    *resolver.ROWS,
    *web.ROWS,
    *server.ROWS,
    *configuration.ROWS,
    *growth.ROWS,
    *large_site.ROWS,
    *longest.ROWS,
    *footprint.ROWS,
    *waiting.ROWS,
    *workers.ROWS,
    *imports.ROWS,
)


def main() -> None:
    """Measure the rows that were asked for, and print each as soon as it is known."""
    options = _parser().parse_args()
    wanted = [row for row in ROWS if any(text.lower() in row.title.lower() for text in options.only)]
    if options.list:
        print("\n".join(row.title for row in wanted))
        return
    effort = Effort(rounds=3, turn_seconds=0.01, quick=True) if options.quick else Effort()
    if options.rounds is not None:
        effort = replace(effort, rounds=options.rounds, asked=True)
    if options.turn_seconds is not None:
        effort = replace(effort, turn_seconds=options.turn_seconds)
    # Servers that were started are stopped before the end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    print(heading(effort), flush=True)
    results = []
    for row in wanted:
        results.append(_measured(row, effort))
        print(f"\n{table(results[-1])}", flush=True)
    print(f"\n{verdict(results)}")
    if options.json is not None:
        write_json(options.json, results, effort)


def _measured(row: Row, effort: Effort) -> Result:
    try:
        return Result(row.title, tuple(row.measure(effort)))
    except Skipped as reason:
        return Result(row.title, skipped=str(reason))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure limits_app beside its peers.")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="TEXT", help="only rows whose title contains one of the texts"
    )
    parser.add_argument("--rounds", type=_rounds, metavar="N", help="how often everybody has a turn")
    parser.add_argument(
        "--turn-seconds",
        type=_seconds,
        metavar="S",
        help="how long turns last (0.05); those of servers 40 times as long",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file, too")
    parser.add_argument("--quick", action="store_true", help="a look at the tables in less than a minute")
    parser.add_argument("--list", action="store_true", help="print the titles of the rows and measure nothing")
    return parser


def _rounds(text: str) -> int:
    rounds = int(text)
    if rounds < 1:
        raise argparse.ArgumentTypeError("there must be at least one round")
    return rounds


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise argparse.ArgumentTypeError("a turn must last some time")
    return seconds


if __name__ == "__main__":
    main()

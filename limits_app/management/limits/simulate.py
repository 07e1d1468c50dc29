"""`simulate`: recorded or written usage against proposed limits."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from limits_app.management.limits.arguments import AGES, age, limit, positive, resource_name
from limits_app.management.limits.files import content_of
from limits_app.management.limits.output import Output
from limits_app.management.limits.subcommand import ExitCode, Subcommand, fail
from limits_app.management.limits.tables import Table, cell
from limits_app.services.simulation import Proposal, Report, csv_events, recorded_events, replay

__all__ = ["SIMULATE"]

_HEAD: Final = ("resource", "entity", "key", "refused", "first", "last", "never")
_WIDTH: Final = 40


def _simulate(options: Namespace, out: Output) -> ExitCode:
    proposal = _proposal(options)
    if options.csv is None:
        events = recorded_events(since=options.since, until=options.until)
        report = replay(out.track(events, "Replaying"), proposal)
    else:
        with _opened(options.csv) as lines:
            events = csv_events(lines, resource=options.resource)
            report = replay(out.track(events, "Replaying"), proposal)
    _show(report, options, out)
    return ExitCode.NO if options.check and report.refused_events else ExitCode.OK


def _proposal(options: Namespace) -> Proposal:
    if options.limits and options.file:
        fail("Propose either limits or a file, not both.", ExitCode.USAGE)
    if options.file:
        return Proposal.of_content(content_of(options.file))
    return Proposal.of_limits(options.limits) if options.limits else Proposal.of_site()


@contextmanager
def _opened(path: str) -> Iterator[TextIO]:
    if path == "-":
        yield sys.stdin
        return
    try:
        file = Path(path).open(encoding="utf-8-sig", newline="")  # noqa: SIM115 - closed below
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}.")
    with file:
        yield file


def _show(report: Report, options: Namespace, out: Output) -> None:
    refusals = report.refusals()
    rows = [(one.resource, one.entity, one.key, one.count, one.first, one.last, one.never) for one in refusals]
    table = Table(_HEAD, rows[: options.most], "Nothing would be refused.")
    if options.chart:
        moments = [*report.chart()]
        table = Table(
            ("start", "events", "refused"), [(one.start, one.events, one.refused) for one in moments], "No events."
        )
    out.show(table, data=report.as_dict(), text=_chart(report) if options.chart else None)
    share = report.refused_events / report.events if report.events else 0
    who = sum(1 for one in report.subjects if one.refused)
    out.note(
        f"{report.refused_events} of {report.events} events would be refused ({share:.1%}), "
        f"for {who} of {len(report.subjects)} entities"
    )


def _chart(report: Report) -> str | None:
    """Bars of what would be admitted and refused, in time."""
    moments = [*report.chart()]
    most = max((one.events for one in moments), default=0)
    lines = []
    for one in moments:
        whole, refused = round(one.events / most * _WIDTH), round(one.refused / most * _WIDTH)
        bar = ("█" * (whole - refused) + "░" * refused).ljust(_WIDTH, "·")
        lines.append(f"{cell(one.start)}  {bar}  {one.events}" + (f", {one.refused} refused" if one.refused else ""))
    return "\n".join(lines) or None


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "limits",
        type=limit,
        nargs="*",
        default=[],
        metavar="LIMIT",
        help="limits for everybody; without any, those of the site",
    )
    parser.add_argument("--file", metavar="FILE", help="a limits file to propose instead")
    parser.add_argument("--csv", metavar="FILE", help="events to replay (- is stdin); without it, recorded usage")
    parser.add_argument("--resource", type=resource_name, help="of which the events are, where no column says it")
    parser.add_argument("--since", type=age, help=f"from when on usage is replayed, {AGES}")
    parser.add_argument("--until", type=age, help="until when usage is replayed")
    parser.add_argument("--most", type=positive, default=50, help="how many refused entities to show in a table")
    parser.add_argument("--chart", action="store_true", help="show when it would be refused instead")
    parser.add_argument("--check", action="store_true", help="exit with 3 if anything would be refused")


SIMULATE: Final = Subcommand(
    "Replay usage against proposed limits: who would be refused, how often and when.",
    _simulate,
    _arguments,
    (
        "simulate calls=60/min --csv events.csv --chart",
        "simulate --file limits.yaml --since 7d --format json",
        "simulate tpm=400k/min --csv - --resource openai/gpt-4 --check",
    ),
)

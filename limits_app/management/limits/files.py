"""`apply`, `export` and `simulate`: limits as a file, and usage replayed against proposed limits."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any, Final, TextIO

from limits_app.management.limits.arguments import AGES, age, limit, positive, resource_name
from limits_app.management.limits.output import Format, Output
from limits_app.management.limits.subcommand import ExitCode, Subcommand, actor, fail
from limits_app.management.limits.tables import Table, cell, printable
from limits_app.services import limits_file
from limits_app.services.limits_file import Change, Content, Plan, Step
from limits_app.services.simulation import Proposal, Report, csv_events, recorded_events, replay

__all__ = ["APPLY", "EXPORT", "SIMULATE", "content_of", "text_of"]

_HEAD: Final = ("change", "object", "field", "before", "after")
_MOST_WARNINGS: Final = 20
_SIGNS: Final = {Change.CREATE: "+", Change.UPDATE: "~", Change.DELETE: "-"}


def text_of(path: str) -> str:
    """The text of a file; that of stdin for a dash. Ends the command where it cannot be read."""
    try:
        if path == "-":
            return sys.stdin.read(limits_file.MAX_CHARACTERS + 1)
        with Path(path).open(encoding="utf-8") as file:
            return file.read(limits_file.MAX_CHARACTERS + 1)
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}.")
    except UnicodeDecodeError as error:
        fail(f"{path} is no text in UTF-8: {error.reason} at byte {error.start}.", ExitCode.USAGE)


def content_of(path: str) -> Content:
    """What a limits file says; ends the command where YAML cannot be read at all."""
    try:
        return limits_file.read_content(text_of(path), name=path)
    except ImportError:
        fail("Limits as a file need a package: pip install 'limits-app[yaml]'.")


def _apply(options: Namespace, out: Output) -> ExitCode:
    content = content_of(options.file)
    if options.dry_run or options.check:
        planned = limits_file.plan(content, file=options.file)
        _show(planned, out)
        return ExitCode.NO if options.check and planned.drift else ExitCode.OK
    planned = limits_file.plan(content, file=options.file)
    if planned.of(Change.DELETE) and not options.yes:
        _show(planned, out)
        out.confirm(f"Delete {len(planned.of(Change.DELETE))} and apply the rest?", yes=False)
    done = limits_file.apply(
        content,
        file=options.file,
        actor=actor(),
        reason=options.reason,
        expected=planned,
    )
    _show(done, out)
    return ExitCode.OK


def _show(planned: Plan, out: Output) -> None:
    """What changes on stdout; how much, and what it drops, on stderr."""
    changing = [step for step in planned.steps if step.change is not Change.UNCHANGED]
    rows = [row for step in changing for row in _rows(step)]
    lines = [line for step in changing for line in _lines(step)]
    data = {
        "name": planned.name,
        "counts": planned.counts(),
        "changes": [_as_data(step) for step in changing],
        "warnings": [*planned.warnings],
    }
    out.show(Table(_HEAD, rows, "Nothing changes: it is so already."), data=data, text="\n".join(lines) or None)
    if out.form in (Format.TABLE, Format.CSV):
        for warning in planned.warnings[:_MOST_WARNINGS]:
            out.note(printable(f"warning: {warning}."))
        if more := planned.warnings[_MOST_WARNINGS:]:
            out.note(f"warning: and {len(more)} more; --format json has all of them.")
    out.note(", ".join(f"{count} {change}" for change, count in planned.counts().items()))


def _rows(step: Step) -> list[tuple[object, ...]]:
    told: list[tuple[object, ...]] = [(step.change.value, step.entry.label, *one) for one in step.differences()]
    return told or [(step.change.value, step.entry.label, "", "", "")]


def _lines(step: Step) -> list[str]:
    """The change as people read it: one line for the object, and one for each field."""
    lines = [f"{_SIGNS[step.change]} {step.entry.label}"]
    for field, before, after in step.differences():
        shown = {Change.CREATE: cell(after), Change.DELETE: cell(before)}
        lines.append(f"    {field}: " + shown.get(step.change, f"{cell(before) or '-'} -> {cell(after) or '-'}"))
    return lines


def _as_data(step: Step) -> dict[str, Any]:
    fields = {field: {"before": before, "after": after} for field, before, after in step.differences()}
    return {"change": step.change.value, "object": step.entry.label, "fields": fields}


def _export(options: Namespace, out: Output) -> ExitCode:
    if out.form is Format.CSV:
        fail("A limits file is YAML or JSON: leave --format out, or say --format json.", ExitCode.USAGE)
    if options.schema:
        out.write(json.dumps(limits_file.schema(), indent=2))
        return ExitCode.OK
    if out.form is Format.JSON:
        out.write(json.dumps(limits_file.exported(name=options.name), indent=2, ensure_ascii=False))
    else:
        try:
            out.write(limits_file.export(name=options.name))
        except ImportError:
            fail("YAML needs a package: pip install 'limits-app[yaml]'. Or say --format json.")
    for name, count in limits_file.left_out(name=options.name).items():
        out.note(printable(f"Left out: {count} of the file {name!r}, which export --name {quote(name)} writes."))
    return ExitCode.OK


def _applying(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a limits file in YAML or JSON; - is stdin")
    parser.add_argument("--check", action="store_true", help="change nothing, and exit with 3 if anything would change")


def _exporting(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--name",
        default=limits_file.DEFAULT_NAME,
        help="what the file is called inside; what belongs to files of other names is left out",
    )
    parser.add_argument("--schema", action="store_true", help="write the JSON schema of such files instead")


APPLY: Final = Subcommand(
    "Make the site's limits those of a file.",
    _apply,
    _applying,
    ("apply limits.yaml --dry-run", "apply limits.yaml --check", "apply limits.yaml --yes --reason 'new contract'"),
    writes=True,
)
EXPORT: Final = Subcommand(
    "Write the site's limits as a file, which `apply` reads; those of files of other names stay out of it.",
    _export,
    _exporting,
    ("export > limits.yaml", "export --format json", "export --schema > limits.schema.json"),
)


_REFUSALS: Final = ("resource", "entity", "key", "refused", "first", "last", "never")
_WIDTH: Final = 40


def _simulate(options: Namespace, out: Output) -> ExitCode:
    proposal = _proposal(options)
    if options.csv is None:
        events = recorded_events(since=options.since, until=options.until, resource=options.resource)
        report = replay(out.track(events, "Replaying"), proposal)
    else:
        with _opened(options.csv) as lines:
            events = csv_events(lines, resource=options.resource)
            report = replay(out.track(events, "Replaying"), proposal)
    _show_report(report, options, out)
    return ExitCode.NO if options.check and report.refuses else ExitCode.OK


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


def _show_report(report: Report, options: Namespace, out: Output) -> None:
    refusals = report.refusals()
    rows = [(one.resource, one.entity, one.key, one.count, one.first, one.last, one.never) for one in refusals]
    table = Table(_REFUSALS, rows[: options.most], "Nothing would be refused.")
    if options.chart:
        moments = [(one.start, one.asked, one.refused) for one in report.chart()]
        table = Table(("start", report.charted, "refused"), moments, "There is nothing to replay.")
    out.show(table, data=report.as_dict(), text=_chart(report) if options.chart else None)
    for unit, total in report.totals.items():
        out.note(
            f"{total.refused} of {total.asked} {unit} would be refused ({total.share:.1%}), "
            f"for {report.entities_refused} of {report.entities} entities"
        )


def _chart(report: Report) -> str | None:
    """Bars of what would be admitted and refused, in time."""
    moments = [*report.chart()]
    most = max((one.asked for one in moments), default=0)
    lines = []
    for one in moments:
        whole, refused = round(one.asked / most * _WIDTH), round(one.refused / most * _WIDTH)
        bar = ("█" * (whole - refused) + "░" * refused).ljust(_WIDTH, "·")
        lines.append(f"{cell(one.start)}  {bar}  {one.asked}" + (f", {one.refused} refused" if one.refused else ""))
    return "\n".join(lines) or None


def _takes_simulation(parser: ArgumentParser) -> None:
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
    parser.add_argument(
        "--resource",
        type=resource_name,
        help="recorded usage of this one; of events without a column for it",
    )
    parser.add_argument("--since", type=age, help=f"from when on usage is replayed, {AGES}")
    parser.add_argument("--until", type=age, help="until when usage is replayed")
    parser.add_argument("--most", type=positive, default=50, help="how many refused entities to show in a table")
    parser.add_argument("--chart", action="store_true", help="show when it would be refused instead")
    parser.add_argument("--check", action="store_true", help="exit with 3 if anything would be refused")


SIMULATE: Final = Subcommand(
    "Replay usage against proposed limits: who would be refused, how often and when.",
    _simulate,
    _takes_simulation,
    (
        "simulate calls=60/min --csv events.csv --chart",
        "simulate --file limits.yaml --since 7d --format json",
        "simulate tpm=400k/min --csv - --resource openai/gpt-4 --check",
    ),
)

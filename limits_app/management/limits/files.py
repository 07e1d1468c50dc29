"""`apply`, `export` and `simulate`: limits files, and replaying usage against proposed limits."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any, Final

from limits_app.management.limits.arguments import AGES, age, argument, limit, positive, resource_name
from limits_app.management.limits.output import Format, Output, Table, bar, cell
from limits_app.management.limits.subcommand import ExitCode, actor, fail, subcommand
from limits_app.models import AlertRule, Candidate, CandidateState
from limits_app.services import block_confirmation, limits_file
from limits_app.services.limits_file import Content, FilePlan, PlannedChange, Step
from limits_app.services.simulation.events import SimulatedRequest, csv_events, recorded_events
from limits_app.services.simulation.proposal import Proposal
from limits_app.services.simulation.replay import replay
from limits_app.services.simulation.simulation_report import SimulationReport

_HEAD: Final = ("change", "object", "field", "before", "after")
_MOST_WARNINGS: Final = 20
_SIGNS: Final = {PlannedChange.CREATE: "+", PlannedChange.UPDATE: "~", PlannedChange.DELETE: "-"}


def _content_of(path: str) -> Content:
    """Read the content of a limits file, or of stdin for "-"."""
    try:
        if path == "-":
            text = sys.stdin.read(limits_file.MAX_CHARACTERS + 1)
        else:
            with Path(path).open(encoding="utf-8") as file:
                text = file.read(limits_file.MAX_CHARACTERS + 1)
        return limits_file.read_content(text, name=path)
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}.")
    except UnicodeDecodeError as error:
        fail(f"{path} must be UTF-8 text: {error.reason} at byte {error.start}.", ExitCode.USAGE)
    except ImportError:
        fail("Limits files require PyYAML: pip install 'limits-app[yaml]'.")


@subcommand(
    "Apply a limits file to the site.",
    argument("file", metavar="FILE", help="limits file in YAML or JSON; - for stdin"),
    argument("--check", action="store_true", help="change nothing; exit with 3 if anything would change"),
    examples=("apply limits.yaml --dry-run", "apply limits.yaml --check", "apply limits.yaml --yes --reason 'new'"),
    writes=True,
)
def apply(options: Namespace, out: Output) -> ExitCode:
    """Apply a limits file, or show what that would change."""
    with out.working(f"Reading {options.file}"):
        content = _content_of(options.file)
    planned = None
    if options.dry_run or options.check or not options.yes:
        with out.working(f"Comparing {len(content.entries)} objects"):
            planned = limits_file.plan(content, file=options.file)
    if planned and (options.dry_run or options.check):
        _show(planned, out)
        return ExitCode.NO if options.check and planned.drift else ExitCode.OK
    if planned and (question := _question(planned)):
        _show(planned, out)
        out.confirm(question, yes=False)
    with out.progress(f"Applying {len(content.entries)} objects") as progress:
        values = {"file": options.file, "actor": actor(), "reason": options.reason}
        applied = limits_file.apply(content, **values, expected=planned, progress=progress)
    _show(applied, out)
    return ExitCode.OK


def _question(planned: FilePlan) -> str:
    """What to ask before the file is applied: it deletes objects, or blocks others than is meant; empty for nothing."""
    deleted, warning = len(planned.of(PlannedChange.DELETE)), block_confirmation.warning(map(_change, planned.steps))
    if deleted:
        return f"{warning} Delete {deleted} and apply the rest?".lstrip()
    return f"{warning} Apply it?" if warning else ""


def _change(step: Step) -> block_confirmation.BlockedChange:
    before, after = (None if entry is None else entry.values for entry in (step.stored, step.proposed))
    return step.entry.section.model, before, after


def _show(planned: FilePlan, out: Output) -> None:
    """Write the changes to stdout; the counts and warnings to stderr."""
    changing = [step for step in planned.steps if step.change is not PlannedChange.UNCHANGED]
    rows = [row for step in changing for row in _rows(step)]
    lines = [line for step in changing for line in _lines(step)]
    data = {
        "name": planned.name,
        "counts": planned.counts(),
        "changes": [_as_data(step) for step in changing],
        "warnings": [*planned.warnings],
    }
    out.show(Table(_HEAD, rows, "No changes."), data=data, text="\n".join(lines) or None)
    if out.form in (Format.TABLE, Format.CSV):
        for warning in planned.warnings[:_MOST_WARNINGS]:
            out.note(f"warning: {warning}.")
        if more := planned.warnings[_MOST_WARNINGS:]:
            out.note(f"warning: and {len(more)} more; --format json has all of them.")
    out.note(", ".join(f"{count} {change}" for change, count in planned.counts().items()))


def _rows(step: Step) -> list[tuple[object, ...]]:
    told: list[tuple[object, ...]] = [
        (step.change.value, step.entry.label, *difference) for difference in step.differences()
    ]
    return told or [(step.change.value, step.entry.label, "", "", "")]


def _lines(step: Step) -> list[str]:
    """A change as text: one line for the object, and one for each field."""
    lines = [f"{_SIGNS[step.change]} {step.entry.label}"]
    for field, before, after in step.differences():
        shown = {PlannedChange.CREATE: cell(after), PlannedChange.DELETE: cell(before)}
        lines.append(f"    {field}: " + shown.get(step.change, f"{cell(before) or '-'} -> {cell(after) or '-'}"))
    return lines


def _as_data(step: Step) -> dict[str, Any]:
    fields = {field: {"before": before, "after": after} for field, before, after in step.differences()}
    return {"change": step.change.value, "object": step.entry.label, "fields": fields}


@subcommand(
    "Export the site's limits as a file for `apply`; objects that belong to other files are omitted.",
    argument("--name", default=limits_file.DEFAULT_NAME, help="the name inside the file"),
    argument("--schema", action="store_true", help="write the JSON schema of limits files instead"),
    examples=("export > limits.yaml", "export --format json", "export --schema > limits.schema.json"),
)
def export(options: Namespace, out: Output) -> None:
    """Write a limits file to stdout."""
    if out.form is Format.CSV:
        fail("A limits file is YAML or JSON: omit --format or use --format json.", ExitCode.USAGE)
    if options.schema:
        out.write(json.dumps(limits_file.schema(), indent=2))
        return
    write = limits_file.export_json if out.form is Format.JSON else limits_file.export
    try:
        out.write_pieces(write(name=options.name))
    except ImportError:
        fail("YAML requires PyYAML: pip install 'limits-app[yaml]', or use --format json.")
    for name, count in limits_file.left_out(name=options.name).items():
        out.note(f"Omitted: {count} objects of the file {name!r}; export them with --name {quote(name)}.")
    if Candidate.objects.filter(state=CandidateState.TESTING).exists():
        out.note("Omitted: the candidates of policies; `limits candidates list` shows them.")
    if AlertRule.objects.exclude(secret="").exists():
        out.note("Omitted: the secrets of webhooks of alert rules; enter them in the admin of another site.")


_REJECTIONS: Final = ("resource", "entity", "key", "rejected", "first", "last", "never")


@subcommand(
    "Replay usage against proposed limits and report what would be rejected.",
    argument(
        "limits",
        type=limit,
        nargs="*",
        default=[],
        metavar="LIMIT",
        help="proposed limits for every entity; the default is the site's limits",
    ),
    argument("--file", help="limits file with the proposed limits"),
    argument("--csv", metavar="FILE", help="events to replay (- for stdin); the default is recorded usage"),
    argument("--resource", type=resource_name, help="of recorded usage, or of events without that column"),
    argument("--since", type=age, help=f"start of the replayed usage, {AGES}"),
    argument("--until", type=age, help="end of the replayed usage"),
    argument("--most", type=positive, default=50, help="number of rejected entities to show in the table"),
    argument("--chart", action="store_true", help="show rejections over time instead"),
    argument("--check", action="store_true", help="exit with 3 if anything would be rejected"),
    examples=(
        "simulate calls=60/min --csv events.csv --chart",
        "simulate --file limits.yaml --since 7d --format json",
        "simulate tpm=400k/min --csv - --resource openai/gpt-4 --check",
    ),
)
def simulate(options: Namespace, out: Output) -> ExitCode:
    """Replay usage, or events of a file."""
    report = replay(out.track(_events(options), "Replaying"), _proposal(options))
    _show_report(report, options, out)
    return ExitCode.NO if options.check and report.refuses else ExitCode.OK


def _proposal(options: Namespace) -> Proposal:
    if options.limits and options.file:
        fail("Propose either limits or a file, not both.", ExitCode.USAGE)
    if options.file:
        return Proposal.of_content(_content_of(options.file))
    if options.limits:
        return Proposal.of_limits(options.limits)
    return Proposal.of_site(resource=options.resource if options.csv is None else None)


def _events(options: Namespace) -> Iterator[SimulatedRequest]:
    """Recorded usage, or the events of a file or of stdin."""
    if options.csv is None:
        yield from recorded_events(since=options.since, until=options.until, resource=options.resource)
    elif options.csv == "-":
        yield from csv_events(sys.stdin, resource=options.resource)
    else:
        try:
            with Path(options.csv).open(encoding="utf-8-sig", newline="") as lines:
                yield from csv_events(lines, resource=options.resource)
        except OSError as error:
            fail(f"{options.csv} cannot be read: {error.strerror}.")


def _show_report(report: SimulationReport, options: Namespace, out: Output) -> None:
    rows = [
        (refusal.resource, refusal.entity, refusal.key, refusal.count, refusal.first, refusal.last, refusal.never)
        for refusal in report.refusals()
    ]
    table, text = Table(_REJECTIONS, rows[: options.most], "No request would be rejected."), None
    if options.chart:
        moments = [(point.start, point.asked, point.refused) for point in report.chart()]
        table = Table(("start", report.charted, "rejected"), moments, "There is nothing to replay.")
        most = max((asked for _, asked, _ in moments), default=0)
        text = "\n".join(
            f"{cell(start)}  {bar(asked, most, refused)}  {asked}" + (f", {refused} rejected" if refused else "")
            for start, asked, refused in moments
        )
    out.show(table, data=report.as_dict(), text=text or None)
    for unit, total in report.totals.items():
        out.note(
            f"{total.refused} of {total.asked} {unit} would be rejected ({total.share:.1%}), "
            f"for {report.entities_refused} of {report.entities} entities"
        )
    for currency, (asked, refused) in report.costs.items():
        out.note(f"It would cost {asked:f} {currency.upper()}, of which {refused:f} would be rejected")

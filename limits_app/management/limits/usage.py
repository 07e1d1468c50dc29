"""`usage`, `denials`, `why`, `snapshot`, `prune` and `alerts`: usage, rejections and periodic work."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

from django.utils.timezone import now

from limits_app import services as limits
from limits_app.management.limits.arguments import AGES, ENTITY, OF_RESOURCE, age, argument, key, minute, past, positive
from limits_app.management.limits.output import Output, Table, bar, cell
from limits_app.management.limits.subcommand import SOURCE, ExitCode, actor, fail, note_unused, subcommand
from limits_app.services.costs import cost_cells
from limits_app.services.limit_words import limit_keys, limit_name
from limits_app.services.rejections import Rejection, rejections
from limits_app.services.retention import prunable, prune_audit
from limits_app.services.usage import add_counts
from limits_app.usage.reading import By, Use

_MOST_SHOWN: Final = 100
_TIMES: Final = f"a minute of the last 24 hours (10:03), or {AGES}"
_REJECTION: Final = ("minute", "entity", "name", "resource", "limit", "count", "why", "audit_event")
_OF_REJECTION: Final = attrgetter(
    *("count.minute", "count.entity", "name", "count.resource", "count.key", "count.count", "why", "event_number")
)
_OF: Final = (
    OF_RESOURCE,
    argument("--entity", help="an empty value selects the site itself"),
    argument("--key", type=key, help="only this limit"),
)
_BY: Final = {By.PERIOD: "start", By.RESOURCE: "resource", By.ENTITY: "entity", By.PLAN: "plan", By.BELOW: "below"}


@subcommand(
    "show allowed amounts and rejections, as of the last snapshot",
    *_OF,
    argument("--plan", help="only clients that were served by this plan; an empty value: by none"),
    argument("--period", choices=["hour", "day"], default="day"),
    argument("--since", type=age, metavar="WHEN", help=f"{AGES}; the default is 30d, or 48h for --period hour"),
    argument("--until", type=age, metavar="WHEN", help=AGES),
    argument("--by", choices=[*map(str, _BY)], action="append", help="field to group by; may be repeated"),
    argument("--most", type=positive, metavar="ROWS", help="only this many rows, the largest first"),
    argument("--cost", action="store_true", help="add what the amounts cost, at the prices of the hours of their use"),
    argument("--chart", action="store_true", help="draw a bar chart, grouped by period unless --by is given"),
    examples=(
        "usage --by entity --key tpm --most 10",
        "usage --resource openai/gpt-4 --period hour --since 24h --chart",
        "usage --by resource --by entity --by period --format csv > usage.csv",
        "usage --cost --by entity --by plan --since 2026-01-01 --until 2026-02-01 --format csv > costs.csv",
    ),
)
def usage(options: Namespace, out: Output) -> None:
    """Show usage."""
    by = options.by or (["period"] if options.chart else ["resource"])
    uses = limits.usage(
        options.resource,
        entity=options.entity,
        key=limit_keys(options.key),
        plan=options.plan,
        period=options.period,
        since=options.since,
        until=options.until,
        by=by,
        most=options.most,
        cost=options.cost,
    )
    columns = [column for word, column in _BY.items() if word in by]
    fields = (*columns, "bucket", "key", "admitted", "refused", "refused_share")
    rows = [tuple(getattr(use, name) for name in fields) for use in uses]
    head = (*columns, "bucket", "key", "admitted", "rejected", "rejected_share")
    if options.cost:
        head = (*head, "cost", "currency")
        rows = [(*row, *cells) for row, use in zip(rows, uses, strict=True) for cells in cost_cells(use.cost)]
    table = Table(head, rows, "No usage. Run `limits snapshot` to add the latest counts of the stores.")
    out.show(table, data=[use.as_dict() for use in uses], text=_chart(uses, columns) if options.chart else None)


def _chart(uses: Sequence[Use], columns: Sequence[str]) -> str:
    """A bar chart for each limit, earliest first; each limit has a separate scale."""
    lines = []
    ordered = sorted(uses, key=lambda use: (use.key, [cell(getattr(use, column)) for column in columns]))
    for name, group in groupby(ordered, key=lambda use: use.key):
        of_limit = list(group)
        labels = [" ".join(filter(None, (cell(getattr(use, column)) for column in columns))) for use in of_limit]
        most, width = max(use.admitted for use in of_limit), max(map(len, labels))
        lines.append(f"{limit_name(name)}, at most {most}")
        for label, use in zip(labels, of_limit, strict=True):
            rejected = f", {use.refused} rejected" if use.refused else ""
            lines.append(f"  {label.ljust(width)}  {bar(use.admitted, most)}  {use.admitted}{rejected}")
    return "\n".join(lines) or "No usage."


@subcommand(
    "list rejections with their reasons, the latest first",
    argument("--since", type=minute, metavar="WHEN", help=f"{_TIMES}; the default is 48h"),
    argument("--until", type=minute, metavar="WHEN", help=_TIMES),
    *_OF,
    argument("--request-id", metavar="ID", help="the id of a request, as its rejection showed it"),
    argument("--most", type=positive, default=_MOST_SHOWN, metavar="ROWS", help="only this many rows, the latest"),
    examples=("denials --since 10m", "denials --since yesterday --until today --entity user:42"),
)
def denials(options: Namespace, out: Output) -> None:
    """List rejections."""
    add_counts()
    asked = {"entity": options.entity, "key": limit_keys(options.key), "since": options.since, "until": options.until}
    asked["request_id"] = options.request_id
    rejected: list[Rejection] = []
    while len(rejected) < options.most:
        step = min(options.most - len(rejected), _MOST_SHOWN)
        some = rejections(options.resource, **asked, offset=len(rejected), most=step)
        rejected += some
        if len(some) < step:
            break
    out.show(_rejection_table(rejected, "No request was rejected in this time."))


@subcommand(
    "show why an entity was rejected, in the last hour or in a minute",
    ENTITY,
    argument("--at", type=minute, metavar="WHEN", help=f"{_TIMES}; the default is the last hour"),
    OF_RESOURCE,
    examples=("why user:7", "why user:7 --at 10:03"),
)
def why(options: Namespace, out: Output) -> None:
    """Say why an entity was rejected."""
    add_counts()
    since, until, time = now() - timedelta(hours=1), None, "last hour"
    if options.at is not None:
        since = options.at.replace(second=0, microsecond=0)
        until = since + timedelta(minutes=1)
        time = f"minute {since:%Y-%m-%d %H:%M}"
    rejected = rejections(options.resource, entity=options.entity, since=since, until=until)
    nothing = f"No request of {options.entity} was rejected in the {time}. `limits denials` lists those of 48 hours."
    out.show(_rejection_table(rejected, nothing), text="\n".join(map(_sentence, rejected)) if rejected else None)
    if not rejected:
        note_unused(options.entity, out)


def _sentence(rejection: Rejection) -> str:
    number = rejection.event_number
    source = "" if number is None else f" The policy is that of audit event {number} (limits audit show {number})."
    times = "once" if rejection.count.count == 1 else f"{rejection.count.count} times"
    return f"{rejection.count.minute:%Y-%m-%d %H:%M %Z}, {times}: {rejection.why}{source}"


def _rejection_table(rejected: Sequence[Rejection], nothing: str) -> Table:
    return Table(_REJECTION, [*map(_OF_REJECTION, rejected)], nothing)


@subcommand(
    "add the counts of the stores to the usage snapshots; safe to run at any time",
    examples=("snapshot", "snapshot --all"),
    periodic=True,
)
def snapshot(options: Namespace, out: Output) -> None:
    """Roll up usage."""
    with out.counter("Adding counts") as show:
        done = limits.roll_up(progress=show)
    rows = [(alias, added, "") for alias, added in done.added.items()]
    rows += [(alias, 0, why) for alias, why in done.failed.items()]
    out.show(Table(("store", "counts", "error"), rows, "There are no stores with usage counts."), data=done.as_dict())
    if done.failed:
        fail(f"Unavailable stores: {', '.join(done.failed)}. Their counts are added by a later snapshot.")


@subcommand(
    "delete usage and rejections that are older than the retention settings",
    argument("--archive", type=Path, metavar="FOLDER", help="archive the rows here first, as gzipped JSON lines"),
    argument("--audit-before", type=past, metavar="WHEN", help=f"also delete audit events before this time; {AGES}"),
    examples=("prune --dry-run", "prune --yes --archive /var/archive/limits --audit-before 365d"),
    writes=True,
    periodic=True,
)
def prune(options: Namespace, out: Output) -> None:
    """Delete old usage, rejections and audit events."""
    if options.reason and options.audit_before is None:
        fail("--reason requires --audit-before: deleting usage is not recorded in the audit log.", ExitCode.USAGE)
    if options.dry_run:
        _show_pruned(prunable(audit_before=options.audit_before), out)
        out.note("This was a dry run: nothing was deleted.")
        return
    kept = f"into {options.archive} first" if options.archive else "without an archive"
    out.confirm(f"Delete data that is older than the retention settings, {kept}?", yes=options.yes)
    try:
        with out.counter("Deleting rows") as show:
            # The audit log first, because its date can be rejected.
            events = {} if options.audit_before is None else {"audit": _prune_audit(options, show)}
            pruned = limits.prune_usage(archive=options.archive, progress=lambda table, deleted: show(deleted))
    except OSError as error:
        fail(f"Cannot write the archive: {error}. Nothing more was deleted.")
    if "audit" in events:
        pruned["audit"] = pruned.get("audit", 0) + events["audit"]
    _show_pruned(pruned, out)


def _show_pruned(pruned: dict[str, int], out: Output) -> None:
    out.show(Table(("what", "rows"), [*pruned.items()], "Nothing to delete: the retention settings keep everything."))


def _prune_audit(options: Namespace, show: Callable[[int], object]) -> int:
    return prune_audit(
        options.audit_before,
        archive=options.archive,
        actor=actor(),
        source=SOURCE,
        reason=options.reason,
        progress=lambda table, deleted: show(deleted),
    )

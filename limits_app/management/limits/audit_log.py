"""`audit`: list, show, verify, protect and sign the audit log, and revert changes."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from textwrap import shorten
from typing import Final

from django.db.models import Q

from limits_app import audit
from limits_app.management.limits.arguments import AGES, age, argument, positive
from limits_app.management.limits.output import Format, Output, Table, cell
from limits_app.management.limits.subcommand import (
    ExitCode,
    Subcommand,
    change_table,
    changes_of,
    changing,
    confirm,
    fail,
    subcommand,
)
from limits_app.models import AuditEvent
from limits_app.models.audit_log import CONTENT
from limits_app.services import block_confirmation

_EVENTS: Final = ("number", "when", "actor", "source", "verb", "object", "changes", "reason")
_SHORTENED: Final = 80
"""Maximum length of a change in `audit list`; `audit show` has the full text."""
_HEX: Final = frozenset("0123456789abcdef")
_NUMBER: Final = argument("number", type=positive, metavar="NUMBER", help="as `limits audit list` shows it")


def _known(text: str) -> tuple[int, str]:
    number, _, digest = text.partition(":")
    if not (number.isascii() and number.isdigit() and len(digest) == 64 and {*digest} <= _HEX):
        raise ArgumentTypeError(f"{text!r} must be a number and a digest, such as 17:9f86d0..., as verify shows them")
    return int(number), digest


@subcommand(
    "list the latest changes",
    argument("--object", metavar="NAME", help='object name as in events, such as "resource api"'),
    argument("--actor", metavar="WHO"),
    argument("--since", type=age, metavar="WHEN", help=AGES),
    argument("--most", type=positive, default=20, metavar="ROWS", help="only this many rows, the latest first (20)"),
    examples=("audit list", 'audit list --object "resource api" --since 7d'),
)
def _list(options: Namespace, out: Output) -> None:
    events = AuditEvent.objects.order_by("-number")
    if options.object is not None:
        kind, _, label = options.object.partition(" ")
        events = events.filter(Q(object_label=options.object) | Q(object_type=kind, object_label=label))
    filters = {"actor": options.actor, "when__gte": options.since}
    events = events.filter(**{field: value for field, value in filters.items() if value is not None})
    latest = list(events[: options.most])
    most = _SHORTENED if out.form is Format.TABLE else None
    rows = [_row(event, most) for event in latest]
    out.show(Table(_EVENTS, rows, "No changes."), data=[*map(_data, latest)])


@subcommand("show one change in full", _NUMBER, examples=("audit show 17 --format json",))
def _show(options: Namespace, out: Output) -> None:
    event = _found(options.number)
    out.show(change_table([event]), data=_data(event))
    out.note(f"{event.when:%Y-%m-%d %H:%M %Z}, {event.actor or event.source}: {event.reason or 'no reason'}")


@subcommand(
    "verify the hash chain of the log; exit code 3 means that it is broken",
    argument("--known", type=_known, metavar="NUMBER:DIGEST", help="an event that was recorded elsewhere"),
    argument("--unrecorded", action="store_true", help="also look for objects that were changed without an event"),
    examples=("audit verify", "audit verify --unrecorded"),
)
def _verify(options: Namespace, out: Output) -> ExitCode:
    with out.working("Verifying the log"):
        report = audit.verify(known=options.known)
        strange = [*map(str, audit.unrecorded())] if options.unrecorded and report.ok else None
    broken = None if report.broken is None else str(report.broken)
    head = ("ok", "events", "redacted", "number", "digest", "broken", "unrecorded")
    counts = (report.events, report.redacted, report.number)
    row = (report.ok and not strange, *counts, report.digest, broken, strange)
    table = Table(head, [row])
    out.show(
        table, data=table.as_data()[0], text="\n".join([f"{report}.", *(f"{problem}." for problem in strange or ())])
    )
    if strange is None:
        why = "it is broken." if options.unrecorded else "use --unrecorded to compare them."
        out.note(f"Rows were not compared with the log: {why}")
    return ExitCode.OK if report.ok and not strange else ExitCode.NO


@subcommand(
    "restore an object to its state before a change",
    _NUMBER,
    argument("--force", action="store_true", help="revert even if the object has been changed since"),
    examples=("audit revert 17 --dry-run", "audit revert 17 --yes --reason 'it was better before'"),
    writes=True,
)
def _revert(options: Namespace, out: Output) -> None:
    event = _found(options.number)
    warning = block_confirmation.warning([block_confirmation.revert_of(event)])
    confirm(f"{warning} Revert event {event.number}, {event}?".lstrip(), options, out)
    with changing(options, out):
        audit.revert(event, reason=options.reason, force=options.force)


@subcommand(
    "create database triggers that refuse to change or delete events",
    argument("--remove", action="store_true", help="drop the triggers again, for example before flush"),
    examples=("audit protect", "audit protect --remove"),
)
def _protect(options: Namespace, out: Output) -> None:
    if options.remove:
        audit.unprotect()
    else:
        audit.protect()
    table = Table(("protected",), [(audit.is_protected(),)])
    text = "The database no longer protects the log." if options.remove else "The database protects the log."
    out.show(table, data=table.as_data()[0], text=text)


@subcommand(
    "sign the head of the log again, after SECRET_KEY was replaced or the head was lost",
    argument("--yes", action="store_true", help="do not ask for confirmation"),
    examples=("audit sign --yes",),
)
def _sign(options: Namespace, out: Output) -> None:
    out.confirm("Sign the head of the log as it is now?", yes=options.yes)
    audit.sign()
    out.note("The head of the audit log is signed.")


def _found(number: int) -> AuditEvent:
    event = AuditEvent.objects.filter(number=number).first()
    if event is None:
        fail(f"Event {number} does not exist; `limits audit list` shows the events.")
    return event


def _row(event: AuditEvent, most: int | None) -> tuple[object, ...]:
    changes = "; ".join(map(_change, changes_of(event)))
    if most is not None:
        changes = shorten(changes, most, placeholder=" ...")
    what = f"{event.object_type} {event.object_label}"
    return (event.number, event.when, event.actor, event.source, event.verb, what, changes, event.reason)


def _change(difference: audit.Difference) -> str:
    if difference.change is audit.FieldChange.CHANGED:
        return f"{difference.field} {cell(difference.before)} -> {cell(difference.after)}"
    return (
        f"{difference.field} {cell(difference.after)}"
        if difference.change is audit.FieldChange.ADDED
        else f"no {difference.field}"
    )


def _data(event: AuditEvent) -> dict[str, object]:
    names = ("number", *(name for name in CONTENT if name != "idempotency_key"), "digest")
    return {name: getattr(event, name) for name in names}


AUDIT: Final = Subcommand(
    "show, verify and revert recorded changes",
    verbs={"list": _list, "show": _show, "verify": _verify, "protect": _protect, "sign": _sign, "revert": _revert},
)

"""`check`, `explain` and `status`: what would be decided, why, and what is used and left."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from typing import Final

from limits_app import services as limits
from limits_app.core.amounts import Amount
from limits_app.core.errors import NeverAdmissible
from limits_app.core.limit_set import LimitSet
from limits_app.core.outcome import LimitStatus, Outcome, Stats
from limits_app.management.limits.arguments import amounts, takes_entity, takes_requested, takes_resource
from limits_app.management.limits.output import Output
from limits_app.management.limits.subcommand import ExitCode, Subcommand
from limits_app.management.limits.tables import Table
from limits_app.services.amounts import known_amounts

__all__ = ["CHECK", "EXPLAIN", "STATUS", "status_rows"]

_DECIDED: Final = (
    "decision",
    "key",
    "entity",
    "level",
    "member",
    "capacity",
    "requested",
    "remaining",
    "retry_after",
    "reset_after",
)
_STATUS: Final = (
    "member",
    "key",
    "type",
    "capacity",
    "used",
    "available",
    "utilization",
    "window_seconds",
    "algorithm",
)


def _check(options: Namespace, out: Output) -> ExitCode:
    outcome = _outcome(options)
    out.show(_decided(outcome), data=outcome.as_dict())
    if outcome.degraded:
        out.note("The store is down, so something else decided: what is left is not known.")
    if outcome.allowed:
        return ExitCode.OK
    out.note(f"Refused: {outcome.summary()}.")
    return ExitCode.NO


def _outcome(options: Namespace) -> Outcome:
    try:
        asked = _requested(options) or _one_of_each
        return limits.check(options.resource, entity=options.entity, requested=asked)
    except NeverAdmissible as error:
        return error.outcome


def _requested(options: Namespace) -> Mapping[str, Amount] | None:
    """The amounts of the command line; InvalidRequest for an unknown key."""
    asked = amounts(options.requested)
    return None if asked is None else known_amounts(options.resource, options.entity, asked)


def _one_of_each(limits: LimitSet) -> Mapping[str, Amount] | None:
    """The default request, as in views: 1 of every limit."""
    return limits.ones


def _explain(options: Namespace, out: Output) -> ExitCode:
    explanation = limits.explain(options.resource, entity=options.entity, requested=_requested(options))
    out.show(_decided(explanation.outcome), data=explanation.as_dict(), text=explanation.text())
    return ExitCode.OK


def _status(options: Namespace, out: Output) -> ExitCode:
    with out.working("Asking the store"):  # about every known entity, where none is named
        status = limits.status(options.resource, entity=options.entity)
    out.show(Table(_STATUS, list(status_rows(status)), "Nothing is limited here."), data=status.as_dict())
    if status.used_by_all:
        used = ", ".join(f"{key} {amount}" for key, amount in status.used_by_all.items())
        out.note(f"The site itself and all known entities ({status.entities}) together use: {used}.")
    return ExitCode.OK


def status_rows(status: limits.Status) -> Iterator[tuple[object, ...]]:
    """One row for each limit, then for each limit of each member of the pool."""
    yield from _rows("", status.limits)
    for name, stats in status.members.items():
        yield from _rows(name, stats)


def _rows(member: str, stats: Mapping[str, Stats]) -> Iterator[tuple[object, ...]]:
    for key, values in stats.items():
        yield (member, key, *(values.get(column) for column in _STATUS[2:]))


def _decided(outcome: Outcome) -> Table:
    rows = [_decided_row("refuses", one) for one in outcome.violations]
    rows += [_decided_row("would refuse", one) for one in outcome.shadowed]
    rows += [_decided_row("overdrawn" if one.overdrawn else "admits", one) for one in outcome.passed]
    return Table(_DECIDED, rows, "Admitted: nothing limits it.")


def _decided_row(decision: str, status: LimitStatus) -> tuple[object, ...]:
    return (decision, *(getattr(status, column) for column in _DECIDED[1:]))


def _takes_request(parser: ArgumentParser) -> None:
    takes_resource(parser)
    takes_requested(parser)
    takes_entity(parser)


def _takes_scope(parser: ArgumentParser) -> None:
    takes_resource(parser)
    takes_entity(parser)


CHECK: Final = Subcommand(
    "ask what would be decided now, and consume nothing; exit code 3 says that it would be refused",
    _check,
    _takes_request,
    ("check openai/gpt-4 tpm=500 --entity user:42", "check api || echo busy"),
)
EXPLAIN: Final = Subcommand(
    "tell which limits hold, where each comes from, what it replaced, and which one binds",
    _explain,
    _takes_request,
    ("explain openai/gpt-4 --entity user:42", "explain openai/gpt-4 tpm=500 --entity user:42 --format json"),
)
STATUS: Final = Subcommand(
    "show what is used and left",
    _status,
    _takes_scope,
    ("status openai/gpt-4", "status openai/gpt-4 --entity user:42 --format csv"),
)

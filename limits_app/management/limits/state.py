"""`check`, `explain`, `status`, `top` and `doctor`: the effective limits and what is used of them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from threading import TIMEOUT_MAX, Event
from typing import Final, NoReturn

from limits_app import services as limits
from limits_app.core.amounts import Amount
from limits_app.core.errors import NeverAdmissible
from limits_app.core.limit_set import LimitSet
from limits_app.core.notation import seconds_text
from limits_app.core.outcome import LimitStatus, Outcome, Stats
from limits_app.management.limits.arguments import (
    amounts,
    positive,
    seconds,
    takes_entity,
    takes_requested,
    takes_resource,
)
from limits_app.management.limits.output import Output
from limits_app.management.limits.subcommand import ExitCode, Subcommand, fail
from limits_app.management.limits.tables import Table, printable
from limits_app.models import Entity, Policy, Resource
from limits_app.resolver import Pair, latest_code_limits
from limits_app.services import RowState
from limits_app.services.amounts import known_amounts
from limits_app.services.doctor import PATIENCE_SECONDS, Finding, Severity, diagnose

__all__ = ["CHECK", "DOCTOR", "EXPLAIN", "STATUS", "TOP", "status_rows"]

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
    if not outcome.allowed:
        out.note(f"{'Blocked' if outcome.blocked else 'Refused'}: {outcome.summary()}.")
    return _unknown_resource(options, out) or (ExitCode.OK if outcome.allowed else ExitCode.NO)


def _unknown_resource(options: Namespace, out: Output) -> ExitCode:
    """Warn about a resource that does not exist, which is an error; OK where it does."""
    if Resource.objects.filter(name=options.resource).exists() or latest_code_limits(options.resource):
        return ExitCode.OK
    out.note(f"warning: there is no resource {options.resource!r}: is it spelled as your code does?")
    return ExitCode.ERROR


def _outcome(options: Namespace) -> Outcome:
    try:
        asked = _requested(options) or _one_of_each
        default_limits = latest_code_limits(options.resource)
        return limits.check(options.resource, entity=options.entity, requested=asked, default_limits=default_limits)
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
    return _unknown_resource(options, out)


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


_TOP: Final = ("resource", "entity", "key", "used", "capacity", "percent", "level")
_LATELY: Final = timedelta(hours=2)


def _top(options: Namespace, out: Output) -> ExitCode:
    if options.once:
        states = limits.overview(_pairs(options.scopes))
        unknown = _unknown(states)
        if states and not any(state.known for state in states):
            fail("The store cannot be asked: what is used is not known.")
        out.show(_tightest(states, options.lines))
        if unknown:
            out.note(f"A store cannot be asked: what is used is not known of {', '.join(unknown)}.")
        return ExitCode.OK
    if not 0 < options.interval <= TIMEOUT_MAX:
        fail(f"The interval must be more than 0, and at most {seconds_text(TIMEOUT_MAX)}.", ExitCode.USAGE)
    try:
        _refresh(options, out)
    except KeyboardInterrupt:
        return ExitCode.OK


def _refresh(options: Namespace, out: Output) -> NoReturn:
    pause = Event()  # nobody sets it: waiting for it is a sleep that Ctrl-C ends
    with out.screen() as screen:
        while True:
            states = limits.overview(_pairs(options.scopes))
            head = f"{datetime.now(UTC):%H:%M:%S} UTC" + (": a store cannot be asked" if _unknown(states) else "")
            screen.draw(_tightest(states, options.lines), head)
            pause.wait(options.interval)


def _unknown(states: Iterable[RowState]) -> list[str]:
    """The resources of which it is not known what is used."""
    return sorted({state.resource for state in states if not state.known})


def _tightest(states: Iterable[RowState], lines: int) -> Table:
    found = [(limit.share, state, limit) for state in states for limit in state.limits]
    found.sort(key=lambda one: -one[0])
    rows = [
        (state.resource, state.entity, limit.key, limit.used, limit.capacity, round(share * 100, 1), limit.level)
        for share, state, limit in found[:lines]
    ]
    return Table(_TOP, rows, "Nothing is limited.")


def _pairs(most: int) -> list[Pair]:
    """The scopes worth looking at: resources, entities with policies of their own, and those that were busy lately."""
    resources = {resource.name: resource for resource in Resource.objects.all()[:most]}
    pairs: dict[tuple[str, str | None], Pair] = {(name, None): (one, None) for name, one in resources.items()}
    own = Policy.objects.filter(resource__isnull=False, entity__isnull=False).select_related("resource", "entity")
    for policy in own[:most]:
        pairs[str(policy.resource), str(policy.entity)] = policy.resource, policy.entity
    busy = limits.usage(by=("resource", "entity"), period="hour", since=datetime.now(UTC) - _LATELY, most=most)
    names = {use.entity for use in busy if use.entity and use.bucket == "entity"}
    known = {entity.identifier: entity for entity in Entity.objects.filter(identifier__in=names)}
    for use in busy:
        if use.entity in names and use.resource in resources:
            entity = known.get(use.entity) or Entity(identifier=use.entity)  # nobody needs a row
            pairs.setdefault((use.resource, use.entity), (resources[use.resource], entity))
    return list(pairs.values())[:most]


def _takes_top(parser: ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="show it once, and end")
    parser.add_argument("--interval", type=seconds, default=2, metavar="TIME", help="between two looks (2s)")
    parser.add_argument("--lines", type=positive, default=20, help="how many limits to show (20)")
    parser.add_argument("--scopes", type=positive, default=500, help="how many scopes to look at (500)")


TOP: Final = Subcommand(
    "show the tightest limits now, until Ctrl-C", _top, _takes_top, ("top", "top --once --lines 5 --format json")
)


_FINDING: Final = ("severity", "id", "message", "advice")


def _doctor(options: Namespace, out: Output) -> ExitCode:
    found = diagnose(patience_seconds=options.patience)
    table = Table(_FINDING, [tuple(getattr(one, name) for name in _FINDING) for one in found], "All is well.")
    out.show(table, data=[one.as_dict() for one in found], text="\n".join(map(_told, found)) or None)
    out.note(", ".join(_counted(sum(one.severity is severity for one in found), severity) for severity in Severity))
    serious = {Severity.ERROR} if options.fail_on == "error" else {Severity.ERROR, Severity.WARNING}
    return ExitCode.NO if any(one.severity in serious for one in found) else ExitCode.OK


def _counted(number: int, severity: Severity) -> str:
    return f"{number} {severity}" if number == 1 or severity is Severity.INFO else f"{number} {severity}s"


def _told(finding: Finding) -> str:
    return (
        printable(f"{finding.severity.upper()} {finding.id}: {finding.message}") + f"\n    {printable(finding.advice)}"
    )


def _takes_doctor(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--fail-on", choices=("error", "warning"), default="error", help="from which severity on to exit with 3"
    )
    parser.add_argument(
        "--patience",
        type=seconds,
        default=PATIENCE_SECONDS,
        metavar="TIME",
        help="how long a store or the database may take to answer, such as 10s",
    )


DOCTOR: Final = Subcommand(
    "Find out what is wrong with the site's limits, and what to do; changes nothing.",
    _doctor,
    _takes_doctor,
    ("doctor", "doctor --fail-on warning --format json"),
)

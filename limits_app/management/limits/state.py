"""`check`, `explain`, `rules`, `status`, `top` and `doctor`: effective limits and their usage."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPMethod
from threading import TIMEOUT_MAX, Event
from typing import Final, NoReturn

from limits_app import services as limits
from limits_app.core.amounts import Amount
from limits_app.core.errors import NeverAdmissible
from limits_app.core.notation import seconds_text
from limits_app.core.outcome import LimitStatus, Outcome, Stats
from limits_app.integrations.endpoints import rules_for_path
from limits_app.management.limits.arguments import (
    amounts,
    positive,
    seconds,
    takes_requested,
    takes_resource,
    takes_whom,
)
from limits_app.management.limits.output import Output
from limits_app.management.limits.subcommand import ExitCode, Subcommand, fail, note_unused, together
from limits_app.management.limits.tables import Table, printable
from limits_app.models import Enforcement, Entity, Policy, Resource
from limits_app.resolver.resolution import Pair, latest_code_limits
from limits_app.services import RowState
from limits_app.services.amounts import known_amounts
from limits_app.services.doctor import PATIENCE_SECONDS, Finding, Severity, diagnose
from limits_app.services.explain_text import emergency_text
from limits_app.services.limit_words import limit_name

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
        out.note("The store is unavailable; `on_unavailable` decided, and remaining amounts are unknown.")
    if not outcome.allowed:
        out.note(f"{'Blocked' if outcome.blocked else 'Rejected'}: {outcome.summary()}.")
    return _unknown_resource(options, out) or (ExitCode.OK if outcome.allowed else ExitCode.NO)


def _unknown_resource(options: Namespace, out: Output) -> ExitCode:
    """Warn about a resource that does not exist; returns ERROR in that case, otherwise OK."""
    note_unused(options.entity, out)
    if Resource.objects.filter(name=options.resource).exists() or latest_code_limits(options.resource):
        return ExitCode.OK
    out.note(f"warning: the resource {options.resource!r} does not exist: check the spelling")
    return ExitCode.ERROR


def _outcome(options: Namespace) -> Outcome:
    try:
        asked = _requested(options) or (lambda limits: limits.ones)  # 1 of every limit, as in views
        default_limits = latest_code_limits(options.resource)
        return limits.check(
            options.resource,
            entity=options.entity,
            requested=asked,
            default_limits=default_limits,
            plan=options.plan,
        )
    except NeverAdmissible as error:
        return error.outcome


def _requested(options: Namespace) -> Mapping[str, Amount] | None:
    """The amounts of the command line; InvalidRequest for an unknown key."""
    asked = amounts(options.requested)
    return None if asked is None else known_amounts(options.resource, options.entity, asked, options.plan)


def _explain(options: Namespace, out: Output) -> ExitCode:
    explanation = limits.explain(
        options.resource, entity=options.entity, requested=_requested(options), plan=options.plan
    )
    out.show(_decided(explanation.outcome), data=explanation.as_dict(), text=explanation.text())
    return _unknown_resource(options, out)


def _status(options: Namespace, out: Output) -> ExitCode:
    with out.working("Reading the store"):  # all known entities, without --entity
        status = limits.status(options.resource, entity=options.entity, plan=options.plan)
    out.show(Table(_STATUS, list(status_rows(status)), "There are no limits here."), data=status.as_dict())
    if (switch := limits.emergency()).mode != Enforcement.ENFORCE:
        out.note(emergency_text(switch))
    if held := [f"{key} {stats['in_slices']}" for key, stats in status.limits.items() if "in_slices" in stats]:
        out.note(f"In slices of this process: {', '.join(held)}.")
    if status.used_by_all:
        used = ", ".join(f"{limit_name(key)} {amount}" for key, amount in status.used_by_all.items())
        out.note(f"Total usage of the site itself and all known entities ({status.entities}): {used}.")
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
    return Table(_DECIDED, rows, "Allowed: there are no limits.")


def _decided_row(decision: str, status: LimitStatus) -> tuple[object, ...]:
    return (decision, *(getattr(status, column) for column in _DECIDED[1:]))


_takes_request: Final = together(takes_resource, takes_requested, takes_whom)
CHECK: Final = Subcommand(
    "check whether a request would be allowed, without consuming anything; exit code 3 means rejected",
    _check,
    _takes_request,
    ("check openai/gpt-4 tpm=500 --entity user:42", "check api || echo busy"),
)
EXPLAIN: Final = Subcommand(
    "show the effective limits, their origin, the limits they override, and which one is blocking",
    _explain,
    _takes_request,
    ("explain openai/gpt-4 --entity user:42", "explain openai/gpt-4 tpm=500 --entity user:42 --format json"),
)
STATUS: Final = Subcommand(
    "show current usage and remaining amounts",
    _status,
    together(takes_resource, takes_whom),
    ("status openai/gpt-4", "status openai/gpt-4 --entity user:42 --format csv"),
)


_TOP: Final = ("resource", "entity", "key", "used", "capacity", "percent", "level")
_LATELY: Final = timedelta(hours=2)


def _top(options: Namespace, out: Output) -> ExitCode:
    if options.once:
        states = limits.overview(_pairs(options.scopes))
        unknown = _unknown(states)
        if states and not any(state.known for state in states):
            fail("The store is unavailable: usage is unknown.")
        out.show(_tightest(states, options.lines))
        if unknown:
            out.note(f"A store is unavailable: usage is unknown for {', '.join(unknown)}.")
        return ExitCode.OK
    if not 0 < options.interval <= TIMEOUT_MAX:
        fail(f"The interval must be more than 0, and at most {seconds_text(TIMEOUT_MAX)}.", ExitCode.USAGE)
    try:
        _refresh(options, out)
    except KeyboardInterrupt:
        return ExitCode.OK


def _refresh(options: Namespace, out: Output) -> NoReturn:
    pause = Event()  # never set: waiting for it is a sleep that Ctrl-C interrupts
    with out.screen() as screen:
        while True:
            states = limits.overview(_pairs(options.scopes))
            head = f"{datetime.now(UTC):%H:%M:%S} UTC" + (": a store is unavailable" if _unknown(states) else "")
            screen.draw(_tightest(states, options.lines), head)
            pause.wait(options.interval)


def _unknown(states: Iterable[RowState]) -> list[str]:
    """The resources whose usage is unknown."""
    return sorted({state.resource for state in states if not state.known})


def _tightest(states: Iterable[RowState], lines: int) -> Table:
    found = [(limit.share, state, limit) for state in states for limit in state.limits]
    found.sort(key=lambda one: -one[0])
    rows = [
        (state.resource, state.entity, limit.key, limit.used, limit.capacity, round(share * 100, 1), limit.level)
        for share, state, limit in found[:lines]
    ]
    return Table(_TOP, rows, "There are no limits.")


def _pairs(most: int) -> list[Pair]:
    """The scopes to show: resources, entities with specific policies, and recently active entities."""
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
            entity = known.get(use.entity) or Entity(
                identifier=use.entity
            )  # entities do not have to exist in the database
            pairs.setdefault((use.resource, use.entity), (resources[use.resource], entity))
    return list(pairs.values())[:most]


def _takes_top(parser: ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="print once and exit")
    parser.add_argument("--interval", type=seconds, default=2, metavar="TIME", help="refresh interval (2s)")
    parser.add_argument("--lines", type=positive, default=20, help="number of limits to show (20)")
    parser.add_argument("--scopes", type=positive, default=500, help="number of scopes to read (500)")


TOP: Final = Subcommand(
    "show the limits with the highest usage, refreshed until Ctrl-C",
    _top,
    _takes_top,
    ("top", "top --once --lines 5 --format json"),
)


_FINDING: Final = ("severity", "id", "message", "advice")


def _doctor(options: Namespace, out: Output) -> ExitCode:
    found = diagnose(patience_seconds=options.patience)
    table = Table(_FINDING, [tuple(getattr(one, name) for name in _FINDING) for one in found], "No problems found.")
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
        "--fail-on", choices=("error", "warning"), default="error", help="lowest severity that causes exit code 3"
    )
    parser.add_argument(
        "--patience",
        type=seconds,
        default=PATIENCE_SECONDS,
        metavar="TIME",
        help="timeout for each store and the database, such as 10s",
    )


DOCTOR: Final = Subcommand(
    "Diagnose problems with the site's limits and suggest fixes; changes nothing.",
    _doctor,
    _takes_doctor,
    ("doctor", "doctor --fail-on warning --format json"),
)


_COLUMNS: Final = ("rule", "resource", "counted_by", "amounts", "exempts_some", "stop")


def _rules(options: Namespace, out: Output) -> ExitCode:
    rules = rules_for_path(options.path, options.method)
    rows = [
        (one.name, one.resource, one.counted_by, dict(one.amounts), bool(one.exemptions), one.stop) for one in rules
    ]
    out.show(Table(_COLUMNS, rows, f"No rule matches {options.method} {options.path}."))
    return ExitCode.OK if rules else ExitCode.NO


def _takes_path(parser: ArgumentParser) -> None:
    parser.add_argument("path", type=_path, metavar="PATH", help="the path of a request, such as /api/orders/")
    parser.add_argument(
        "--method", type=str.upper, choices=[*HTTPMethod.__members__], default="GET", help="the method of the request"
    )


def _path(text: str) -> str:
    if not text.startswith("/") or "?" in text or "#" in text:
        raise ArgumentTypeError(f"{text!r} must be a path such as /api/orders/, without host and query string")
    return text


RULES: Final = Subcommand(
    "show the rules for URLs that charge requests to a path, in their order",
    _rules,
    _takes_path,
    ("rules /api/orders/", "rules /api/orders/ --method POST --format json"),
)

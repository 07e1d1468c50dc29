"""`check`, `explain`, `rules`, `status`, `top` and `doctor`: effective limits and their usage."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPMethod
from threading import TIMEOUT_MAX, Event
from typing import Final, NoReturn

from limits_app import services as limits
from limits_app.engine import UNLIMITED, GivenAmount, seconds_text
from limits_app.engine.errors import NeverAdmissible
from limits_app.engine.outcome import LimitStatus, Outcome, Stats
from limits_app.management.limits.arguments import (
    PRIORITY,
    REQUESTED,
    RESOURCE,
    WHOM,
    amounts,
    argument,
    positive,
    resource_name,
    seconds,
)
from limits_app.management.limits.output import Format, Output, Table
from limits_app.management.limits.subcommand import ExitCode, fail, note_unused, subcommand
from limits_app.models import Enforcement, Entity, Policy, Price, Resource, UsageSnapshot
from limits_app.policies import Pair, latest_code_limits
from limits_app.services import RowState
from limits_app.services.amounts import known_amounts
from limits_app.services.doctor import PATIENCE_SECONDS, Finding, Severity, findings, severest_first
from limits_app.services.explain_text import emergency_text
from limits_app.services.limit_words import limit_name
from limits_app.services.status import MOST_ADDED_UP
from limits_app.services.url_matching import rules_for_path
from limits_app.services.usage import add_counts

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
_REQUEST: Final = (RESOURCE, REQUESTED, *WHOM, PRIORITY)
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
_OF_LIMITS: Final = ("capacity", "available", "utilization")
"""What units that are only counted do not have."""


@subcommand(
    "check whether a request would be allowed, without consuming anything; exit code 3 means rejected",
    *_REQUEST,
    examples=("check openai/gpt-4 tpm=500 --entity user:42", "check api || echo busy"),
)
def check(options: Namespace, out: Output) -> ExitCode:
    """Check whether a request would be allowed."""
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
    if _exists(options.resource):
        return ExitCode.OK
    out.note(f"warning: the resource {options.resource!r} does not exist: check the spelling")
    return ExitCode.ERROR


def _exists(resource: str) -> bool:
    """Whether a resource has a row, limits in code, a price of its own, or usage."""
    if Resource.objects.filter(name=resource).exists() or latest_code_limits(resource):
        return True
    return any(model.objects.filter(resource=resource).exists() for model in (Price, UsageSnapshot))


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
            priority=options.priority,
        )
    except NeverAdmissible as error:
        return error.outcome


def _requested(options: Namespace) -> Mapping[str, GivenAmount] | None:
    """The amounts of the command line; InvalidRequest for an unknown key."""
    asked = amounts(options.requested)
    return None if asked is None else known_amounts(options.resource, options.entity, asked, options.plan)


@subcommand(
    "show the effective limits, their origin, the limits they override, and which one is blocking",
    *_REQUEST,
    examples=("explain openai/gpt-4 --entity user:42", "explain openai/gpt-4 tpm=500 --entity user:42 --format json"),
)
def explain(options: Namespace, out: Output) -> ExitCode:
    """Explain the decision about a request."""
    unknown = _unknown_resource(options, out)
    explanation = limits.explain(
        options.resource,
        entity=options.entity,
        requested=_requested(options),
        plan=options.plan,
        priority=options.priority,
    )
    out.show(_decided(explanation.outcome), data=explanation.as_dict(), text=explanation.text())
    return unknown


@subcommand(
    "show current usage and remaining amounts, or without a resource a summary of the site",
    argument("resource", nargs="?", type=resource_name, metavar="RESOURCE", help="such as api or openai/gpt-4"),
    *WHOM,
    examples=("status", "status openai/gpt-4", "status openai/gpt-4 --entity user:42 --format csv"),
)
def status(options: Namespace, out: Output) -> None:
    """Show the state of limits."""
    if options.resource is None:
        if options.entity or options.plan:
            fail("Name a RESOURCE with --entity or --plan.", ExitCode.USAGE)
        _summarize(out)
        return
    with out.working("Reading the store"):  # all known entities, without --entity
        status = limits.status(options.resource, entity=options.entity, plan=options.plan)
    rows = [*_rows("", status.limits)]
    for member, stats_of_member in status.members.items():
        rows += _rows(member, stats_of_member)
    out.show(Table(_STATUS, rows, "There are no limits here."), data=status.as_dict())
    if (switch := limits.emergency()).mode != Enforcement.ENFORCE:
        out.note(emergency_text(switch))
    if slices := [f"{key} {stats['in_slices']}" for key, stats in status.limits.items() if "in_slices" in stats]:
        out.note(f"In slices of this process: {', '.join(slices)}.")
    if status.used_by_all:
        used = ", ".join(f"{limit_name(key)} {amount}" for key, amount in status.used_by_all.items())
        out.note(f"Total usage of the site itself and all known entities ({status.entities}): {used}.")
    elif options.entity is None and status.entities is None:
        out.note(
            f"The usage of more than {MOST_ADDED_UP:,} known entities is not added up: "
            f"see `limits usage --resource {options.resource}`."
        )


def _summarize(out: Output) -> None:
    """Show the emergency switch, the stores, how much is configured, rejections, and the tightest limits."""
    add_counts()
    switch, hour_ago = limits.emergency(), datetime.now(UTC) - timedelta(hours=1)
    enforced = Policy.objects.filter(enforcement=Enforcement.ENFORCE).count()
    with out.working("Reading the stores"):
        states = limits.overview(_pairs(_MOST_SUMMARIZED))
    uses = sorted(((limit.share, state, limit) for state in states for limit in state.limits), key=lambda use: -use[0])
    unknown = _unknown(states)
    rows: list[tuple[str, object]] = [
        ("emergency switch", str(switch.mode)),
        ("resources", Resource.objects.count()),
        ("entities", Entity.objects.count()),
        ("policies", Policy.objects.count()),
        ("policies not enforced", Policy.objects.count() - enforced),
        ("rejections in the last hour", sum(row.count for row in limits.denials(since=hour_ago))),
    ]
    rows += [
        (f"store {alias or 'default'}", health.state if health.error is None else f"{health.state}: {health.error}")
        for alias, health in limits.store_health().items()
    ]
    rows += [
        (
            f"tightest limit {number}",
            " ".join(filter(None, (state.resource, state.entity, limit.key, f"{share:.0%}"))),
        )
        for number, (share, state, limit) in enumerate(uses[:_TIGHTEST], 1)
    ]
    out.show(Table(("what", "value"), rows), data=dict(rows))
    if unknown:
        out.note(f"A store is unavailable: usage is unknown for {', '.join(unknown)}.")


def _rows(member: str, stats: Mapping[str, Stats]) -> Iterator[tuple[object, ...]]:
    for key, values in stats.items():
        hidden = _OF_LIMITS if values["type"] == UNLIMITED else ()
        yield (member, key, *(None if column in hidden else values.get(column) for column in _STATUS[2:]))


def _decided(outcome: Outcome) -> Table:
    rows = [_decided_row("rejects", limit) for limit in outcome.violations]
    rows += [_decided_row("would reject", limit) for limit in outcome.shadowed]
    rows += [_decided_row("overdrawn" if limit.overdrawn else "allows", limit) for limit in outcome.passed]
    return Table(_DECIDED, rows, "Allowed: there are no limits.")


def _decided_row(decision: str, status: LimitStatus) -> tuple[object, ...]:
    return (decision, *(getattr(status, column) for column in _DECIDED[1:]))


_MOST_SUMMARIZED: Final = 500
_TIGHTEST: Final = 3
_TOP: Final = ("resource", "entity", "key", "used", "capacity", "percent", "level")
_USED_WITHIN: Final = timedelta(hours=2)


@subcommand(
    "show the limits with the highest usage, refreshed until Ctrl-C",
    argument("--once", action="store_true", help="print once and exit"),
    argument("--interval", type=seconds, default=2, metavar="TIME", help="refresh interval (2s)"),
    argument("--lines", type=positive, default=20, help="number of limits to show (20)"),
    argument("--scopes", type=positive, default=500, help="number of scopes to read (500)"),
    examples=("top", "top --once --lines 5 --format json"),
)
def top(options: Namespace, out: Output) -> None:
    """Show the tightest limits."""
    if options.once:
        states = limits.overview(_pairs(options.scopes))
        unknown = _unknown(states)
        if states and not any(state.known for state in states):
            fail("The store is unavailable: usage is unknown.")
        out.show(_tightest(states, options.lines))
        if unknown:
            out.note(f"A store is unavailable: usage is unknown for {', '.join(unknown)}.")
        return
    if not 0 < options.interval <= TIMEOUT_MAX:
        fail(f"The interval must be more than 0, and at most {seconds_text(TIMEOUT_MAX)}.", ExitCode.USAGE)
    try:
        _refresh(options, out)
    except KeyboardInterrupt:
        return


def _refresh(options: Namespace, out: Output) -> NoReturn:
    pause = Event()  # never set: waiting for it is a sleep that Ctrl-C interrupts
    with out.screen() as draw:
        while True:
            states = limits.overview(_pairs(options.scopes))
            head = f"{datetime.now(UTC):%H:%M:%S} UTC" + (": a store is unavailable" if _unknown(states) else "")
            draw(_tightest(states, options.lines), head)
            pause.wait(options.interval)


def _unknown(states: Iterable[RowState]) -> list[str]:
    """The resources whose usage is unknown."""
    return sorted({state.resource for state in states if not state.known})


def _tightest(states: Iterable[RowState], lines: int) -> Table:
    uses = [(limit.share, state, limit) for state in states for limit in state.limits]
    uses.sort(key=lambda use: -use[0])
    rows = []
    for share, state, limit in uses[:lines]:
        percent = None if limit.used is None else round(share * 100, 1)
        rows.append((state.resource, state.entity, limit.key, limit.used, limit.capacity, percent, limit.level))
    return Table(_TOP, rows, "There are no limits.")


def _pairs(most: int) -> list[Pair]:
    """The scopes to show: resources, entities with specific policies, and recently active entities."""
    resources = {resource.name: resource for resource in Resource.objects.all()[:most]}
    pairs: dict[tuple[str, str | None], Pair] = {(name, None): (resource, None) for name, resource in resources.items()}
    own = Policy.objects.filter(resource__isnull=False, entity__isnull=False).select_related("resource", "entity")
    for policy in own[:most]:
        pairs[str(policy.resource), str(policy.entity)] = policy.resource, policy.entity
    busy = limits.usage(by=("resource", "entity"), period="hour", since=datetime.now(UTC) - _USED_WITHIN, most=most)
    names = {use.entity for use in busy if use.entity and use.bucket == "entity"}
    entities = {entity.identifier: entity for entity in Entity.objects.filter(identifier__in=names)}
    for use in busy:
        if use.entity in names and use.resource in resources:
            entity = entities.get(use.entity) or Entity(identifier=use.entity)  # which need not have a row
            pairs.setdefault((use.resource, use.entity), (resources[use.resource], entity))
    return list(pairs.values())[:most]


_FINDING: Final = ("severity", "id", "message", "advice")


@subcommand(
    "Diagnose problems with the site's limits and suggest fixes; changes nothing.",
    argument("--fail-on", choices=("error", "warning"), default="error", help="lowest severity with exit code 3"),
    argument(
        "--patience", type=seconds, default=PATIENCE_SECONDS, metavar="TIME", help="timeout of each server, such as 10s"
    ),
    examples=("doctor", "doctor --fail-on warning --format json"),
    periodic=True,
)
def doctor(options: Namespace, out: Output) -> ExitCode:
    """Show the findings of the doctor."""
    collected: list[Finding] = []
    with out.counter("Checking policies") as show:
        for finding in findings(options.patience, show):
            collected.append(finding)
            if out.form is Format.TABLE:
                out.show_text(_told(finding))
    if out.form is not Format.TABLE:
        collected = severest_first(collected)
        rows = [tuple(getattr(finding, name) for name in _FINDING) for finding in collected]
        out.show(Table(_FINDING, rows), data=[finding.as_dict() for finding in collected])
    elif not collected:
        out.note("No problems found.")
    numbers = Counter(finding.severity for finding in collected)
    out.note(", ".join(_counted(numbers[severity], severity) for severity in Severity))
    serious = {Severity.ERROR} if options.fail_on == "error" else {Severity.ERROR, Severity.WARNING}
    return ExitCode.NO if serious & numbers.keys() else ExitCode.OK


def _counted(number: int, severity: Severity) -> str:
    return f"{number} {severity}" if number == 1 or severity is Severity.INFO else f"{number} {severity}s"


def _told(finding: Finding) -> str:
    return f"{finding.severity.upper()} {finding.id}: {finding.message}\n    {finding.advice}"


_RULES: Final = (
    "rule",
    "resource",
    "counted_by",
    "combined_with",
    "amounts",
    "responses",
    "block_seconds",
    "exempts_some",
    "stop",
)


def _path(text: str) -> str:
    if not text.startswith("/") or "?" in text or "#" in text:
        raise ArgumentTypeError(f"{text!r} must be a path such as /api/orders/, without host and query string")
    return text


@subcommand(
    "show the rules for URLs that charge requests to a path, in their order",
    argument("path", type=_path, metavar="PATH", help="the path of a request, such as /api/orders/"),
    argument("--method", type=str.upper, choices=[*HTTPMethod.__members__], default="GET", help="of the request"),
    examples=("rules /api/orders/", "rules /api/orders/ --method POST --format json"),
)
def rules(options: Namespace, out: Output) -> ExitCode:
    """Show the rules for a path."""
    rules = rules_for_path(options.path, options.method)
    rows = [
        (
            rule.name,
            rule.resource,
            rule.counted_by,
            ", ".join(":".join(filter(None, part)) for part in rule.parts),
            dict(rule.amounts),
            rule.responses,
            rule.block_seconds,
            bool(rule.exemptions),
            rule.stop,
        )
        for rule in rules
    ]
    out.show(Table(_RULES, rows, f"No rule matches {options.method} {options.path}."))
    return ExitCode.OK if rules else ExitCode.NO

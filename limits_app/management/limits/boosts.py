"""`boost`, `reset` and `emergency`: temporary overrides, resetting usage, and the emergency switch."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Final

from limits_app import services as limits
from limits_app.core.outcome import TOTAL_PREFIX
from limits_app.management.limits.arguments import key, resource_name, takes_entity, takes_on, takes_until, takes_whom
from limits_app.management.limits.output import Format, Output
from limits_app.management.limits.subcommand import SOURCE, ExitCode, Subcommand, actor, changing, fail, together
from limits_app.management.limits.tables import Table
from limits_app.models import Enforcement
from limits_app.services.explain_text import emergency_text

_NO_LIMIT: Final = "There are no limits here."


def _boost(options: Namespace, out: Output) -> ExitCode:
    if options.end:
        return _end_boost(options, out)
    if not options.limits:
        fail("No limits given: name at least one, such as tpm=1M/min.", ExitCode.USAGE)
    if not options.reason:
        fail("--reason is required for a boost.", ExitCode.USAGE)
    with changing(options, out):
        limits.grant_boost(options.entity, options.resource, options.limits, options.until, options.reason)
    return ExitCode.OK


def _end_boost(options: Namespace, out: Output) -> ExitCode:
    whose = f"{options.entity} on {options.resource or 'all resources'}"
    if options.limits:
        fail("--end ends the whole boost: do not name limits.", ExitCode.USAGE)
    if not options.dry_run:
        out.confirm(f"End the boost of {whose}?", yes=options.yes)
    with changing(options, out):
        if not limits.end_boost(options.entity, options.resource):
            fail(f"{whose} has no active boost.")
    return ExitCode.OK


def _reset(options: Namespace, out: Output) -> ExitCode:
    keys = options.key or None
    whom = options.entity or "the site itself and shared limits"
    if options.total is (options.resource is not None):
        fail("Name either a RESOURCE or --total, for the limits over all resources.", ExitCode.USAGE)
    if options.dry_run:
        return _would_reset(options, out)
    where = "over all resources" if options.total else f"of {options.resource}"
    out.confirm(f"Reset the usage of {whom} for {', '.join(keys or ['every limit'])} {where}?", yes=options.yes)
    done = limits.reset(
        options.resource,
        entity=options.entity,
        keys=keys,
        plan=options.plan,
        reason=options.reason,
        idempotency_key=options.once,
        actor=actor(),
        source=SOURCE,
    )
    if out.form is not Format.TABLE:
        out.show(Table(("done",), [(done,)]), data={"done": done})
    out.note("Reset." if done else "Already done with this name: nothing was changed.")
    if not options.total and not limits.limit_set(options.resource, options.entity, plan=options.plan):
        out.note(f"{_NO_LIMIT} Check the name of the resource.")
    return ExitCode.OK


def _would_reset(options: Namespace, out: Output) -> ExitCode:
    stats_by_key = limits.status(options.resource or "any", entity=options.entity, plan=options.plan).limits
    found = {
        key.removeprefix(TOTAL_PREFIX): stats
        for key, stats in stats_by_key.items()
        if key.startswith(TOTAL_PREFIX) is options.total
    }
    if missing := sorted({*options.key} - found.keys()):
        fail(f"No limit has the key {', '.join(missing)}; must be one of: {', '.join(found) or 'none'}", ExitCode.USAGE)
    rows = [(name, stats["used"]) for name, stats in found.items() if not options.key or name in options.key]
    out.show(Table(("key", "used"), rows, _NO_LIMIT))
    out.note("This was a dry run: nothing was reset.")
    return ExitCode.OK


def _emergency(options: Namespace, out: Output) -> ExitCode:
    if options.mode is None:
        switch = limits.emergency()
        table = Table(("mode", "until", "reason"), [(str(switch.mode), switch.until, switch.reason)])
        out.show(table, data=switch.as_dict(), text=emergency_text(switch))
        return ExitCode.OK
    if options.mode != Enforcement.ENFORCE and not options.dry_run:
        out.confirm(f"Set all limits of the site to {options.mode}?", yes=options.yes)
    with changing(options, out):
        limits.set_emergency(options.mode, reason=options.reason, until=options.until)
    return ExitCode.OK


def _takes_emergency(parser: ArgumentParser) -> None:
    parser.add_argument("mode", nargs="?", choices=Enforcement.values, help="without it, show the switch")
    takes_until(parser)


def _takes_boost(parser: ArgumentParser) -> None:
    parser.add_argument(
        "limits", nargs="*", default=[], metavar="LIMIT", help="limits that are not named stay unchanged"
    )
    takes_until(parser, required=True).add_argument("--end", action="store_true", help="end the active boost")


def _takes_reset(parser: ArgumentParser) -> None:
    parser.add_argument(
        "resource", nargs="?", type=resource_name, metavar="RESOURCE", help="such as api or openai/gpt-4"
    )
    parser.add_argument("--total", action="store_true", help="instead of a resource: the limits over all resources")
    takes_whom(parser)
    parser.add_argument("--key", type=key, action="append", default=[], help="only this limit; may be repeated")
    parser.add_argument(
        "--once", metavar="NAME", help="idempotency key: a repeated command with the same name has no effect"
    )


BOOST: Final = Subcommand(
    "override the limits of an entity temporarily, or end the override",
    _boost,
    together(takes_entity, _takes_boost, takes_on),
    (
        "boost user:42 tpm=1M/min --on openai/gpt-4 --for 2h --reason 'a demo for the board'",
        "boost user:42 --on openai/gpt-4 --end --yes",
    ),
    writes=True,
)
RESET: Final = Subcommand(
    "reset usage; concurrent permits are not released",
    _reset,
    _takes_reset,
    (
        "reset openai/gpt-4 --entity user:42 --key tpm --yes --reason 'our mistake'",
        "reset --total --entity user:42 --yes",
    ),
    writes=True,
)
EMERGENCY: Final = Subcommand(
    "show the emergency switch, or set it: enforce all limits, shadow them, or switch them off",
    _emergency,
    _takes_emergency,
    ("emergency", "emergency off --reason 'incident 4711' --for 2h --yes", "emergency enforce"),
    writes=True,
)

"""`boost` and `reset`: more for a while, and a new start."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Final

from limits_app import services as limits
from limits_app.management.limits.arguments import (
    ahead,
    entity_name,
    key,
    moment,
    resource_name,
    takes_entity,
    takes_resource,
)
from limits_app.management.limits.output import Format, Output
from limits_app.management.limits.subcommand import SOURCE, ExitCode, Subcommand, actor, changing, fail
from limits_app.management.limits.tables import Table

__all__ = ["BOOST", "RESET"]

_NO_LIMIT: Final = "Nothing is limited here."


def _boost(options: Namespace, out: Output) -> ExitCode:
    if options.end:
        return _end_boost(options, out)
    if not options.limits:
        fail("Say what is to be boosted, such as tpm=1M/min.", ExitCode.USAGE)
    if not options.reason:
        fail("Say why with --reason: others will want to know.", ExitCode.USAGE)
    with changing(options, out):
        limits.grant_boost(options.entity, options.resource, options.limits, options.until, options.reason)
    return ExitCode.OK


def _end_boost(options: Namespace, out: Output) -> ExitCode:
    whose = f"{options.entity} on {options.resource or 'all resources'}"
    if options.limits:
        fail("A boost ends as a whole: leave the limits out.", ExitCode.USAGE)
    if not options.dry_run:
        out.confirm(f"End the boost of {whose}?", yes=options.yes)
    with changing(options, out):
        if not limits.end_boost(options.entity, options.resource):
            fail(f"{whose} has no boost now.")
    return ExitCode.OK


def _reset(options: Namespace, out: Output) -> ExitCode:
    keys = options.key or None
    whom = options.entity or "the site itself and what all share"
    if options.dry_run:
        return _would_reset(options, out)
    out.confirm(
        f"Forget what {whom} used of {', '.join(keys or ['every limit'])} of {options.resource}?", yes=options.yes
    )
    done = limits.reset(
        options.resource,
        entity=options.entity,
        keys=keys,
        reason=options.reason,
        idempotency_key=options.once,
        actor=actor(),
        source=SOURCE,
    )
    if out.form is not Format.TABLE:
        out.show(Table(("done",), [(done,)]), data={"done": done})
    out.note("Reset." if done else "It was done before with this name: nothing was changed.")
    if not limits.limit_set(options.resource, options.entity):
        out.note(f"{_NO_LIMIT} Look whether that is the name.")
    return ExitCode.OK


def _would_reset(options: Namespace, out: Output) -> ExitCode:
    found = limits.status(options.resource, entity=options.entity).limits
    if missing := sorted({*options.key} - found.keys()):
        fail(f"{', '.join(missing)} is not limited there; limited are: {', '.join(found) or 'none'}", ExitCode.USAGE)
    rows = [(name, stats["used"]) for name, stats in found.items() if not options.key or name in options.key]
    out.show(Table(("key", "used"), rows, _NO_LIMIT))
    out.note("This was a dry run: nothing was forgotten.")
    return ExitCode.OK


def _takes_boost(parser: ArgumentParser) -> None:
    parser.add_argument("entity", type=entity_name, metavar="ENTITY", help="such as user:42")
    parser.add_argument("limits", nargs="*", default=[], metavar="LIMIT", help="those not named stay as they are")
    parser.add_argument("--on", dest="resource", type=resource_name, metavar="RESOURCE", help="on this resource alone")
    end = parser.add_mutually_exclusive_group(required=True)
    end.add_argument("--for", dest="until", type=ahead, metavar="TIME", help="how long, such as 2h or 7d")
    end.add_argument("--until", type=moment, metavar="MOMENT", help="until when, such as 2026-01-31T18:00")
    end.add_argument("--end", action="store_true", help="end the boost that it has now")


def _takes_reset(parser: ArgumentParser) -> None:
    takes_resource(parser)
    takes_entity(parser)
    parser.add_argument("--key", type=key, action="append", default=[], help="this limit alone; may be said repeatedly")
    parser.add_argument("--once", metavar="NAME", help="do it only once under this name, however often it is asked")


BOOST: Final = Subcommand(
    "give an entity other limits for a while, or end that",
    _boost,
    _takes_boost,
    (
        "boost user:42 tpm=1M/min --on openai/gpt-4 --for 2h --reason 'a demo for the board'",
        "boost user:42 --on openai/gpt-4 --end --yes",
    ),
    writes=True,
)
RESET: Final = Subcommand(
    "forget what was used; permits stay with their holders",
    _reset,
    _takes_reset,
    ("reset openai/gpt-4 --entity user:42 --key tpm --yes --reason 'our mistake'",),
    writes=True,
)

"""`boost`, `reset`, `top-up`, `emergency` and `candidates`: overrides of limits, and the emergency switch."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any, Final

from limits_app import services as limits
from limits_app.engine.outcome import TOTAL_PREFIX
from limits_app.management.limits.arguments import (
    ENTITY,
    ON,
    PLAN,
    UNTIL,
    WHOM,
    amount,
    argument,
    key,
    one_of,
    percent,
    positive,
    resource_name,
)
from limits_app.management.limits.output import Format, Output, Table
from limits_app.management.limits.subcommand import (
    SOURCE,
    ExitCode,
    Subcommand,
    actor,
    changing,
    confirm,
    fail,
    subcommand,
)
from limits_app.models import Enforcement, Policy
from limits_app.policies import latest_code_limits
from limits_app.services.candidates import policy_of_id
from limits_app.services.explain_text import emergency_text

_NO_LIMIT: Final = "There are no limits here."
_ONCE: Final = argument(
    "--once", metavar="NAME", help="idempotency key: a repeated command with the same name has no effect"
)
_CANDIDATE: Final = ("policy_id", "policy", "limits", "state", "percent", "evaluated", "rejected", "rejected_percent")


@subcommand(
    "raise limits of an entity temporarily, or end that",
    ENTITY,
    argument("limits", nargs="*", default=[], metavar="LIMIT", help="limits that are not named stay unchanged"),
    one_of(*UNTIL, argument("--end", action="store_true", help="end the active boost"), required=True),
    ON,
    PLAN,
    examples=(
        "boost user:42 tpm=1M/min --on openai/gpt-4 --for 2h --reason 'a demo for the board'",
        "boost user:42 --on openai/gpt-4 --end --yes",
    ),
    writes=True,
)
def boost(options: Namespace, out: Output) -> None:
    """Grant a boost, or end it."""
    if options.end:
        _end_boost(options, out)
        return
    if not options.limits:
        fail("No limits given: name at least one, such as tpm=1M/min.", ExitCode.USAGE)
    if not options.reason:
        fail("--reason is required for a boost.", ExitCode.USAGE)
    with changing(options, out):
        how = options.until, options.reason
        limits.grant_boost(options.entity, options.resource, options.limits, *how, plan=options.plan)


def _end_boost(options: Namespace, out: Output) -> None:
    whose = f"{options.entity} on {options.resource or 'all resources'}"
    if options.limits:
        fail("--end ends the whole boost: do not name limits.", ExitCode.USAGE)
    confirm(f"End the boost of {whose}?", options, out)
    with changing(options, out):
        if not limits.end_boost(options.entity, options.resource):
            fail(f"{whose} has no active boost.")


@subcommand(
    "reset usage; concurrent permits are not released",
    argument("resource", nargs="?", type=resource_name, metavar="RESOURCE", help="such as api or openai/gpt-4"),
    argument("--total", action="store_true", help="instead of a resource: the limits over all resources"),
    *WHOM,
    argument("--key", type=key, action="append", default=[], help="only this limit; may be repeated"),
    _ONCE,
    examples=(
        "reset openai/gpt-4 --entity user:42 --key tpm --yes --reason 'our mistake'",
        "reset --total --entity user:42 --yes",
    ),
    writes=True,
)
def reset(options: Namespace, out: Output) -> None:
    """Reset the usage of an entity, of the site itself, or of the totals."""
    keys = options.key or None
    whom = options.entity or "the site itself and shared limits"
    _check_place(options)
    if options.dry_run:
        _show_used(options, options.key, out)
        out.note("This was a dry run: nothing was reset.")
        return
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
    _show_done(out, "Reset.", done=done)
    if options.total:
        return
    default_limits = latest_code_limits(options.resource)
    if not limits.limit_set(options.resource, options.entity, default_limits, plan=options.plan):
        out.note(f"{_NO_LIMIT} Check the name of the resource.")


@subcommand(
    "give credit for a limit, at most its recorded use; permits of concurrency limits are not released",
    argument("resource", nargs="?", type=resource_name, metavar="RESOURCE", help="such as api or openai/gpt-4"),
    argument("credit", type=amount, metavar="KEY=AMOUNT", help="such as tpm=500"),
    argument("--total", action="store_true", help="instead of a resource: the limit over all resources"),
    *WHOM,
    _ONCE,
    examples=(
        "top-up openai/gpt-4 tpm=500 --entity user:42 --reason 'our mistake' --once ticket-18",
        "top-up tokens=1M --total --entity user:42",
    ),
    writes=True,
)
def top_up(options: Namespace, out: Output) -> None:
    """Give an entity, or the site itself, credit for a limit."""
    _check_place(options)
    name, credit = options.credit
    if options.dry_run:
        _show_used(options, [name], out)
        out.note("This was a dry run: no credit was given.")
        return
    done = limits.top_up(
        options.resource,
        key=name,
        amount=credit,
        entity=options.entity,
        plan=options.plan,
        reason=options.reason,
        idempotency_key=options.once,
        actor=actor(),
        source=SOURCE,
    )
    _show_done(out, "Credited.", done=done)


def _show_done(out: Output, done_text: str, *, done: bool) -> None:
    """Say whether something was done, or had been done before under the same name."""
    if out.form is not Format.TABLE:
        out.show(Table(("done",), [(done,)]), data={"done": done})
    out.note(done_text if done else "Already done with this name: nothing was changed.")


def _check_place(options: Namespace) -> None:
    if options.total is (options.resource is not None):
        fail("Name either a RESOURCE or --total, for the limits over all resources.", ExitCode.USAGE)


def _show_used(options: Namespace, keys: Sequence[str], out: Output) -> None:
    """Show the usage of some limits, or of all without keys."""
    stats_by_key = limits.status(options.resource or "any", entity=options.entity, plan=options.plan).limits
    values = {
        key.removeprefix(TOTAL_PREFIX): stats
        for key, stats in stats_by_key.items()
        if key.startswith(TOTAL_PREFIX) is options.total
    }
    if missing := sorted({*keys} - values.keys()):
        fail(
            f"No limit has the key {', '.join(missing)}; must be one of: {', '.join(values) or 'none'}", ExitCode.USAGE
        )
    rows = [(name, stats["used"]) for name, stats in values.items() if not keys or name in keys]
    out.show(Table(("key", "used"), rows, _NO_LIMIT))


@subcommand(
    "show the emergency switch, or set it: enforce all limits, shadow them, or switch them off",
    argument("mode", nargs="?", choices=Enforcement.values, help="without it, show the switch"),
    one_of(*UNTIL),
    examples=("emergency", "emergency off --reason 'incident 4711' --for 2h --yes", "emergency enforce"),
    writes=True,
)
def emergency(options: Namespace, out: Output) -> None:
    """Show or set the emergency switch."""
    if options.mode is None:
        switch = limits.emergency()
        table = Table(("mode", "until", "reason"), [(str(switch.mode), switch.until, switch.reason)])
        out.show(table, data=switch.as_dict(), text=emergency_text(switch))
        return
    if options.mode != Enforcement.ENFORCE:
        confirm(f"Set all limits of the site to {options.mode}?", options, out)
    with changing(options, out):
        limits.set_emergency(options.mode, reason=options.reason, until=options.until)


_POLICY: Final = argument("policy", type=positive, metavar="POLICY", help="the id of the policy")


@subcommand("list candidates and what they would reject", examples=("candidates list",))
def _list(options: Namespace, out: Output) -> None:
    candidates = limits.candidates()
    rows = [tuple(getattr(candidate, name) for name in _CANDIDATE) for candidate in candidates]
    out.show(
        Table(_CANDIDATE, rows, "There are no candidates."), data=[candidate.as_dict() for candidate in candidates]
    )


@subcommand(
    "set the candidate of a policy",
    _POLICY,
    argument("limits", nargs="+", metavar="LIMIT", help="such as calls=100/min"),
    argument("--percent", type=percent, default=100, help="percentage of entities to evaluate (100)"),
    argument("--revert-percent", type=percent, help="once enforced, revert above this share of rejections"),
    argument("--revert-minutes", type=positive, default=10, help="how long rejections are counted (10)"),
    examples=("candidates set 7 calls=50/min --revert-percent 5",),
    writes=True,
)
def _set(options: Namespace, out: Output) -> None:
    values = {name: getattr(options, name) for name in ("percent", "revert_percent", "revert_minutes", "reason")}
    with changing(options, out):
        limits.set_candidate(policy_of_id(options.policy), options.limits, **values)


def _change(verb: str, change: Callable[[Policy], Any], text: str) -> Subcommand:
    @subcommand(text, _POLICY, examples=(f"candidates {verb} 7 --yes",), writes=True)
    def run(options: Namespace, out: Output) -> None:
        policy = policy_of_id(options.policy)
        confirm(f"{verb.capitalize()} the candidate of {policy}?", options, out)
        with changing(options, out):
            if change(policy) is False:
                fail(f"The policy {policy} has no candidate.")

    return run


CANDIDATES: Final = Subcommand(
    "evaluate other limits beside those of a policy, and enforce (promote), revert or discard them",
    verbs={
        "list": _list,
        "set": _set,
        "promote": _change("promote", limits.promote_candidate, "enforce the limits of the candidate of a policy"),
        "revert": _change("revert", limits.revert_candidate, "restore the limits from before that"),
        "discard": _change("discard", limits.discard_candidate, "delete the candidate of a policy"),
    },
)

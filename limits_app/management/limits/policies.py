"""`system`, `resource`, `plan` and `entity`: policies, the store of a resource, and the plan of an entity."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from django.db.models import Q, QuerySet

from limits_app import services as limits
from limits_app.conf import OnUnavailable
from limits_app.management.limits.arguments import (
    limits_and_effect,
    moment,
    percent,
    takes_entity,
    takes_limits,
    takes_on,
    takes_resource,
)
from limits_app.management.limits.output import Output
from limits_app.management.limits.subcommand import (
    NO_ARGUMENTS,
    Arguments,
    ExitCode,
    Subcommand,
    changing,
    fail,
    note_unused,
    together,
)
from limits_app.management.limits.tables import Table
from limits_app.models import Counted, Enforcement, Policy, Resource
from limits_app.models.limit import limit_texts
from limits_app.models.policy_rules import weakened
from limits_app.services import definitions
from limits_app.services.dropped import dropped_messages, left_without
from limits_app.services.writing import PolicyOptions

_COLUMNS: Final = ("policy", "limits", "extends", "enforcement", "rollout_percent", "when", "on_unavailable", "reason")


def _names(options: Namespace) -> dict[str, str]:
    """The resource, entity and plan of a command, by argument names of the services."""
    found = {name: getattr(options, name, None) for name in ("resource", "entity", "plan")}
    return {name: value for name, value in found.items() if value is not None}


def _target(options: Namespace) -> tuple[list[str], dict[str, str]]:
    """The positional and the named arguments of a service."""
    about = _names(options)
    first = about.pop("entity", None) or about.pop("plan", None) or about.pop("resource", None)
    return [first] if first else [], about


def _set(options: Namespace, out: Output, *, write: Callable[..., Policy]) -> ExitCode:
    given, effect = limits_and_effect(options.limits)
    said = {name: value for name, value in vars(options).items() if name in PolicyOptions.__annotations__}
    first, about = _target(options)
    _confirm_weaker(options, out)
    with changing(options, out):
        policy = write(*first, given, **about, effect=effect, **said)
        warnings = dropped_messages(policy)
    for warning in warnings:
        out.note(f"warning: {warning}")
    note_unused(getattr(options, "entity", None), out)
    return ExitCode.OK


def _confirm_weaker(options: Namespace, out: Output) -> None:
    """Ask before a policy in force is set to shadow mode, off, or a smaller share of the entities."""
    if options.dry_run or (options.valid_until is not None and options.valid_from is None):  # which adds a policy
        return
    same = {name: getattr(options, name) for name in ("valid_from", "weekly_hours", "counted")}
    stored = _policies(options).filter(**same).first()
    if stored is not None and (why := weakened(vars(stored), vars(options))):
        out.confirm(f"{why} {left_without(stored)} Go on?", yes=options.yes)


def _get(options: Namespace, out: Output) -> ExitCode:
    found = list(_policies(options))
    if not found:
        fail(f"There are no policies for {_whom(options)}.")
    out.show(_table(found))
    return ExitCode.OK


def _delete(options: Namespace, out: Output, *, write: Callable[..., bool]) -> ExitCode:
    if not options.dry_run:
        out.confirm(f"Delete the policy of {_whom(options)} that {_holding(options)}?", yes=options.yes)
    first, about = _target(options)
    which = {name: getattr(options, name) for name in ("valid_at", "weekly_hours", "counted")}
    with changing(options, out):
        if not write(*first, **about, **which):
            fail(f"There is no policy of {_whom(options)} that {_holding(options)}.")
    return ExitCode.OK


def _holding(options: Namespace) -> str:
    """Describe which policy of a scope is selected."""
    if options.valid_at is not None:
        return f"has dates and is valid at {options.valid_at.isoformat(' ', 'seconds')}"
    if options.counted == Counted.TOTAL:
        return "is over all resources"
    return f"has the hours {options.weekly_hours}" if options.weekly_hours else "is always valid"


def _list(options: Namespace, out: Output, *, which: Q) -> ExitCode:
    found = _all().filter(which)
    if getattr(options, "resource", None) is not None:
        found = found.filter(resource__name=options.resource)
    out.show(_table(found))
    return ExitCode.OK


def _all() -> QuerySet[Policy]:
    return Policy.objects.select_related("resource", "entity", "plan").prefetch_related("limits")


def _policies(options: Namespace) -> QuerySet[Policy]:
    """All policies of one scope: the permanent one, and those with dates or hours."""
    about = _names(options)
    return _all().filter(
        resource__name=about.get("resource"), entity__identifier=about.get("entity"), plan__name=about.get("plan")
    )


def _table(policies: Iterable[Policy]) -> Table:
    rows = [
        (
            str(policy),
            limit_texts(policy.limits.all()) or [str(policy.effect)],
            policy.extends,
            str(policy.enforcement),
            policy.rollout_percent,
            policy.when(),
            str(policy.on_unavailable),
            policy.reason,
        )
        for policy in policies
    ]
    return Table(_COLUMNS, rows, "There are no policies.")


def _whom(options: Namespace) -> str:
    about = _names(options)
    if "entity" in about:
        return f"{about['entity']} on {about.get('resource', 'all resources')}"
    if "plan" in about:
        return f"the plan {about['plan']} on {about.get('resource', 'all resources')}"
    return f"the resource {about['resource']}" if about else "the system"


def _takes_policy(parser: ArgumentParser) -> None:
    parser.add_argument("--extends", action="store_true", help="add to the next broader policy instead of replacing it")
    parser.add_argument("--enforcement", metavar="|".join(Enforcement.values), default=Enforcement.ENFORCE.value)
    parser.add_argument(
        "--rollout",
        dest="rollout_percent",
        type=percent,
        default=100,
        metavar="PERCENT",
        help="percentage of entities that the policy applies to",
    )
    parser.add_argument(
        "--on-unavailable", metavar="|".join(OnUnavailable), default="", help="behaviour while the store is unavailable"
    )
    parser.add_argument(
        "--slice-seconds", type=int, default=0, help="hold capacity in each process for up to this time; 0: off"
    )
    parser.add_argument("--from", dest="valid_from", type=moment, metavar="MOMENT", help="start of validity")
    parser.add_argument("--until", dest="valid_until", type=moment, metavar="MOMENT", help="end of validity")
    parser.add_argument(
        "--hours", dest="weekly_hours", default="", help='weekly hours of validity, such as "mon-fri 09:00-17:00"'
    )
    parser.add_argument("--time-zone", default="", help="time zone of the hours, such as Europe/Berlin")


def _takes_total(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--total",
        dest="counted",
        action="store_const",
        const=Counted.TOTAL.value,
        default=Counted.EACH.value,
        help="over all resources together, in addition to the policies of the resources",
    )


def _takes_which(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--at", dest="valid_at", type=moment, metavar="MOMENT", help="the policy with dates that is valid at this time"
    )
    which.add_argument(
        "--hours", dest="weekly_hours", default="", help="the policy with these weekly hours, as shown by `get`"
    )


def _takes_plan(parser: ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="such as pro")


def _scope(
    what: str,
    takes: Arguments,
    *,
    write: tuple[Callable[..., Policy], Callable[..., bool]],
    which: Q,
    narrows: Arguments = NO_ARGUMENTS,
    examples: Mapping[str, tuple[str, ...]],
    more: Mapping[str, Subcommand] | None = None,
) -> Subcommand:
    """The verbs for the policies of one level."""
    set_, delete = write
    return Subcommand(
        help=f"policies for {what}",
        verbs={
            "set": Subcommand(
                f"set the limits of {what}; replaces the previous policy",
                partial(_set, write=set_),
                together(takes, takes_limits, _takes_total, _takes_policy),
                examples["set"],
                writes=True,
            ),
            "get": Subcommand(f"show the policies for {what}", _get, takes, examples["get"]),
            "delete": Subcommand(
                f"delete the permanent policy for {what}, or one with hours or dates",
                partial(_delete, write=delete),
                together(takes, _takes_total, _takes_which),
                examples["delete"],
                writes=True,
            ),
            "list": Subcommand(f"list all policies for {what}", partial(_list, which=which), narrows, examples["list"]),
            **(more or {}),
        },
    )


def _set_store(options: Namespace, out: Output) -> ExitCode:
    with changing(options, out):
        resource = definitions.find_or_new(Resource, options.resource)
        definitions.save(definitions.read(resource, {"store": options.alias}, partial=True))
    return ExitCode.OK


def _takes_alias(parser: ArgumentParser) -> None:
    parser.add_argument("alias", metavar="ALIAS", help="a key of LIMITS['STORES'], or '' for the default store")


def _set_plan(options: Namespace, out: Output) -> ExitCode:
    with changing(options, out):
        limits.set_entity(options.entity, plan=options.plan or None, reason=options.reason)
    return ExitCode.OK


def _takes_plan_or_none(parser: ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="the name of a plan, or '' for none")


PLAN_OF_ENTITY: Final = Subcommand(
    "set the plan of an entity; recorded use is kept",
    _set_plan,
    together(takes_entity, _takes_plan_or_none),
    ("entity plan user:42 pro", "entity plan user:42 ''"),
    writes=True,
)
STORE: Final = Subcommand(
    "set the store of a resource; this resets its usage",
    _set_store,
    together(takes_resource, _takes_alias),
    ("resource store reports.export shared", "resource store reports.export ''"),
    writes=True,
)
SYSTEM: Final = _scope(
    "the system",
    NO_ARGUMENTS,
    write=(limits.set_system_limits, limits.delete_system_limits),
    which=Q(resource=None, entity=None, plan=None),
    examples={
        "set": (
            "system set calls=1000/min",
            "system set calls=500/min --total",
            'system set calls=100/min --hours "sat,sun" --time-zone Europe/Berlin',
        ),
        "get": ("system get",),
        "delete": ("system delete --yes", 'system delete --hours "sat,sun" --yes'),
        "list": ("system list",),
    },
)
RESOURCE: Final = _scope(
    "a resource",
    takes_resource,
    write=(limits.set_resource_limits, limits.delete_resource_limits),
    which=Q(resource__isnull=False, entity=None, plan=None),
    examples={
        "set": (
            "resource set openai/gpt-4 rpm=1000/min tpm=400k/min",
            "resource set reports.export connections=10:shared --reason 'one small machine'",
            "resource set api blocked --dry-run",
        ),
        "get": ("resource get openai/gpt-4",),
        "delete": ("resource delete openai/gpt-4 --yes",),
        "list": ("resource list --format json",),
    },
    more={"store": STORE},
)
ENTITY: Final = _scope(
    "an entity",
    together(takes_entity, takes_on),
    write=(limits.set_entity_limits, limits.delete_entity_limits),
    which=Q(entity__isnull=False),
    narrows=takes_on,
    examples={
        "set": (
            "entity set tenant:acme budget=5M/month@Europe/Berlin",
            "entity set user:42 tpm=100k/min --on openai/gpt-4 --extends",
            "entity set tenant:acme tokens=1M/day --total",
            "entity set 'key:*' calls=100/min",
        ),
        "get": ("entity get user:42 --on openai/gpt-4",),
        "delete": ("entity delete user:42 --yes",),
        "list": ("entity list --on openai/gpt-4",),
    },
    more={"plan": PLAN_OF_ENTITY},
)
PLAN: Final = _scope(
    "a plan",
    together(_takes_plan, takes_on),
    write=(limits.set_plan_limits, limits.delete_plan_limits),
    which=Q(plan__isnull=False),
    narrows=takes_on,
    examples={
        "set": ("plan set pro tokens=1M/day", "plan set free calls=10/min --on openai/gpt-4"),
        "get": ("plan get pro",),
        "delete": ("plan delete pro --on openai/gpt-4 --yes",),
        "list": ("plan list",),
    },
)

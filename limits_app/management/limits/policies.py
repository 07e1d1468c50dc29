"""`system`, `resource`, `plan` and `entity`: policies, the store of a resource, and what an entity itself has."""

from __future__ import annotations

from argparse import BooleanOptionalAction, Namespace
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final, cast

from django.db.models import Q, QuerySet

from limits_app import services as limits
from limits_app.conf import OnUnavailable
from limits_app.management.limits.arguments import (
    ENTITY,
    ON,
    RESOURCE,
    argument,
    entity_name,
    limits_and_effect,
    moment,
    moment_or_none,
    one_of,
    percent,
)
from limits_app.management.limits.output import Output, Table
from limits_app.management.limits.subcommand import (
    Argument,
    Subcommand,
    changing,
    confirm,
    fail,
    note_unused,
    subcommand,
)
from limits_app.models import Counted, Enforcement, Entity, Policy, Resource
from limits_app.models.limit import limit_texts
from limits_app.models.policy_rules import weakened
from limits_app.services import block_confirmation, definitions
from limits_app.services.listing import NamedScope
from limits_app.services.policy_warnings import left_without, warnings_of
from limits_app.services.writing import EntityFields, PolicyOptions, delete_policy, set_policy

_COLUMNS: Final = ("policy", "limits", "extends", "enforcement", "rollout_percent", "when", "on_unavailable", "reason")

_CHUNK: Final = 2_000
"""How many policies of a list are kept at a time."""


def _scope_of(options: Namespace) -> NamedScope:
    """The resource, entity and plan of a command."""
    return NamedScope(*(getattr(options, name, None) for name in NamedScope._fields))


def _set(options: Namespace, out: Output) -> None:
    fields = _entity_fields(options)
    if fields and not options.limits:
        _confirm_block(options, fields, out)
        with changing(options, out):
            limits.set_entity(options.entity, reason=options.reason, **fields)
        return
    texts, effect = limits_and_effect(options.limits)
    values: Any = {name: value for name, value in vars(options).items() if name in PolicyOptions.__annotations__}
    _confirm(options, effect, out)
    _confirm_block(options, fields, out)
    with changing(options, out):
        if fields:
            limits.set_entity(options.entity, reason=options.reason, **fields)
        policy = set_policy(_scope_of(options), texts, values | {"effect": effect})
        warnings = warnings_of(policy, policy.limits.values_list("key", flat=True))
    for warning in warnings:
        out.note(f"warning: {warning}")
    note_unused(getattr(options, "entity", None), out)


def _entity_fields(options: Namespace) -> EntityFields:
    """The fields of the entity itself that a command sets, such as its parent; empty of other commands."""
    fields: Any = {name: getattr(options, name, None) for name in ("parent", "cascade", "blocked", "unlimited")}
    if fields["parent"] == "":
        return {**_without_none(fields), "parent": None}
    return _without_none(fields)


def _without_none(fields: Any) -> EntityFields:
    return cast("EntityFields", {name: value for name, value in fields.items() if value is not None})


def _confirm_block(options: Namespace, fields: EntityFields, out: Output) -> None:
    """Ask before the flag of an entity also blocks others than is meant."""
    if not fields.get("blocked"):
        return
    stored = Entity.objects.filter(identifier=options.entity).first()
    before = None if stored is None else block_confirmation.state_of(stored)
    if warning := block_confirmation.warning([(Entity, before, {"identifier": options.entity, "blocked": True})]):
        confirm(f"{warning} Go on?", options, out)


def _confirm(options: Namespace, effect: str, out: Output) -> None:
    """Ask before a policy in force is enforced for fewer, and before a block that also hits others than is meant."""
    stored = None
    if options.valid_until is None or options.valid_from is not None:  # which otherwise adds a policy
        same = {name: getattr(options, name) for name in ("valid_from", "weekly_hours", "counted")}
        stored = _policies(options).filter(**same).first()
    if stored is not None and (why := weakened(vars(stored), vars(options))):
        confirm(f"{why} {left_without(stored)} Go on?", options, out)
    before = None if stored is None else block_confirmation.state_of(stored)
    after = {**vars(options), **_scope_of(options)._asdict(), "effect": effect}
    if warning := block_confirmation.warning([(Policy, before, after)]):
        confirm(f"{warning} Go on?", options, out)


def _get(options: Namespace, out: Output) -> None:
    policies = list(_policies(options))
    if not policies:
        fail(f"There are no policies for {_whom(options)}.")
    out.show(_table(policies))


def _delete(options: Namespace, out: Output) -> None:
    confirm(f"Delete the policy of {_whom(options)} that {_holding(options)}?", options, out)
    which: Any = {name: getattr(options, name) for name in ("valid_at", "weekly_hours", "counted")}
    with changing(options, out):
        if not delete_policy(_scope_of(options), which):
            fail(f"There is no policy of {_whom(options)} that {_holding(options)}.")


def _holding(options: Namespace) -> str:
    """Describe which policy of a scope is selected."""
    if options.valid_at is not None:
        return f"has dates and is valid at {options.valid_at.isoformat(' ', 'seconds')}"
    if options.counted == Counted.TOTAL:
        return "is over all resources"
    return f"has the hours {options.weekly_hours}" if options.weekly_hours else "is always valid"


def _list(options: Namespace, out: Output, *, which: Q) -> None:
    policies = _all().filter(which)
    if getattr(options, "resource", None) is not None:
        policies = policies.filter(resource__name=options.resource)
    out.show(_table(policies.iterator(_CHUNK)))


def _all() -> QuerySet[Policy]:
    return Policy.objects.select_related("resource", "entity", "plan").prefetch_related("limits")


def _policies(options: Namespace) -> QuerySet[Policy]:
    """All policies of one scope: the permanent one, and those with dates or hours."""
    scope = _scope_of(options)
    return _all().filter(resource__name=scope.resource, entity__identifier=scope.entity, plan__name=scope.plan)


def _table(policies: Iterable[Policy]) -> Table:
    rows = [
        (
            str(policy),
            limit_texts(policy.limits.all()) or [policy.effect],
            policy.extends,
            policy.enforcement,
            policy.rollout_percent,
            policy.when(),
            policy.on_unavailable,
            policy.reason,
        )
        for policy in policies
    ]
    return Table(_COLUMNS, rows, "There are no policies.")


def _whom(options: Namespace) -> str:
    resource, entity, plan = _scope_of(options)
    if entity or plan:
        return f"{entity or f'the plan {plan}'} on {resource or 'all resources'}"
    return f"the resource {resource}" if resource else "the system"


_PLAN: Final = argument("plan", metavar="PLAN", help="such as pro")
_TOTAL: Final = argument(
    "--total",
    dest="counted",
    action="store_const",
    const=Counted.TOTAL.value,
    default=Counted.EACH.value,
    help="over all resources together, in addition to the policies of the resources",
)
_LIMITS: Final = argument(
    "limits",
    nargs="*",
    metavar="LIMIT",
    help="such as rpm=1000/min, calls=30/10s:gcra, budget=5M/month@Europe/Berlin or connections=10; "
    "or the word blocked or unlimited",
)
_CASCADE: Final = argument(
    "--cascade",
    action=BooleanOptionalAction,
    default=None,
    help="apply the limits of the parent too; without the option, this stays as it is",
)
_ENTITY_FIELDS: Final = (
    argument("--parent", metavar="PARENT", help="the entity above it, such as tenant:acme, or '' for none"),
    _CASCADE,
    argument(
        "--blocked", action=BooleanOptionalAction, default=None, help="whether all requests of the entity are rejected"
    ),
    argument("--unlimited", action=BooleanOptionalAction, default=None, help="whether the entity has no limits"),
)
"""What `entity set` sets of the entity itself; without an option, it stays as it is."""
_FIELDS: Final = (
    argument("--extends", action="store_true", help="add to the next broader policy instead of replacing it"),
    argument("--enforcement", metavar="|".join(Enforcement.values), default=Enforcement.ENFORCE.value),
    argument(
        "--rollout",
        dest="rollout_percent",
        type=percent,
        default=100,
        metavar="PERCENT",
        help="percentage of entities that the policy applies to",
    ),
    argument(
        "--on-unavailable", metavar="|".join(OnUnavailable), default="", help="behaviour while the store is unavailable"
    ),
    argument("--slice-seconds", type=int, default=0, help="hold capacity in each process for up to this time; 0: off"),
    argument("--from", dest="valid_from", type=moment, metavar="MOMENT", help="start of validity"),
    argument("--until", dest="valid_until", type=moment, metavar="MOMENT", help="end of validity"),
    argument("--hours", dest="weekly_hours", default="", help='weekly hours of validity: "mon-fri 09:00-17:00"'),
    argument("--time-zone", default="", help="time zone of the hours, such as Europe/Berlin"),
)
_WHICH: Final = one_of(
    argument("--at", dest="valid_at", type=moment, metavar="MOMENT", help="the policy with dates, valid at this time"),
    argument("--hours", dest="weekly_hours", default="", help="the policy with these hours, as `get` shows them"),
)


def _scope(
    what: str,
    example: str,
    *target: Argument,
    which: Q,
    set_examples: tuple[str, ...],
    own_fields: tuple[Argument, ...] = (),
    more: Mapping[str, Subcommand] | None = None,
) -> Subcommand:
    """The verbs for the policies of one level. `example` is a command line with a place for the verb."""
    setting = subcommand(
        f"set the limits of {what}; replaces the previous policy",
        *(*target, _LIMITS, _TOTAL, *_FIELDS, *own_fields),
        examples=tuple(f"{example.format('set')} {rest}" for rest in set_examples),
        writes=True,
    )
    getting = subcommand(f"show the policies for {what}", *target, examples=(example.format("get"),))
    deleting = subcommand(
        f"delete the permanent policy for {what}, or one with hours or dates",
        *(*target, _TOTAL, _WHICH),
        examples=(f"{example.format('delete')} --yes",),
        writes=True,
    )
    listing = subcommand(
        f"list all policies for {what}",
        *(switch for switch in target if switch is ON),
        examples=(f"{example.split(maxsplit=1)[0]} list --format json",),
    )
    verbs = {
        "set": setting(_set),
        "get": getting(_get),
        "delete": deleting(_delete),
        "list": listing(partial(_list, which=which)),
    }
    return Subcommand(f"policies for {what}", verbs={**verbs, **(more or {})})


@subcommand(
    "set the store of a resource; this resets its usage",
    RESOURCE,
    argument("alias", metavar="ALIAS", help="a key of LIMITS['STORES'], or '' for the default store"),
    examples=("resource store reports.export shared", "resource store reports.export ''"),
    writes=True,
)
def _set_store(options: Namespace, out: Output) -> None:
    with changing(options, out):
        resource = definitions.find_or_new(Resource, options.resource)
        definitions.save(definitions.read(resource, {"store": options.alias}, partial=True))


@subcommand(
    "set the parent of an entity; both are created where they do not exist",
    ENTITY,
    argument("parent", metavar="PARENT", help="such as tenant:acme, or '' for none"),
    _CASCADE,
    examples=("entity parent user:42 tenant:acme --cascade", "entity parent user:42 ''"),
    writes=True,
)
def _set_parent(options: Namespace, out: Output) -> None:
    with changing(options, out):
        limits.set_entity(options.entity, reason=options.reason, **_entity_fields(options))


@subcommand(
    "list the resources on which an entity has its own policies, or any entity has some",
    argument("entity", nargs="?", type=entity_name, metavar="ENTITY", help="such as user:42; without it, any"),
    examples=("entity list-resources user:42", "entity list-resources --format json"),
)
def _list_resources(options: Namespace, out: Output) -> None:
    policies = Policy.objects.filter(resource__isnull=False, entity__isnull=False)
    if options.entity is not None:
        policies = policies.filter(entity__identifier=options.entity)
    names = sorted(set(policies.values_list("resource__name", flat=True)))
    out.show(Table(("resource",), [(name,) for name in names], "There are no policies of this kind."))


@subcommand(
    "set the plan of an entity; recorded use is kept",
    ENTITY,
    argument("plan", metavar="PLAN", help="the name of a plan, or '' for none"),
    examples=("entity plan user:42 pro", "entity plan user:42 ''"),
    writes=True,
)
def _set_plan(options: Namespace, out: Output) -> None:
    with changing(options, out):
        limits.set_entity(options.entity, plan=options.plan or None, reason=options.reason)


@subcommand(
    "set the billing date of an entity, with which its quotas `from=client` begin; recorded use is kept",
    ENTITY,
    argument("billing_from", metavar="TIME", type=moment_or_none, help="such as 2026-01-15, or '' for none of its own"),
    examples=("entity billing tenant:acme 2026-01-15T06:00+01:00", "entity billing tenant:acme ''"),
    writes=True,
)
def _set_billing(options: Namespace, out: Output) -> None:
    with changing(options, out):
        limits.set_entity(options.entity, billing_from=options.billing_from, reason=options.reason)


SYSTEM: Final = _scope(
    "the system",
    "system {}",
    which=Q(resource=None, entity=None, plan=None),
    set_examples=(
        "calls=1000/min",
        "calls=500/min --total",
        'calls=100/min --hours "sat,sun" --time-zone Europe/Berlin',
    ),
)
RESOURCE_POLICIES: Final = _scope(
    "a resource",
    "resource {} openai/gpt-4",
    RESOURCE,
    which=Q(resource__isnull=False, entity=None, plan=None),
    set_examples=(
        "rpm=1000/min tpm=400k/min",
        "connections=10:shared --reason 'one small machine'",
        "blocked --dry-run",
    ),
    more={"store": _set_store},
)
ENTITY_POLICIES: Final = _scope(
    "an entity",
    "entity {} user:42",
    ENTITY,
    ON,
    which=Q(entity__isnull=False),
    set_examples=(
        "budget=5M/month@Europe/Berlin",
        "tpm=100k/min --on openai/gpt-4 --extends",
        "tokens=1M/day --total",
        "--parent tenant:acme --cascade",
        "--blocked --reason 'a stolen key'",
    ),
    own_fields=_ENTITY_FIELDS,
    more={"billing": _set_billing, "list-resources": _list_resources, "parent": _set_parent, "plan": _set_plan},
)
PLAN_POLICIES: Final = _scope(
    "a plan",
    "plan {} pro",
    _PLAN,
    ON,
    which=Q(plan__isnull=False),
    set_examples=("tokens=1M/day", "calls=10/min --on openai/gpt-4"),
)

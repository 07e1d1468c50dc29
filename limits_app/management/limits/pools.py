"""`pool`: pools and their members."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError, BooleanOptionalAction, Namespace
from functools import partial
from typing import Any, Final

from django.db import router
from django.db.models import ProtectedError, QuerySet

from limits_app.engine.errors import UnknownPool
from limits_app.management.limits.arguments import argument, positive, resource_name
from limits_app.management.limits.output import Output, Table
from limits_app.management.limits.subcommand import Subcommand, changing, confirm, fail, subcommand
from limits_app.models import Configuration, LoadBalancing, Pool, PoolMember, Resource
from limits_app.models.limit import limit_texts
from limits_app.services import definitions

_POOLS: Final = ("pool", "load_balancing", "failover", "enabled", "members", "serves", "description")
_MEMBERS: Final = ("member", "order", "weight", "enabled", "limits", "config")
_POOL: Final = argument("pool", type=resource_name, metavar="POOL", help="such as bedrock/claude")
_SOME_MEMBERS: Final = argument("members", nargs="+", metavar="MEMBER")


def _config(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"the config must be JSON: {error}") from error
    if not isinstance(config, dict):
        raise ArgumentTypeError('the config must be a JSON object, such as {"region": "us-east-1"}')
    return config


@subcommand("list all pools", examples=("pool list",))
def _list(options: Namespace, out: Output) -> None:
    rows = []
    for pool in Pool.objects.prefetch_related("members", "resources"):
        members = pool.members.all()
        enabled = sum(member.enabled for member in members)
        serves = [resource.name for resource in pool.resources.all()]
        rows.append((pool.name, pool.load_balancing, pool.failover, enabled, len(members), serves, pool.description))
    out.show(Table(_POOLS, rows, "There are no pools."))


@subcommand("show the members of a pool", _POOL, examples=("pool get bedrock/claude",))
def _get(options: Namespace, out: Output) -> None:
    members = _found(options.pool).members.prefetch_related("limits")
    rows = [
        (
            member.name,
            member.order,
            member.weight,
            member.enabled,
            limit_texts(member.limits.all()),
            json.dumps(member.config),
        )
        for member in members
    ]
    out.show(Table(_MEMBERS, rows, f"The pool {options.pool} has no members."))


@subcommand(
    "create a pool, or change the given fields",
    _POOL,
    argument("--load-balancing", metavar="|".join(LoadBalancing.values), help="how to choose the first member"),
    argument("--failover", action=BooleanOptionalAction, help="try the other members when the first one is full"),
    argument("--description", help="description for other administrators"),
    argument("--serves", type=resource_name, action="append", default=[], metavar="RESOURCE", help="may be repeated"),
    examples=("pool set bedrock/claude --load-balancing least_loaded --serves claude",),
    writes=True,
)
def _set(options: Namespace, out: Output) -> None:
    values = {name: getattr(options, name) for name in ("load_balancing", "failover", "description")}
    with changing(options, out):
        _save(definitions.find_or_new(Pool, options.pool), values)
        for name in options.serves:
            _save(definitions.find_or_new(Resource, name), {"pool": options.pool})


@subcommand("delete a pool with its members", _POOL, examples=("pool delete bedrock/claude --dry-run",), writes=True)
def _delete(options: Namespace, out: Output) -> None:
    confirm(f"Delete the pool {options.pool} with its members?", options, out)
    try:
        with changing(options, out):
            _found(options.pool).delete()
    except ProtectedError as error:
        served = ", ".join(sorted(map(str, error.protected_objects)))
        fail(f"The pool {options.pool} serves {served}: assign another pool to it first.")


@subcommand(
    "add a member, or change the given fields",
    _POOL,
    argument("member", metavar="MEMBER", help="such as us-east-1/1"),
    argument("limits", nargs="*", default=[], metavar="LIMIT", help="replace the current limits"),
    argument("--weight", type=positive, help="relative frequency of being chosen first, in a weighted pool"),
    argument("--order", type=positive, help="position in the pool, in ascending order"),
    argument("--config", type=_config, metavar="JSON", help="data for your code that uses the member"),
    examples=("""pool set-member bedrock/claude us-east-1 rpm=50/min --config '{"region": "us-east-1"}'""",),
    writes=True,
)
def _set_member(options: Namespace, out: Output) -> None:
    values = {name: getattr(options, name) or None for name in ("weight", "order", "config", "limits")}
    with changing(options, out):
        pool = _found(options.pool)
        member = pool.members.filter(name=options.member).first() or PoolMember(pool=pool, name=options.member)
        _save(member, values)


@subcommand(
    "remove members", _POOL, _SOME_MEMBERS, examples=("pool remove-member bedrock/claude us-east-1 --yes",), writes=True
)
def _remove_member(options: Namespace, out: Output) -> None:
    confirm(f"Remove {', '.join(options.members)} from the pool {options.pool}?", options, out)
    with changing(options, out):
        _members(options).delete()


def _switch(options: Namespace, out: Output, *, enabled: bool) -> None:
    with changing(options, out):
        for member in _members(options):
            _save(member, {"enabled": enabled})


def _found(name: str) -> Pool:
    pool = Pool.objects.using(router.db_for_write(Pool)).filter(name=name).first()
    if pool is None:
        names = ", ".join(Pool.objects.values_list("name", flat=True)) or "none"
        raise UnknownPool(f"Unknown pool {name!r}; must be one of: {names}.")
    return pool


def _members(options: Namespace) -> QuerySet[PoolMember]:
    members = _found(options.pool).members.filter(name__in=options.members)
    missing = sorted({*options.members} - {*members.values_list("name", flat=True)})
    if missing:
        fail(f"The pool {options.pool} has no member {', '.join(missing)}.")
    return members


def _save(row: Configuration, values: dict[str, Any]) -> None:
    """Save a row with the given values; raises InvalidDefinition if they are invalid."""
    changed = {name: value for name, value in values.items() if value is not None}
    definitions.save(definitions.read(row, changed, partial=True))


POOL: Final = Subcommand(
    "pools, and their members",
    verbs={
        "list": _list,
        "get": _get,
        "set": _set,
        "delete": _delete,
        "set-member": _set_member,
        "remove-member": _remove_member,
        **{
            name: subcommand(
                text, _POOL, _SOME_MEMBERS, examples=(f"pool {name} bedrock/claude us-east-1",), writes=True
            )(partial(_switch, enabled=name == "enable"))
            for name, text in (("enable", "enable members"), ("disable", "disable members temporarily"))
        },
    },
)

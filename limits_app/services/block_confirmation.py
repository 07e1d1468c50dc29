"""Blocks that need a confirmation, because they also hit their author, a proxy, a private network, or everyone.

The forms, actions and imports of the admin, the REST API and the commands ask before they make or widen such a block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_network
from typing import Any, Final, NamedTuple

from django.utils.translation import gettext

from limits_app import audit, conf
from limits_app.models import AuditEvent, Counted, Enforcement, Entity, Policy, PolicyEffect, registered, write_alias
from limits_app.models.base import Definable
from limits_app.models.patterns import Patterns
from limits_app.models.prefixes import ADDRESS
from limits_app.policies import IdentityAndPlan, Subject, policy_source
from limits_app.services.policy_warnings import MOST_NAMED

BlockState = Mapping[str, Any]
"""The fields of a row by name, where other rows are rows or names."""
BlockedChange = tuple[type[Any], BlockState | None, BlockState | None]
"""A model, and the state of a row before and after; None before it is made and after it is deleted."""


_PRIVATE: Final = tuple(
    map(
        ip_network,
        (
            *("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"),
            *("::1/128", "fc00::/7", "fe80::/10"),
        ),
    )
)
"""The private, loopback and link-local networks, and the one between a provider and its customers."""
_OCTET_BITS: Final = 8
_GROUP_BITS: Final = 16


class BlockScope(NamedTuple):
    """Who is blocked: an entity or a pattern, or else a plan, or else everyone; and on which resource (None: all)."""

    identifier: str | None = None
    plan: str | None = None
    resource: str | None = None


def state_of(row: Definable) -> dict[str, Any]:
    """The state of a row in memory."""
    return {name: getattr(row, name) for name in registered(type(row)).fields}


def revert_of(event: AuditEvent) -> BlockedChange:
    """The change that a revert of an event makes; raises CannotRevert if the event is not about an object."""
    _verb, model = audit.changed_by_revert(event)
    now = audit.state_now(event)
    return model, now, None if event.before is None else {**(now or {}), **event.before}


def warning(changes: Iterable[BlockedChange], author: Collection[IdentityAndPlan] = ()) -> str:
    """Say whom changes of rows also block; empty where they make or widen no block that needs a confirmation.

    `author` are the identities of the author of the changes.
    """
    changed = ((_block(model, before), _block(model, after)) for model, before, after in changes)
    new = dict.fromkeys(block for before, block in changed if block is not None and block != before)
    hit = list(dict.fromkeys(name for block in new for name in _also_hit(block, author)))
    shown = ", ".join(hit if len(hit) <= MOST_NAMED else [*hit[:MOST_NAMED], "…"])
    return gettext("This also blocks %(hit)s.") % {"hit": shown} if hit else ""


def _block(model: type[Any], state: BlockState | None) -> BlockScope | None:
    """The block of a row, unless it is not enforced; a block of a resource for everyone does not count."""
    if state is None:
        return None
    if model is Entity:
        return BlockScope(str(state.get("identifier"))) if state.get("blocked") else None
    effect, enforcement, counted = (state.get(name) for name in ("effect", "enforcement", "counted"))
    if model is not Policy or effect != PolicyEffect.BLOCKED or enforcement != Enforcement.ENFORCE:
        return None
    names = (state.get(name) for name in ("entity", "plan", "resource"))
    entity, plan, resource = (str(name) if name else None for name in names)
    if entity is None and plan is None and (resource is not None or counted != Counted.TOTAL):
        return None
    return BlockScope(entity, plan, resource)


def _also_hit(block: BlockScope, author: Collection[IdentityAndPlan]) -> Iterator[str]:
    network = None if block.identifier is None else _network(block.identifier)
    if (block.identifier is None and block.plan is None) or (network is not None and not network.prefixlen):
        yield gettext("everyone")
        return
    blocked = Patterns([] if block.identifier is None else [block.identifier])
    for name, plan in author:
        chain = policy_source.read(Subject(None, name, plan), write_alias(), datetime.now(UTC))
        if (block.plan is not None and chain.plan == block.plan) or any(link.entity in blocked for link in chain.links):
            yield name
    if network is None:
        return
    if _overlaps(network, conf.get(conf.TRUSTED_PROXIES)):
        yield gettext("a trusted proxy")
    if _overlaps(network, _PRIVATE):
        yield gettext("a private network")


def _overlaps(network: IPv4Network | IPv6Network, others: tuple[IPv4Network | IPv6Network | None, ...]) -> bool:
    return any(other is not None and other.version == network.version and other.overlaps(network) for other in others)


def _network(identifier: str) -> IPv4Network | IPv6Network | None:
    """The network of an identifier or a pattern of addresses; of one that ends in “*”, one that has all of them."""
    if not identifier.startswith(ADDRESS):
        return None
    text = identifier.removeprefix(ADDRESS)
    try:
        return _network_of_prefix(text.removesuffix("*")) if text.endswith("*") else ip_network(text)
    except ValueError:
        return None


def _network_of_prefix(prefix: str) -> IPv4Network | IPv6Network:
    """The network of all addresses that begin with a text; raises ValueError where no address does."""
    if "." in prefix:
        octets = prefix.removesuffix(".").split(".")
        padded = ".".join([*octets, "0", "0", "0"][:4])
        return IPv4Network((IPv4Address(padded), len(octets) * _OCTET_BITS))
    groups = prefix.partition("::")[0].removesuffix(":")
    if not groups:
        return IPv6Network("::/0")
    return IPv6Network(f"{groups}::/{len(groups.split(':')) * _GROUP_BITS}")

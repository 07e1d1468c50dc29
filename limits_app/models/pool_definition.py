"""A pool and its members, read as immutable values in one query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from limits_app.core.limits import Limit as Definition
from limits_app.models.limit_columns import COLUMNS, definition_of
from limits_app.models.pool import Pool

__all__ = ["MemberDefinition", "PoolDefinition", "pool_definition"]

_MEMBER: Final = ("name", "weight", "config", "enabled")


@dataclass(frozen=True, slots=True)
class MemberDefinition:
    """One member: its limits in the order of their keys, and its config with secrets by their names only."""

    name: str
    weight: int = 1
    config: Mapping[str, object] = field(default_factory=dict, hash=False)
    enabled: bool = True
    limits: tuple[Definition, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolDefinition:
    """A pool, and all its members in order, also those that are switched off."""

    name: str
    load_balancing: str
    failover: bool
    members: tuple[MemberDefinition, ...]

    @property
    def enabled(self) -> tuple[MemberDefinition, ...]:
        """The members that may serve."""
        return tuple(member for member in self.members if member.enabled)


def pool_definition(name: str, using: str) -> PoolDefinition | None:
    """Give the pool of this name as the database has it; None where there is none."""
    columns = ["load_balancing", "failover", "members__pk", *[f"members__{column}" for column in _MEMBER]]
    columns += [f"members__limits__{column}" for column in COLUMNS]
    pools = Pool.objects.using(using).filter(name=name)
    rows = list(pools.order_by("members__order", "members__pk").values_list(*columns))
    if not rows:
        return None
    load_balancing, failover = rows[0][:2]
    members: dict[int, tuple[dict[str, Any], list[Definition]]] = {}
    for _, _, pk, *rest in rows:
        if pk is None:
            continue
        _, limits = members.setdefault(pk, (dict(zip(_MEMBER, rest, strict=False)), []))
        if rest[len(_MEMBER)] is not None:
            limits.append(definition_of(*rest[len(_MEMBER) :]))
    # Limits always in the same order, since every process must compile the same layout.
    found = [
        MemberDefinition(**known, limits=tuple(sorted(limits, key=attrgetter("key"))))
        for known, limits in members.values()
    ]
    return PoolDefinition(name, load_balancing, failover, tuple(found))

"""Supplies: what the members of a pool have to give, and the desk at which they take turns."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final, Protocol

from limits_app.core.balancing import Balancer, balancer_named
from limits_app.core.keys import member_scope
from limits_app.core.limits import Blocked
from limits_app.core.plan import ScopedLimits
from limits_app.models import MemberDefinition, PoolDefinition
from limits_app.models.validators import MEMBER_KEY
from limits_app.resolver.layouts import LayOut

__all__ = ["MEMBER_LEVEL", "Desks", "Supply", "Supplying", "desks"]

MEMBER_LEVEL: Final = "pool_member"
"""The level of the limits of a pool's member."""

_NOBODY: Final = MemberDefinition("")
"""Stands in a pool in which no member is enabled, and refuses everything."""


class Supplying(Protocol):
    """What serves a request: its members by name, of which one is charged.

    Others are asked when it refuses, if it has `failover`; their turns are taken at the `desk`.
    """

    @property
    def failover(self) -> bool:
        """Whether the others are asked when the chosen member refuses."""

    @property
    def scoped(self) -> Mapping[Hashable, tuple[ScopedLimits, ...]]:
        """The limits of each member."""

    @property
    def configs(self) -> Mapping[Hashable, Mapping[str, object]]:
        """What each member says to those whom it serves, with secrets by their names."""

    @property
    def desk(self) -> Balancer:
        """Where members take turns."""

    def changed(self, change: Callable[[ScopedLimits], ScopedLimits]) -> Supplying:
        """The same members with other limits."""


@dataclass(frozen=True, slots=True)
class Supply:
    """The limits of each enabled member of a pool, by its name."""

    definition: PoolDefinition
    scoped: Mapping[Hashable, tuple[ScopedLimits, ...]]

    @classmethod
    def of(cls, definition: PoolDefinition, lay_out: LayOut) -> Supply:
        """Compile the members of a pool."""
        members = definition.enabled
        scoped: dict[Hashable, tuple[ScopedLimits, ...]] = {
            member.name: _scoped(definition.name, member, lay_out) for member in members
        }
        if not members:
            nobody = replace(member_scope(definition.name, ""), member=None)
            scoped = {"": (ScopedLimits(nobody, lay_out((Blocked(),)), MEMBER_LEVEL),)}
        return cls(definition, scoped)

    @property
    def name(self) -> str:
        """The name of the pool."""
        return self.definition.name

    @property
    def failover(self) -> bool:
        """Whether the others are asked when the chosen member refuses."""
        return self.definition.failover

    @property
    def configs(self) -> Mapping[Hashable, Mapping[str, object]]:
        """What each member says to those whom it serves, with its name, and secrets by theirs."""
        members = self.definition.enabled or (_NOBODY,)
        return {member.name: {**member.config, MEMBER_KEY: member.name} for member in members}

    @property
    def desk(self) -> Balancer:
        """Where its members take turns; all that use the pool in this process have it in common."""
        return desks.desk(self.definition)

    def changed(self, change: Callable[[ScopedLimits], ScopedLimits]) -> Supply:
        """The same members with other limits."""
        return replace(self, scoped={name: tuple(map(change, some)) for name, some in self.scoped.items()})


class Desks:
    """The desks of the pools that this process uses, `most` of them."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._by_pool: dict[str, Balancer] = {}
        self._lock = Lock()

    def desk(self, definition: PoolDefinition) -> Balancer:
        """The desk of a pool; a new one when the way in which its members take turns has changed.

        Who was put aside stays so.
        """
        weights = tuple([member.weight for member in definition.enabled or (_NOBODY,)])
        with self._lock:
            desk = self._by_pool.get(definition.name)
            if desk is not None and (desk.load_balancing, desk.weights) == (definition.load_balancing, weights):
                return desk
            new = balancer_named(definition.load_balancing)(weights)
            if desk is not None:
                new.cooling_until = desk.cooling_until
            elif len(self._by_pool) >= self._most:
                del self._by_pool[next(iter(self._by_pool))]
            self._by_pool[definition.name] = new
            return new

    def clear(self) -> None:
        """Nobody is put aside any more, and turns begin anew."""
        with self._lock:
            self._by_pool.clear()


desks: Final = Desks()


def _scoped(pool: str, member: MemberDefinition, lay_out: LayOut) -> tuple[ScopedLimits, ...]:
    if not member.limits:
        return ()
    return (ScopedLimits(member_scope(pool, member.name), lay_out(member.limits), MEMBER_LEVEL),)

"""The resolved set: the limits that hold, and what goes with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limits_app.conf import OnUnavailable
from limits_app.core.amounts import Amount
from limits_app.core.limit_set import LimitSet
from limits_app.core.plan import ScopedLimits
from limits_app.core.store import Store
from limits_app.resolver.supply import Supplying

__all__ = ["ResolvedSet"]


class ResolvedSet(LimitSet):
    """The limits that hold, and what happens while their store is down (None: what the site says).

    `shadow` are the limits that are tried at the same time and refuse nothing.
    `supply` is what the members of a pool have to give, where one serves the resource.
    `of` is what it was resolved for: all sets of one store that are of the same are one set, whenever they were
    resolved and whichever member of a pool serves. `alias` is that of its store (None: the default one), also while
    that cannot be used.
    """

    on_unavailable: OnUnavailable | None = None
    shadow: LimitSet | None = None
    supply: Supplying | None = None
    of: object = None
    alias: str | None = None

    @property
    def own(self) -> tuple[ScopedLimits, ...]:
        """Its scopes, without those of the members of a pool."""
        return self.scoped

    def changing_at(self, moment: float | None) -> None:
        """Note when a date comes that may change what holds."""
        self.changes_at = moment

    def resolved_for(self, of: object, alias: str | None) -> None:
        """Note what it was resolved for, and in which store."""
        self.of, self.alias = of, alias
        name: Any = of
        while isinstance(name, tuple):  # with an entity, and of several resources each with its own
            name = name[0]
        self.resource = name

    def is_same(self, other: LimitSet) -> bool:
        """See `LimitSet.is_same`."""
        is_alike = isinstance(other, ResolvedSet) and (other.of, other.store) == (self.of, self.store)
        return other is self or (is_alike and self.of is not None)

    def try_out(self, shadow: LimitSet) -> None:
        """Have other limits tried at the same time."""
        self.shadow = shadow

    def changed(self, change: Callable[[ScopedLimits], ScopedLimits], store: Store) -> LimitSet:
        """A set that decides in its place on another store, by limits that are changed."""
        return LimitSet.composed(map(change, self.scoped), store, version=store.version())

    def ceiling(self, key: str) -> Amount:
        """The most that can ever be admitted of a key."""
        return _ceiling(self.scoped, key)


def _ceiling(scoped: tuple[ScopedLimits, ...], key: str) -> Amount:
    return min(limit.ceiling for one in scoped for limit in one.schema.limits if limit.key == key)

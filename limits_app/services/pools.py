"""Pools by name: as administrators set them, and fresh at every acquire."""

from __future__ import annotations

from typing import Any, cast

from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Requested
from limits_app.core.errors import InvalidRequest
from limits_app.core.keys import check_resource
from limits_app.core.limit_pool import LimitPool
from limits_app.core.limit_set import LimitSet
from limits_app.core.outcome import Outcome, Stats
from limits_app.resolver import PooledSet, pool_resolver
from limits_app.services.freshness import afresh, fresh, latest, tell
from limits_app.services.patience import countdown, while_it_holds

__all__ = ["NamedPool", "member_use", "pool"]


def pool(name: str) -> NamedPool:
    """The pool of this name, to be kept and used again and again: what it does is always up to date.

    It asks the database when it is first used, and raises UnknownPool (a LookupError) then where there is none.
    Raises InvalidLimit (a ValueError) for a name that cannot be.
    """
    return NamedPool(check_resource(name))


def member_use(name: str, alias: str | None = None) -> dict[str, dict[str, Stats]]:
    """The live state of each enabled member of a pool in one store, by its name; each is one consistent snapshot.

    A pool is counted in the stores of the resources that it serves, and by itself in the default one (None).
    Raises StoreUnavailable while the store is down, and UnknownPool.
    """
    return _resolved(name, alias).member_stats()


class NamedPool(LimitPool):
    """A LimitPool of the members that are enabled now, in their order.

    Whose turn it is, and who is put aside, all who use the pool in this process have in common.
    While the store is down, what the settings of the site say decides.
    """

    def __init__(self, name: str) -> None:
        # It has no sets of its own: what a LimitPool knows, it asks of the one that is up to date.
        self.name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._current(), attribute)

    def __reduce__(self) -> tuple[object, ...]:
        return NamedPool, (self.name,)

    def __repr__(self) -> str:
        return f"limits.pool({self.name!r})"

    def try_acquire(self, requested: Requested = None) -> Acquisition:
        """See `LimitPool.try_acquire`."""
        acquisition = fresh(self.name, None, (), lambda found: found.try_acquire(requested), by=pool_resolver)
        if not acquisition.successful:
            tell(acquisition.outcome)
        return acquisition

    def acquire(self, requested: Requested = None, timeout: float | None = None) -> Acquisition:
        """See `LimitPool.acquire`."""
        left = countdown(timeout)

        def wait(found: LimitSet) -> Acquisition:
            with while_it_holds(found, left()) as seconds:
                return found.acquire(requested, seconds)

        return fresh(self.name, None, (), wait, by=pool_resolver)

    async def atry_acquire(self, requested: Requested = None) -> Acquisition:
        """See `LimitPool.atry_acquire`."""
        acquisition = await afresh(self.name, None, (), lambda found: found.atry_acquire(requested), by=pool_resolver)
        if not acquisition.successful:
            tell(acquisition.outcome)
        return acquisition

    async def aacquire(self, requested: Requested = None, timeout: float | None = None) -> Acquisition:
        """See `LimitPool.aacquire`."""
        left = countdown(timeout)

        async def wait(found: LimitSet) -> Acquisition:
            with while_it_holds(found, left()) as seconds:
                return await found.aacquire(requested, seconds)

        return await afresh(self.name, None, (), wait, by=pool_resolver)

    def peek(self, requested: Requested = None) -> Outcome:
        """See `LimitPool.peek`."""
        return fresh(self.name, None, (), lambda found: found.peek(requested), by=pool_resolver)

    def cool_down(self, which: int | str, seconds: float) -> None:
        """Put a member aside in this process, by its place or by its name. See `LimitPool.cool_down`."""
        current = self._current()
        if isinstance(which, str):
            names = [str(name) for name in current._names.values()]
            if which not in names:
                raise InvalidRequest(
                    f"{which!r} is no member of {self.name} that is enabled: there are {', '.join(names)}"
                )
            which = names.index(which)
        current.cool_down(which, seconds)

    def resolved(self) -> PooledSet:
        """What it is compiled to now."""
        return _resolved(self.name, None)

    def _current(self) -> LimitPool:
        return self.resolved().pool


def _resolved(name: str, alias: str | None) -> PooledSet:
    return cast("PooledSet", latest(name, alias, by=pool_resolver))

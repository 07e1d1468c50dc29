"""Pools by name, as they are in the database at every acquire."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from math import ceil
from typing import Final, TypeVar, cast

from asgiref.sync import sync_to_async

from limits_app.acquiring import Acquisition, Cooling, LimitPool, LimitSet, checked_seconds
from limits_app.engine import SECOND_US, Requested, check_resource, of_class
from limits_app.engine.errors import InvalidRequest, LimitTimeout, StaleConfiguration
from limits_app.engine.outcome import Outcome, Stats
from limits_app.models import changes, write_alias
from limits_app.models.own_queries import DATABASE_ERRORS
from limits_app.models.pool import keep_cool_down
from limits_app.policies import PooledSet, ResolvedSet, balancers, pool_resolver, resolver
from limits_app.services.request import AmountsRequest

T = TypeVar("T")

logger = logging.getLogger("limits_app")


def pool(name: str) -> NamedPool:
    """The pool of this name, which can be kept: each use has the latest configuration.

    Raises InvalidLimit (a ValueError) for an invalid name. The database is read when the pool is used, which raises
    UnknownPool (a LookupError) for an unknown name.
    """
    return NamedPool(check_resource(name))


def report_upstream(
    name: str, member: str | int | None = None, *, retry_after: float, remaining: float | None = None
) -> None:
    """Report that an upstream refuses the requests of a pool's member for `retry_after` seconds, or 0: serves again.

    No process uses the member until then, from the next acquire on. Without `member` it is about the resource of this
    name, whose requests all processes reject until then. The end is rounded up to a whole second. Of several reports
    the one that ends last counts.
    With `remaining`, what the upstream still admits in that time, nothing happens unless it is 0.
    Raises UnknownPool, and InvalidRequest for an invalid number or a member that is not enabled.
    """
    check_resource(name)
    if remaining is not None and remaining > 0:
        return
    if member is None:
        _cool_resource(name, checked_seconds(retry_after))
    else:
        NamedPool(name).cool_down(member, retry_after)


areport_upstream: Final = sync_to_async(report_upstream)
"""`report_upstream` for asyncio."""


def _cool_resource(resource: str, seconds: float) -> None:
    """Store the cool-down, and make the limits of all processes stale where that has changed it."""
    cooling = Cooling(ceil((resolver.clock() + seconds) * SECOND_US), ceil(seconds * SECOND_US))
    try:
        if keep_cool_down(resource, "", cooling.to_whole_second()):
            changes.announce(write_alias(), changes.Touched.anything())
    except DATABASE_ERRORS as error:
        logger.warning("%s does not cool down, because the database is unavailable: %s", resource, error)


def member_use(name: str, alias: str | None = None) -> dict[str, dict[str, Stats]]:
    """The live state of each enabled member of a pool in one store, by its name; each is one consistent snapshot.

    A pool is counted in the stores of the resources that it serves, and by itself in the default one (None).
    Raises StoreUnavailable while the store is down, and UnknownPool.
    """
    return _read(name, alias, lambda pooled: pooled.member_stats())


class NamedPool:
    """The members of a pool that are enabled now, in their order, with the methods of a `LimitPool`.

    Turns are shared by all users of the pool in this process, and cool-downs by those in all processes.
    While the store is down, ON_UNAVAILABLE of the settings applies.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[object, ...]:
        return NamedPool, (self.name,)

    def __repr__(self) -> str:
        return f"limits.pool({self.name!r})"

    def __getitem__(self, index: int) -> LimitSet:
        """The limit set of a member."""
        return self._current()[index]

    def __iter__(self) -> Iterator[LimitSet]:
        return iter(self._current())

    def __len__(self) -> int:
        return len(self._current())

    def try_acquire(self, requested: Requested = None, *, priority: str | None = None) -> Acquisition:
        """See `LimitPool.try_acquire`."""
        return self._request(requested, priority).acquire()

    def acquire(
        self, requested: Requested = None, timeout: float | None = None, *, priority: str | None = None
    ) -> Acquisition:
        """See `LimitPool.acquire`."""
        return _admitted(self._request(requested, priority).acquire(timeout))

    async def atry_acquire(self, requested: Requested = None, *, priority: str | None = None) -> Acquisition:
        """See `LimitPool.atry_acquire`."""
        return await self._request(requested, priority).aacquire()

    async def aacquire(
        self, requested: Requested = None, timeout: float | None = None, *, priority: str | None = None
    ) -> Acquisition:
        """See `LimitPool.aacquire`."""
        return _admitted(await self._request(requested, priority).aacquire(timeout))

    def peek(self, requested: Requested = None, *, priority: str | None = None) -> Outcome:
        """See `LimitPool.peek`."""
        return self._request(requested, priority).peek()

    def _request(self, requested: Requested, priority: str | None) -> AmountsRequest:
        return AmountsRequest((self.name, None, (), None), of_class(requested, priority), pool_resolver)

    def cool_down(self, which: int | str, seconds: float) -> None:
        """Do not use a member, given by its index or its name, in any process from the next acquire on.

        See `LimitPool.cool_down`. Within a transaction, other processes learn of it after the commit.
        """
        current = self._current()
        if isinstance(which, str):
            names = [str(name) for name in current.names]
            if which not in names:
                raise InvalidRequest(
                    f"{which!r} is not an enabled member of {self.name}; enabled are: {', '.join(names)}"
                )
            which = names.index(which)
        balancers.report(self.name, str(current.names[which]), current.cooling(which, seconds))

    async def acool_down(self, which: int | str, seconds: float) -> None:
        """`cool_down` for asyncio."""
        await sync_to_async(self.cool_down)(which, seconds)

    def cooling_seconds(self, index: int) -> float:
        """See `LimitPool.cooling_seconds`."""
        return self._current().cooling_seconds(index)

    def get_stats(self) -> dict[str, int | str | list[dict[str, Stats]]]:
        """See `LimitPool.get_stats`."""
        return _read(self.name, None, lambda pooled: pooled.pool.get_stats())

    def _current(self) -> LimitPool:
        """The enabled members with their limits, as they are in the database now."""
        return _resolved(self.name, None)[0].pool


def _read(name: str, alias: str | None, read: Callable[[PooledSet], T]) -> T:
    """Read the state of a pool, again where it is changed meanwhile."""
    while True:
        pooled, resolved = _resolved(name, alias)
        try:
            return read(pooled)
        except StaleConfiguration:
            pool_resolver.catch_up((name, alias, (), None), resolved)


def _resolved(name: str, alias: str | None) -> tuple[PooledSet, ResolvedSet]:
    resolved = pool_resolver.latest((name, alias, (), None))
    return cast("PooledSet", resolved.limit_set), resolved


def _admitted(acquisition: Acquisition) -> Acquisition:
    if not acquisition.successful:
        raise LimitTimeout.of(acquisition)
    return acquisition

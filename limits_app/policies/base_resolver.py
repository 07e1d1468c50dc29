"""Resolving by key: limits that are kept are used as long as they are current, and others are read once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from time import monotonic, time
from typing import Final

from limits_app import conf
from limits_app.engine.errors import StoreUnavailable, Unresolved
from limits_app.policies.balancing import balancers
from limits_app.policies.kept import Age, KeyLocks
from limits_app.policies.kept_configuration import CurrentConfiguration, KeptConfiguration, ResolutionKey
from limits_app.policies.pools import PooledSet
from limits_app.policies.resolved_set import ResolvedSet
from limits_app.policies.stores import DISABLED
from limits_app.policies.sync import Seen
from limits_app.stores.registry import resilient_store

_DATABASE_RETRY_SECONDS: Final = 1.0
"""How long expired limits are used again after the database failed."""


class BaseResolver(ABC):
    """Resolves the limits of keys, of which threads that need the same read the database once."""

    def __init__(
        self, configurations: CurrentConfiguration | None = None, *, clock: Callable[[], float] = time
    ) -> None:
        self.clock = clock
        """Returns seconds since 1970. Limits are resolved again when a date or an hour of their policies comes."""
        self._configurations = configurations or CurrentConfiguration()
        self._locks = KeyLocks()
        self._hits = 0
        self._misses = 0

    @property
    def configuration(self) -> KeptConfiguration:
        """That of the present namespace."""
        return self._configurations.current()

    def get(self, key: ResolutionKey) -> ResolvedSet:
        """The limits of a key, which are read if they are not kept.

        They are not `available` while their store is down. While the database cannot be read the last ones are used,
        even if expired; Unresolved where there are none. Raises InvalidLimit for invalid arguments.
        """
        return self.cached(key) or self.read(key)

    def read(self, key: ResolutionKey) -> ResolvedSet:
        """`get` for limits that are not `cached`."""
        key = self._checked(key)
        configuration = self.configuration
        configuration.refresh()
        shared = self._shared(key)
        with self._locks.locked((configuration, shared)):
            if balancers.are_used:
                self._read_cool_downs(key)
            resolved = self.cached(key, shared)  # another thread may have resolved them in the meantime
            if resolved is not None:
                return resolved
            resolved, uses_code = self._resolved(key, shared)
        if uses_code:
            self._note(key)  # without the lock: it writes, and may wait for a transaction that waits for the lock
        return resolved

    def latest(self, key: ResolutionKey) -> ResolvedSet:
        """`get` for the current version of the configuration; StoreUnavailable while the store is down."""
        while True:
            resolved = self.get(key)
            limit_set = resolved.in_store()
            if limit_set.version == limit_set.store.version(limit_set.namespace):
                return resolved
            self.catch_up(key, resolved)

    def catch_up(self, key: ResolutionKey, stale: ResolvedSet | None) -> None:  # noqa: ARG002 - other sources need the key
        """Apply the changes that have made the limits of a key stale."""
        self.configuration.catch_up(stale)

    def follow(self, key: ResolutionKey, rejecting: ResolvedSet | None) -> bool:
        """Apply the changes since the limits of a key were resolved, which have rejected a request without their store.

        Returns whether there are any. It reads the version of the store; nothing while that is unavailable.
        """
        if rejecting is None or not rejecting.available or not rejecting.limit_set.is_outdated():
            return False
        self.catch_up(key, rejecting)
        return True

    def _read_cool_downs(self, key: ResolutionKey) -> None:
        """Read those of the pool of a key, which may be all that its limits lack."""
        last = self._last(key)
        if last is not None and last[0].members is not None:
            balancers.read_cool_downs(last[0].members.name)

    def _resolved(self, key: ResolutionKey, shared: Hashable) -> tuple[ResolvedSet, bool]:
        self._misses += 1
        try:
            return self._read(key, shared, self.configuration.sync.seen)
        except Unresolved:
            last = self._last(key)
            if last is None:
                raise
            last[1].keep(_DATABASE_RETRY_SECONDS, outlasts_dates=True)
            self.configuration.postpone(_DATABASE_RETRY_SECONDS)
            resolved = self.cached(key)
            if resolved is None:
                raise
            return resolved, False

    def _usable_version(self, resolved: ResolvedSet, age: Age, seen: Seen) -> int | None:
        """The version for which limits that are kept may be requested; None where they have to be resolved again."""
        limit_set = resolved.limit_set
        # `lasts`, without a call for each request.
        if not 0 <= monotonic() - age.kept_at < age.seconds:
            return None
        changes_at = limit_set.changes_at
        if changes_at is not None and not age.outlasts_dates and changes_at <= self.clock():
            return None
        if isinstance(limit_set, PooledSet) and balancers.must_read(limit_set.members.name):
            return None
        if not resolved.available:
            return None if _can_open(resolved.alias) else limit_set.version
        return limit_set.version if limit_set.store is DISABLED else seen.get(resolved.alias)

    @abstractmethod
    def cached(self, key: ResolutionKey, shared: Hashable = None) -> ResolvedSet | None:
        """The limits of a key, if they are kept; None where they are missing, outdated, or need a query.

        That is also where the store may be available again, and where the cool-downs of a pool have to be read.
        `shared` is that of `_shared` where it is known.
        """

    @abstractmethod
    def _checked(self, key: ResolutionKey) -> ResolutionKey:
        """The key as it is kept; InvalidLimit for an invalid one."""

    @abstractmethod
    def _shared(self, key: ResolutionKey) -> Hashable:
        """The common part of keys whose limits are read together; the key itself where each is read alone."""

    @abstractmethod
    def _last(self, key: ResolutionKey) -> tuple[ResolvedSet, Age] | None:
        """The limits of a key that were kept last, even if they are outdated."""

    @abstractmethod
    def _read(self, key: ResolutionKey, shared: Hashable, seen: Seen) -> tuple[ResolvedSet, bool]:
        """Read the limits of a key, and keep them for the versions that were seen before.

        `shared` is that of `_shared`, and was looked up before the versions.
        Also returns whether they are those of the call, for `_note`.
        """

    @abstractmethod
    def _note(self, key: ResolutionKey) -> None:
        """Write to the database that the limits of a call apply."""


def most_entries() -> int:
    """How many values of a kind a process keeps."""
    return conf.get(conf.RESOLVER_MAX_ENTRIES)


def _can_open(alias: str) -> bool:
    try:
        resilient_store(alias).open()
    except StoreUnavailable:
        return False
    return True

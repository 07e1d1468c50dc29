"""The cache of resolved sets of this process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from threading import Lock, RLock
from time import monotonic, time
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from limits_app import conf
from limits_app.core.errors import StoreUnavailable, Unresolved
from limits_app.core.runtime import on_fork
from limits_app.models import changes, note_code_limits, write_alias
from limits_app.policies.balancing import balancers
from limits_app.policies.pools import pool_cache
from limits_app.policies.resolution import Limits, check_names, check_plan, checked_defaults, resolve, resolve_pool
from limits_app.policies.resolved_set import ResolvedSet
from limits_app.stores.registry import aliases, resilient_store

logger = logging.getLogger("limits_app")

Key = tuple[str, str | None, Limits, str | None]
"""A resource, an entity, the `default_limits` of the call, and the name of the plan of the request."""

_DATABASE_RETRY_SECONDS: Final = 1.0
"""How long an expired set is used again after the database failed."""
_MOST_NOTED: Final = 1000
"""How many resources and limits of code are known to be in the database; after that, all are written again."""


class ResolverInfo(NamedTuple):
    """Numbers of the cache of this process."""

    hits: int
    misses: int
    size: int


class _Entry(NamedTuple):
    """A resolved set; it is kept for `seconds` by the monotonic clock, and until `changes_at` by the system's clock.

    `pool` is the name of the pool that serves it, whose cool-downs have to be read from time to time.
    """

    resolved: ResolvedSet
    kept_at: float
    seconds: float
    changes_at: float | None
    pool: str | None


class _KeyLock:
    """The lock under which one thread resolves a key, while other threads wait for its result."""

    def __init__(self) -> None:
        self.lock = RLock()


class Resolver:
    """Caches resolved sets, at most RESOLVER_MAX_ENTRIES, each for RESOLVER_TTL_SECONDS.

    A store rejects a set that is older than the configuration; the caller then calls `forget`.
    A set is resolved again when a date or an hour of its policies comes, by `clock`, in seconds since 1970.
    """

    def __init__(self, *, clock: Callable[[], float] = time) -> None:
        self.clock = clock
        self._entries: dict[Key, _Entry] = {}
        self._noted: set[tuple[str, Limits]] = set()
        self._hits = 0
        self._misses = 0
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Make new locks in a child process, which keeps the cached sets."""
        self._lock = Lock()
        self._key_locks: WeakValueDictionary[Key, _KeyLock] = WeakValueDictionary()  # as long as threads use them

    def cached(self, key: Key) -> ResolvedSet | None:
        """The cached set; None where it is missing, outdated, or its store may be available again.

        Also None where the cool-downs of its pool have to be read, which `get` does.
        """
        try:
            entry = self._entries.get(key)
        except TypeError:  # an unhashable argument: `get` raises the error for it
            return None
        if entry is None:
            return None
        resolved, kept_at, seconds, changes_at, pool = entry
        # `lasts`, without a call for each request.
        if not 0 <= monotonic() - kept_at < seconds or (changes_at is not None and changes_at <= self.clock()):
            return None
        if not resolved.available and _can_open(resolved.alias):
            return None
        if pool is not None and balancers.must_read(pool):
            return None
        self._hits += 1
        return resolved

    def get(self, key: Key) -> ResolvedSet:
        """The cached set, else a new one; threads that need the same set read the database once.

        The set is not `available` while its store is down. A result is not cached while a transaction of this thread
        has uncommitted changes of the configuration, or reads an older snapshot. While the database cannot be read the
        last set is used, even if expired; Unresolved where there is none.
        Raises InvalidLimit for invalid arguments.
        """
        found = self.cached(key)
        if found is not None:
            return found
        resource, entity, default_limits, plan = key
        check_names(resource, entity)
        check_plan(plan)
        key = resource, entity, checked_defaults(default_limits), plan
        with self._lock:
            key_lock = self._key_locks.setdefault(key, _KeyLock())
        with key_lock.lock:
            entry = self._entries.get(key)
            if entry is not None and entry.pool is not None:
                balancers.read_cool_downs(entry.pool)
            # Another thread may have resolved it in the meantime.
            return self.cached(key) or self._resolved(key)

    def latest(self, key: Key) -> ResolvedSet:
        """`get` for the current version of the configuration; StoreUnavailable while the store is down."""
        while True:
            found = self.get(key)
            limit_set = found.in_store()
            if limit_set.version == limit_set.store.version():
                return found
            self.forget(key, found)

    def forget(self, key: Key, stale: ResolvedSet | None = None) -> None:
        """Drop a set from the cache, unless it was resolved again since `stale`."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and stale in {None, entry.resolved}:
                del self._entries[key]

    def clear(self) -> None:
        """Drop all sets."""
        with self._lock:
            dropped, self._entries = self._entries, {}
            self._noted.clear()
        del dropped  # outside the lock, since finalizers may run
        pool_cache.clear()
        if self is resolver:
            pool_resolver.clear()

    def info(self) -> ResolverInfo:
        """Hits, misses and size."""
        return ResolverInfo(self._hits, self._misses, len(self._entries))

    def _resolved(self, key: Key) -> ResolvedSet:
        self._misses += 1
        try:
            resolved = self._resolve(key)
        except Unresolved:
            last = self._entries.get(key)
            if last is None:
                raise
            self._add(key, _Entry(last.resolved, monotonic(), _DATABASE_RETRY_SECONDS, None, last.pool))
            return last.resolved
        if changes.may_be_kept(write_alias()):
            seconds = conf.get(conf.RESOLVER_TTL_SECONDS)
            pool = None if resolved.members is None else resolved.members.name
            self._add(key, _Entry(resolved, monotonic(), seconds, resolved.limit_set.changes_at, pool))
        return resolved

    def _resolve(self, key: Key) -> ResolvedSet:
        resolution = resolve(*key, now=self.clock())
        if key[2] and (key[0], key[2]) not in self._noted and resolution.choices[0].uses_code:
            if len(self._noted) >= _MOST_NOTED:
                self._noted.clear()
            note_code_limits(key[0], key[2], self._noted)
        return resolution.resolved

    def _add(self, key: Key, entry: _Entry) -> None:
        most = conf.get(conf.RESOLVER_MAX_ENTRIES)
        with self._lock:
            self._entries.pop(key, None)
            self._entries[key] = entry
            for oldest in list(islice(self._entries, max(len(self._entries) - most, 0))):
                del self._entries[oldest]


class PoolResolver(Resolver):
    """A resolver of pools by name, without the limits of any resource.

    A key has the name of the pool, and the alias of a store (None: the default one) in place of an entity.
    """

    def _resolve(self, key: Key) -> ResolvedSet:
        return resolve_pool(*key[:2])


def _can_open(alias: str) -> bool:
    try:
        resilient_store(alias).open()
    except StoreUnavailable:
        return False
    return True


resolver: Final = Resolver()
pool_resolver: Final = PoolResolver()


def advance_version(**details: object) -> None:  # noqa: ARG001 - a receiver of a signal
    """Make all sets that were resolved before stale, in every process that shares a store.

    A store that is unavailable receives the new version when it is back. Until then this process resolves again, and
    others use their sets until these expire.
    """
    if not conf.get(conf.ENABLED):
        resolver.clear()
    for alias in aliases():
        store = resilient_store(alias)
        try:
            store.open().advance_version()
        except StoreUnavailable as error:
            logger.warning(
                "the store %r does not know yet that limits have changed, and other processes apply the change within "
                "RESOLVER_TTL_SECONDS: %s",
                alias,
                error,
            )
            store.advance_version_later()
            resolver.clear()

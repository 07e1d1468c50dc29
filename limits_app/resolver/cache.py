"""The cache: compiled limit sets of this process, kept until something changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from threading import Lock, RLock
from time import monotonic, time
from typing import Final, NamedTuple

from django.db import InterfaceError, OperationalError

from limits_app import conf
from limits_app.core.runtime import on_fork
from limits_app.core.store import Store
from limits_app.models import changes
from limits_app.resolver.pooled import PooledSet
from limits_app.resolver.present import NOWHERE
from limits_app.resolver.resolved import ResolvedSet
from limits_app.resolver.resolving import Limits, check_names, checked_defaults, home, resolve, resolve_pool
from limits_app.resolver.supplies import supplies
from limits_app.stores.guards import guard_of

__all__ = ["Key", "PoolResolver", "Resolver", "ResolverInfo", "pool_resolver", "resolver"]

logger = logging.getLogger("limits_app")

Key = tuple[str, str | None, Limits]

_BLIND_SECONDS: Final = 1.0
"""How long what is known is used without asking a database that is down again."""


class ResolverInfo(NamedTuple):
    """How the cache of this process is doing."""

    hits: int
    misses: int
    size: int


class _Kept(NamedTuple):
    """A limit set, until when it is kept (by the monotonic clock), and when a date changes it (by the system's)."""

    limit_set: ResolvedSet
    until: float
    changes_at: float | None
    default_limits: Limits
    """What it was asked for with: to see that they are the same takes less than to find them by what they say."""


class _Flight:
    """One thread asks the database for a key; others who need the same wait for it."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.passengers = 0


class Resolver:
    """Keeps compiled limit sets, at most RESOLVER_MAX_ENTRIES, each for RESOLVER_TTL_SECONDS.

    A set that is older than the configuration is found out by its store when it is used, and then forgotten here;
    one for which a date or an hour has come, by `clock`, which gives seconds since 1970.
    """

    def __init__(self, *, clock: Callable[[], float] = time) -> None:
        self.clock = clock
        self._kept: dict[Key, _Kept] = {}
        self._last: dict[tuple[str, str | None], _Kept] = {}  # of each resource and entity
        self._hits = 0
        self._misses = 0
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """A child asks for itself; what is kept stays."""
        self._lock = Lock()
        self._flights: dict[Key, _Flight] = {}

    def kept(self, resource: str, entity: str | None, default_limits: Limits = ()) -> ResolvedSet | None:
        """The limit set if it is there and fresh."""
        try:
            entry = self._kept.get((resource, entity, default_limits))
        except TypeError:  # a name that cannot be, which resolving will say
            return None
        if entry is None or entry[1] < monotonic() or (entry[2] is not None and entry[2] <= self.clock()):
            return None
        self._hits += 1
        return entry[0]

    def limit_set(
        self, resource: str, entity: str | None, default_limits: Limits = (), *, store: Store | None = None
    ) -> ResolvedSet:
        """The limit set, compiled and kept where it is not there yet; threads that need the same ask only once.

        What a transaction reads that has changed limits itself, or that may not see what others have committed, is used
        once and not kept.
        While the database is down, what was kept last is good enough; OperationalError or InterfaceError without that.
        Raises StoreUnavailable where the store of the resource cannot be asked for its version.
        """
        # As `kept` does, which is a call more.
        try:
            entry = self._last.get((resource, entity))
            if entry is None or entry[3] is not default_limits:
                entry = self._kept.get((resource, entity, default_limits))
        except TypeError:
            entry = None
        if entry is not None and entry[1] >= monotonic() and (entry[2] is None or entry[2] > self.clock()):
            self._hits += 1
            return entry[0]
        check_names(resource, entity)
        key = (resource, entity, checked_defaults(default_limits))
        with self._alone(key):
            # Whoever had to wait finds what the first one kept, unless that was for itself alone.
            kept = self.kept(*key)
            return self._resolved(key, store) if kept is None else kept

    def without_store(self, resource: str, entity: str | None, default_limits: Limits = ()) -> ResolvedSet:
        """`limit_set` while nobody can ask the store; stale as soon as somebody can, where it is not kept already."""
        return self.limit_set(resource, entity, default_limits, store=NOWHERE)

    def forget(
        self, resource: str, entity: str | None, default_limits: Limits = (), stale: ResolvedSet | None = None
    ) -> None:
        """Resolve anew next time, unless somebody has done so since `stale` was kept."""
        key = (resource, entity, tuple(default_limits))
        with self._lock:
            entry = self._kept.get(key)
            if entry is not None and stale in {None, entry.limit_set}:
                self._drop(key)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:  # what is found first goes first, here and below, or nothing would make it forgotten
            forgotten = self._last, self._kept
            self._last, self._kept = {}, {}
        del forgotten  # which may run finalizers, without the lock
        supplies.clear()
        if self is resolver:
            pool_resolver.clear()

    def info(self) -> ResolverInfo:
        """Hits, misses and size."""
        return ResolverInfo(self._hits, self._misses, len(self._kept))

    @contextmanager
    def _alone(self, key: Key) -> Iterator[None]:
        """Let one thread at a time in for a key."""
        with self._lock:
            flight = self._flights.setdefault(key, _Flight())
            flight.passengers += 1
        try:
            with flight.lock:
                yield
        finally:
            with self._lock:
                flight.passengers -= 1
                if not flight.passengers:
                    self._flights.pop(key, None)

    def _resolved(self, key: Key, store: Store | None) -> ResolvedSet:
        self._misses += 1
        try:
            resolved = self._asked(key, store)
        except (OperationalError, InterfaceError) as error:
            known = self._kept.get(key)
            if known is None:
                raise
            logger.warning("the database is down, limits on %s are those known last: %s", key[0], error)
            self._keep(key, _Kept(known.limit_set, monotonic() + _BLIND_SECONDS, None, key[2]))
            return known.limit_set
        if changes.may_be_kept(home()):
            until = monotonic() + conf.get(conf.RESOLVER_TTL_SECONDS)
            self._keep(key, _Kept(resolved, until, resolved.changes_at, key[2]))
        if resolved.store is NOWHERE and store is None:  # kept all the same, for who decides without the store
            raise guard_of(resolved.alias).down()
        return resolved

    def _asked(self, key: Key, store: Store | None) -> ResolvedSet:
        """Ask the database, and compile the answer."""
        return resolve(*key, store=store, now=self.clock()).limit_set

    def _keep(self, key: Key, entry: _Kept) -> None:
        most = conf.get(conf.RESOLVER_MAX_ENTRIES)
        with self._lock:
            self._last.pop(key[:2], None)
            self._kept.pop(key, None)
            self._kept[key] = self._last[key[:2]] = entry
            for oldest in list(islice(self._kept, max(len(self._kept) - most, 0))):
                self._drop(oldest)

    def _drop(self, key: Key) -> None:
        """Forget what is kept, with the lock."""
        self._last.pop(key[:2], None)
        del self._kept[key]


class PoolResolver(Resolver):
    """A Resolver of pools by name, without the limits of any resource.

    In the place of an entity stands the alias of the store in which a pool is counted (None: the default one).
    """

    def _asked(self, key: Key, store: Store | None) -> PooledSet:
        return resolve_pool(*key[:2], store=store)


resolver: Final = Resolver()
pool_resolver: Final = PoolResolver()

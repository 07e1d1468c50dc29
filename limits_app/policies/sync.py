"""The order in which changes of the configuration are applied, so that no request uses limits that were replaced.

A request reads `seen` first, then looks up the kept limits, and sends the version that it has seen with its claim; the
store rejects another version than its own (`MemoryStore.acquire`, and alike in each store). On that rejection
one thread (`BaseResolver.catch_up`) reads the changes since, adds identifiers, drops the limits that were read from
them, and publishes the new version last: a request that looked up something older sends an older version. Rows that a
request has read from the database are kept only if `seen` is still the same as before the query.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Final, Protocol

from limits_app.acquiring import on_fork
from limits_app.engine import ACCESS, ALL, COOLING, EVERYTHING, GENERAL, ROWS, Change, Changes
from limits_app.engine.locks import RLock

Seen = Mapping[str, int]
"""Of each store, by its alias, the version up to which this process has applied changes."""

_NO_CHANGES: Final[Seen] = MappingProxyType({})


class Versioned(Protocol):
    """A store, as far as it keeps the version of the configuration."""

    def version(self) -> int: ...

    def changes_since(self, version: int) -> tuple[int, Changes] | None: ...


class ChangeTarget(Protocol):
    """What a process keeps of the configuration; see `Sync` for the order of the calls."""

    def add_identifiers(self, digests: Collection[bytes], /) -> None:
        """Note that identifiers may have rows from now on."""

    def read_latest(self) -> None:
        """Read the identifiers of the latest rows."""

    def read_again(self) -> None:
        """Forget which identifiers have rows, until all are read again."""

    def drop(self, digests: Collection[bytes], /) -> None:
        """Drop the limits of clients that were read from one of these identifiers."""

    def drop_clients(self) -> None:
        """Drop the limits of all clients with rows."""

    def drop_access(self) -> None:
        """Drop who is blocked or exempt."""

    def drop_cool_downs(self) -> None:
        """Drop the cool-downs of members, which are read again before the next request."""

    def drop_all(self) -> None:
        """Drop all limits, and whatever else was read of the configuration."""


class Sync:
    """Applies the changes in the logs of stores to what a process keeps, one thread at a time."""

    def __init__(self, kept: ChangeTarget) -> None:
        self._kept = kept
        self.seen: Seen = _NO_CHANGES
        """Another object after each change that was applied."""
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Make a new lock in a child process, which keeps the configuration that was read."""
        self._lock = RLock()  # reentrant, because a query may run code of the site

    def catch_up(self, alias: str, store: Versioned, seen: int | None) -> None:
        """Apply the changes of a store since a version; nothing where another thread has done so meanwhile.

        Without a version, or where the changes are unknown, everything is read again.
        """
        with self._lock:
            if self.seen.get(alias) != seen:
                return
            reported = None if seen is None else store.changes_since(seen)
            version, changes = (store.version(), (EVERYTHING,)) if reported is None else reported
            if version != seen:
                self._apply(changes)
                self.seen = MappingProxyType({**self.seen, alias: version})

    def apply(self, changes: Collection[Change]) -> None:
        """Apply changes that no store can announce now, such as those of this process while a store is unavailable."""
        with self._lock:
            self._apply(changes)
            self.seen = MappingProxyType(dict(self.seen))

    def forget(self) -> None:
        """Begin as a new process does."""
        with self._lock:
            self._apply((EVERYTHING,))
            self.seen = MappingProxyType({})

    def keep(self, seen: Seen, keep: Callable[[], object]) -> bool:
        """Call `keep` if no change was applied since `seen` was read; returns whether it was called."""
        with self._lock:
            if self.seen is not seen:
                return False
            keep()
            if self.seen is not seen:  # a finalizer, which may run in this thread at any time, has applied changes
                self._kept.drop_all()
            return True

    def _apply(self, changes: Collection[Change]) -> None:
        kept = self._kept
        digests = frozenset([change.digest for change in changes if change.digest])
        if EVERYTHING in changes:
            kept.read_again()
        else:
            kept.add_identifiers(digests)
            if ALL in changes or ROWS in changes:
                kept.read_latest()
        if not {GENERAL, ALL, EVERYTHING}.isdisjoint(changes):
            kept.drop_all()
        elif ROWS in changes:
            kept.drop_clients()
        else:
            kept.drop(digests)
            if ACCESS in changes:
                kept.drop_access()
        if COOLING in changes:
            kept.drop_cool_downs()

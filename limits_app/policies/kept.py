"""Values that are kept for some time, and at most so many of them."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from contextlib import AbstractContextManager
from math import inf
from time import monotonic
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from limits_app.acquiring import on_fork
from limits_app.engine.locks import RLock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Age:
    """How long something is kept: for `seconds` from `kept_at` on, by the monotonic clock.

    While it `outlasts_dates`, it is also used after a date that changes it. `is_used` says that it was used since it
    was last about to be dropped to make room.
    """

    __slots__ = ("is_used", "kept_at", "outlasts_dates", "seconds")

    def __init__(self, seconds: float) -> None:
        self.is_used = False
        self.keep(seconds)

    def keep(self, seconds: float, *, outlasts_dates: bool = False) -> None:
        """Keep it for so long from now on."""
        self.kept_at, self.seconds, self.outlasts_dates = monotonic(), seconds, outlasts_dates


class Aged(Age, Generic[V]):
    """A value that is kept for some time; `digests` are those of the identifiers that it was read from.

    The garbage collector does not visit a tuple of bytes, as it would visit a set.
    """

    __slots__ = ("digests", "value")

    def __init__(self, value: V, seconds: float = inf, digests: tuple[bytes, ...] = ()) -> None:
        super().__init__(seconds)
        self.value = value
        self.digests = digests


class Kept(Generic[K, V]):
    """Values by key; those that are not used make room for others.

    A value that was used since it was last about to be dropped is kept for another round, so that reading takes no
    lock and changes no order.
    """

    def __init__(self) -> None:
        self.values: dict[K, Aged[V]] = {}
        """To look up a value; `get` also marks it as used."""
        self._by_digest: dict[bytes, dict[K, None]] = {}
        """The keys by digest: the garbage collector does not visit a dictionary of texts, as it would visit a set."""
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Make a new lock in a child process, which keeps the values."""
        # Reentrant, because a finalizer may resolve limits while this thread holds the lock.
        self._lock = RLock()

    def __len__(self) -> int:
        return len(self.values)

    def get(self, key: K) -> Aged[V] | None:
        """The value of a key; None without one."""
        aged = self.values.get(key)
        if aged is not None:
            aged.is_used = True
        return aged

    def add(self, key: K, aged: Aged[V], *, most: int) -> None:
        """Keep a value, and at most so many values."""
        with self._lock:
            values = self.values
            if key in values:
                self._drop(key)
            values[key] = aged
            for digest in aged.digests:
                self._by_digest.setdefault(digest, {})[key] = None
            while len(values) > most:
                oldest = next(iter(values))
                dropped = values[oldest]
                if dropped.is_used:
                    dropped.is_used = False
                    values[oldest] = values.pop(oldest)
                else:
                    self._drop(oldest)

    def drop(self, digests: Collection[bytes]) -> None:
        """Drop the values that were read from one of some identifiers."""
        with self._lock:
            for key in {key for digest in digests for key in self._by_digest.get(digest, ())}:
                self._drop(key)

    def clear(self) -> None:
        """Drop all values."""
        with self._lock:
            self.values = {}
            self._by_digest = {}

    def _drop(self, key: K) -> None:
        for digest in self.values.pop(key).digests:
            keys = self._by_digest[digest]
            keys.pop(key, None)
            if not keys:
                del self._by_digest[digest]


class KeyLocks:
    """A lock for each key: one thread computes the value of a key, while others wait for it."""

    def __init__(self) -> None:
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Make new locks in a child process."""
        self._lock = RLock()
        self._locks: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        """The lock of each key, as long as a thread uses it."""

    def __len__(self) -> int:
        return len(self._locks)

    def locked(self, key: Hashable) -> AbstractContextManager[object]:
        """Hold the lock of a key in the block."""
        with self._lock:
            lock: AbstractContextManager[object] = self._locks.setdefault(key, RLock())
        return lock

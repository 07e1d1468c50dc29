"""What has to be known if somebody asks again: so much of it, and not more."""

from __future__ import annotations

from threading import Lock
from typing import Generic, TypeVar

__all__ = ["Remembered"]

K = TypeVar("K")
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Values that are taken out once; of too many the oldest are forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[K, V] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def keep(self, key: K, value: V) -> None:
        """Remember a value, as the youngest."""
        with self._lock:
            self._values.pop(key, None)
            if len(self._values) >= self._most:
                del self._values[next(iter(self._values))]
            self._values[key] = value

    def take(self, key: K) -> V | None:
        """The value that was remembered, which is forgotten by that."""
        with self._lock:
            return self._values.pop(key, None)

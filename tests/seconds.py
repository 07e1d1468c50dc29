"""A monotonic clock that a test moves."""

from __future__ import annotations

__all__ = ["Seconds"]


class Seconds:
    """Seconds that pass only when a test adds to them."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

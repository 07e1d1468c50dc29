"""The clock on the wall of the resolver, for tests that move it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ["NOW", "Wall"]

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
"""A Wednesday, at noon."""


class Wall:
    """Shows what a test has set it to."""

    def __init__(self) -> None:
        self.moment = NOW

    def __call__(self) -> float:
        return self.moment.timestamp()

    def advance(self, **duration: float) -> None:
        """Move it by a duration, in the words of timedelta."""
        self.moment += timedelta(**duration)

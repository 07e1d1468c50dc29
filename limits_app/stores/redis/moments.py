"""Time, as a store tells it to its scripts."""

from __future__ import annotations

from typing import Any

__all__ = ["Moments"]


class Moments:
    """How a store tells time to its scripts: the server's clock, or one of a test; and how long state is kept."""

    def __init__(self, now: Any, idle_factor: float, least_idle_us: int) -> None:
        self.now = now
        self.idle_factor = idle_factor
        self.least_idle_us = least_idle_us

    def header(self, admitted_at: int = 0, now: int | None = None) -> tuple[float, ...]:
        """The numbers with which every script starts; `now` where another server has told the time already."""
        if now is None:
            now = -1 if self.now is None else self.now()
        return now, admitted_at, self.idle_factor, self.least_idle_us

    def idle_us(self, full_in: int) -> int:
        """How long state is kept that is full again after a while."""
        return round(max(full_in * self.idle_factor, self.least_idle_us))

"""Time, as a store tells it to its scripts, and as they tell it to the store."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from time import monotonic_ns, time_ns
from typing import Final

__all__ = ["MOMENT", "Moments", "moment_of"]

MOMENT: Final = Struct("<xd")
"""How a reply starts: what was decided, and when."""


class Moments:
    """How a store tells time to its scripts: the server's clock, or one of a test; and how long state is kept."""

    def __init__(self, now: Callable[[], int] | None, idle_factor: float, least_idle_us: int) -> None:
        self.now = now
        self.idle_factor = idle_factor
        self.least_idle_us = least_idle_us
        self.usual = (-1, 0, idle_factor, least_idle_us)
        """`header` where the server tells the time, and nothing was admitted before."""
        self._offset_us: int | None = None

    def header(self, admitted_at: int = 0, now: int | None = None) -> tuple[float, ...]:
        """The numbers with which every script starts; `now` where another server has told the time already."""
        if now is None:
            now = -1 if self.now is None else self.now()
        return now, admitted_at, self.idle_factor, self.least_idle_us

    def idle_us(self, full_in: int) -> int:
        """How long state is kept that is full again after a while."""
        return round(max(full_in * self.idle_factor, self.least_idle_us))

    def heard(self, now: int) -> None:
        """The server has just told the time."""
        self._offset_us = now - monotonic_ns() // 1000

    def estimate(self) -> int:
        """The store's time, as far as it is known here: by what the server told last, or else by the system's clock."""
        if self.now is not None:
            return self.now()
        if self._offset_us is None:
            return time_ns() // 1000
        return monotonic_ns() // 1000 + self._offset_us


def moment_of(reply: bytes) -> int:
    """When a reply says that it was decided."""
    return int(MOMENT.unpack_from(reply)[0])

"""The log of a sliding window: times and running totals of closed entries.

Two arrays of 64-bit integers, so that finding what has expired is a binary search
and keeping a thousand entries costs 16 kB.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

__all__ = ["EMPTY_LOG", "Log"]


class Log:
    """An immutable sequence of (time, running total), both rising."""

    __slots__ = ("times", "totals")

    def __init__(self, times: array[int], totals: array[int]) -> None:
        self.times = times
        self.totals = totals

    @classmethod
    def unpack(cls, packed: bytes) -> Log:
        """Read what `pack` wrote."""
        half = len(packed) // 2
        return cls(array("q", packed[:half]), array("q", packed[half:]))

    def pack(self) -> bytes:
        """Write as bytes: all times, then all totals, in the machine's byte order."""
        return self.times.tobytes() + self.totals.tobytes()

    def __len__(self) -> int:
        return len(self.times)

    def append(self, time: int, total: int, *, drop: int) -> Log:
        """Give the log without its first `drop` entries and with one more at its end."""
        times, totals = self.times[drop:], self.totals[drop:]
        times.append(time)
        totals.append(total)
        return Log(times, totals)

    def rebased(self, forgotten: int) -> Log:
        """Give the log with running totals that start at `forgotten`."""
        return Log(self.times, array("q", [total - forgotten for total in self.totals]))

    def count_until(self, time: int) -> int:
        """How many entries are not later than `time`."""
        return bisect_right(self.times, time)

    def first_with(self, total: int) -> int:
        """The index of the first entry whose running total is at least `total`; the length when there is none."""
        return bisect_left(self.totals, total)


EMPTY_LOG: Final = Log(array("q"), array("q"))

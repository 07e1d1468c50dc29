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

    __slots__ = ("_times", "_totals")

    def __init__(self, times: array[int], totals: array[int]) -> None:
        self._times = times
        self._totals = totals

    @classmethod
    def unpack(cls, packed: bytes) -> Log:
        """Read what `pack` wrote."""
        half = len(packed) // 2
        return Log(array("q", packed[:half]), array("q", packed[half:]))

    def pack(self) -> bytes:
        """Write as bytes: all times, then all totals, in the machine's byte order."""
        times, totals = self.arrays()
        return times.tobytes() + totals.tobytes()

    def arrays(self) -> tuple[array[int], array[int]]:
        """The times and the running totals; a log that is kept elsewhere is fetched here."""
        return self._times, self._totals

    def __len__(self) -> int:
        return len(self.arrays()[0])

    def time(self, index: int) -> int:
        """The time of an entry."""
        return self.arrays()[0][index]

    def total(self, index: int) -> int:
        """The running total up to and with an entry."""
        return self.arrays()[1][index]

    def append(self, time: int, total: int, *, drop: int) -> Log:
        """Give the log without its first `drop` entries and with one more at its end."""
        times, totals = self.arrays()
        times, totals = times[drop:], totals[drop:]
        times.append(time)
        totals.append(total)
        return Log(times, totals)

    def without(self, count: int) -> Log:
        """Give the log without its first `count` entries."""
        times, totals = self.arrays()
        return Log(times[count:], totals[count:])

    def rebased(self, forgotten: int) -> Log:
        """Give the log with running totals that start at `forgotten`."""
        times, totals = self.arrays()
        return Log(times, array("q", [total - forgotten for total in totals]))

    def count_until(self, time: int) -> int:
        """How many entries are not later than `time`."""
        return bisect_right(self.arrays()[0], time)

    def first_with(self, total: int) -> int:
        """The index of the first entry whose running total is at least `total`; the length when there is none."""
        return bisect_left(self.arrays()[1], total)


EMPTY_LOG: Final = Log(array("q"), array("q"))

"""The log of a sliding window: times and running totals of closed entries.

Two arrays of 64-bit integers, so that expired entries are found by binary search and a thousand entries take 16 kB.
A store may keep the log apart from the rest of a record and read it only when it is needed, with `Log.stored`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Final


class Log:
    """An immutable sequence of (time, running total), both rising."""

    __slots__ = ("_fetch", "_times", "_totals")

    def __init__(self, times: array[int], totals: array[int], fetch: Callable[[], bytes | None] | None = None) -> None:
        self._times = times
        self._totals = totals
        self._fetch = fetch

    @classmethod
    def stored(cls, fetch: Callable[[], bytes | None]) -> Log:
        """Make a log that calls `fetch` for its packed bytes (None: empty) when it is read for the first time."""
        return cls(array("q"), array("q"), fetch)

    @property
    def is_stored(self) -> bool:
        """Whether the log was never read, so that it is as the store has it."""
        return self._fetch is not None

    def pack(self) -> bytes:
        """Write as bytes: all times, then all totals, in the byte order of the machine."""
        times, totals = self.arrays()
        return times.tobytes() + totals.tobytes()

    def arrays(self) -> tuple[array[int], array[int]]:
        """Return the times and the running totals, read from the store where that was not done yet."""
        if self._fetch is not None:
            packed = self._fetch() or b""
            half = len(packed) // 2
            self._times, self._totals = array("q", packed[:half]), array("q", packed[half:])
            self._fetch = None
        return self._times, self._totals

    def __len__(self) -> int:
        return len(self.arrays()[0])

    def time(self, index: int) -> int:
        """Return the time of an entry."""
        return self.arrays()[0][index]

    def total(self, index: int) -> int:
        """Return the running total up to and including an entry."""
        return self.arrays()[1][index]

    def append(self, time: int, total: int, *, drop: int) -> Log:
        """Return the log without its first `drop` entries and with one more at its end."""
        times, totals = self.arrays()
        times, totals = times[drop:], totals[drop:]
        times.append(time)
        totals.append(total)
        return Log(times, totals)

    def without(self, count: int) -> Log:
        """Return the log without its first `count` entries."""
        times, totals = self.arrays()
        return Log(times[count:], totals[count:])

    def rebased(self, forgotten: int) -> Log:
        """Return the log with running totals that start at `forgotten`."""
        times, totals = self.arrays()
        return Log(times, array("q", [total - forgotten for total in totals]))

    def count_until(self, time: int) -> int:
        """Return how many entries are not later than `time`."""
        return bisect_right(self.arrays()[0], time)

    def first_at(self, time: int) -> int:
        """Return the index of the first entry that is not earlier than `time`, or the length."""
        return bisect_left(self.arrays()[0], time)

    def reduced(self, index: int, amount: int) -> Log:
        """Return the log with so much less in the entry at an index."""
        times, totals = self.arrays()
        return Log(times, totals[:index] + array("q", [total - amount for total in totals[index:]]))

    def first_with(self, total: int) -> int:
        """Return the index of the first entry whose running total is at least `total`, or the length."""
        return bisect_left(self.arrays()[1], total)


EMPTY_LOG: Final = Log(array("q"), array("q"))

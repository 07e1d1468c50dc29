"""Records: the state of a scope as a step sees it, and as a row holds it.

The column `states` has the layout's name, the integers of all states and counts, and the leases;
the column `logs` the logs of sliding windows, read and written only when they are needed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from limits_app.core.algorithms import State
from limits_app.core.algorithms.log import Log
from limits_app.core.layout import Layout
from limits_app.stores.codecs import LayoutCodec
from limits_app.stores.database.counted import Mark, Tallied, closed
from limits_app.stores.database.lending import TAG_LENGTH, alive, recounted
from limits_app.stores.database.logs import pack, unpack
from limits_app.stores.database.trail import framed, noted

if TYPE_CHECKING:
    from limits_app.stores.database.links import Row

__all__ = ["NAME_LENGTH", "Codec", "LogElsewhere", "Record"]

NAME_LENGTH: Final = 8

Fetch = Callable[[], bytes | None]


class Record(NamedTuple):
    """The states and leases of one scope; `stamp` and `trail` are those of its row, None and empty without a row.

    `counts` are what was admitted of each limit, and last until when that is one hour, where the layout counts.
    Once it is written, the row has the `mark`, unless that is None, and what is `tallied` stands elsewhere.
    """

    scope: bytes
    states: list[State]
    codec: Codec
    leases: bytes
    stamp: int | None
    trail: bytes
    counts: list[int]
    mark: Mark | None = None
    tallied: tuple[Tallied, ...] = ()

    def copy(self) -> Record:
        """The record with states and counts that may be changed."""
        scope, states, codec, leases, stamp, trail, counts, mark, tallied = self
        return Record(scope, states.copy(), codec, leases, stamp, trail, counts.copy(), mark, tallied)

    def without_expired(self, now: int) -> Record:
        """The record without the leases that have run out; itself when none can have."""
        ended = [index for index, _ in self.codec.permits if self.states[index][0] and self.states[index][3] <= now]
        if not ended:
            return self
        leases = alive(self.leases, now)
        return self._replace(states=self.codec.counted(self.states, leases), leases=leases)

    def noting(self, link: int, stamp: int) -> Record:
        """The record as a link is to write it."""
        scope, states, codec, leases, before, trail, counts, mark, tallied = self
        return Record(scope, states, codec, leases, before, noted(trail, link, stamp), counts, mark, tallied)

    def under(self, layout: Layout, codec: Codec, *, now: int, label: bytes) -> Record:
        """The same use as a record of another layout, which begins to count anew."""
        states = [
            cast("State", (*state[:-1], Log(*log.arrays())))
            if isinstance(log := cast("object", state[-1]), StoredLog)
            else state
            for state in layout.carried(self.codec.layout, self.states, now)
        ]
        # Leases outlive a limit that was taken away and came back.
        leases = alive(self.leases, now)
        return self._replace(
            states=codec.counted(states, leases),
            codec=codec,
            leases=leases,
            counts=codec.uncounted,
            tallied=closed(self, label),
        )


class Codec(LayoutCodec):
    """Writes and reads the records of one layout."""

    __slots__ = ("_size", "_slices", "_struct", "_width", "logs", "permits", "uncounted")

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, NAME_LENGTH)
        self.logs = [index for index, rule in enumerate(layout.rules) if rule.has_log]
        self.permits = [(index, key[-TAG_LENGTH:]) for index, key in layout.leases(b"")]
        widths = [len(rule.start) - rule.has_log for rule in layout.rules]
        self.uncounted = [0] * (len(widths) + 1) if layout.counts else []
        self._width = 1 + sum(widths)
        self._struct = Struct(f"={NAME_LENGTH}s{sum(widths) + len(self.uncounted)}q")
        self._size = self._struct.size
        ends = [1 + sum(widths[: index + 1]) for index in range(len(widths))]
        self._slices = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]

    def decode(self, row: Row) -> Record:
        """The record in a row that the layout has written."""
        scope, stamp, packed, fetch, trail = row
        flat = self._struct.unpack_from(packed)
        states = [flat[part] for part in self._slices]
        if self.logs:
            stored = StoredLogs(fetch)
            for place, index in enumerate(self.logs):
                states[index] = (*states[index], StoredLog(stored, place))
        return Record(scope, states, self, packed[self._size :], stamp, trail, list(flat[self._width :]))

    def encode(self, record: Record) -> bytes:
        """The column of states."""
        states: Sequence[State] = record.states
        if self.logs:
            states = [state[:-1] if index in self.logs else state for index, state in enumerate(states)]
        packed = self._struct.pack(self.name, *chain.from_iterable(states), *record.counts)
        return framed(record.trail) + packed + record.leases

    def encode_logs(self, record: Record) -> bytes | None:
        """The column of logs, or None when it is the one that is there already."""
        logs = [cast("Log", record.states[index][-1]) for index in self.logs]
        if all(isinstance(log, StoredLog) for log in logs):
            return None
        return pack(logs)

    def stored(self, record: Record, stamp: int) -> Record:
        """The record as it is once its row was written."""
        if self.logs:
            logs = [cast("Log", record.states[index][-1]) for index in self.logs]
            stored = next((log.stored for log in logs if isinstance(log, StoredLog)), None)
            if stored is None or not all(isinstance(log, StoredLog) for log in logs):
                stored = StoredLogs(_gone, [Log(*log.arrays()) for log in logs])
                for place, index in enumerate(self.logs):
                    record.states[index] = cast("State", (*record.states[index][:-1], StoredLog(stored, place)))
            stored.leave()
        return Record(record.scope, record.states, record.codec, record.leases, stamp, record.trail, record.counts)

    def counted(self, states: Sequence[State], leases: bytes) -> list[State]:
        """The states with as many permits as the leases say."""
        changed = list(states)
        for index, tag in self.permits:
            changed[index] = recounted(leases, tag, changed[index])
        return changed

    def load_logs(self, states: Sequence[State]) -> None:
        """Fetch all logs now, for states that will be read after their transaction."""
        for index in self.logs:
            cast("Log", states[index][-1]).arrays()


class LogElsewhere(Exception):
    """Somebody looks into a log that was never fetched, and its transaction is over."""


class StoredLogs:
    """The logs of one row, fetched together when somebody looks into one of them."""

    __slots__ = ("_fetch", "_logs")

    def __init__(self, fetch: Fetch, logs: list[Log] | None = None) -> None:
        self._fetch = fetch
        self._logs = logs

    def leave(self) -> None:
        """The transaction is over: what was not fetched cannot be."""
        self._fetch = _gone

    def __getitem__(self, place: int) -> Log:
        if self._logs is None:
            self._logs = list(unpack(self._fetch() or b""))
        return self._logs[place] if place < len(self._logs) else Log(array("q"), array("q"))


class StoredLog(Log):
    """A log that stays in the database until somebody looks into it.

    Whoever decides looks into it only when something has expired, so what was not fetched then is not needed later.
    """

    __slots__ = ("_place", "stored")

    def __init__(self, stored: StoredLogs, place: int) -> None:
        super().__init__(array("q"), array("q"))
        self.stored = stored
        self._place = place

    def arrays(self) -> tuple[array[int], array[int]]:
        """The log as it was in the transaction."""
        return self.stored[self._place].arrays()


def _gone() -> bytes | None:
    raise LogElsewhere

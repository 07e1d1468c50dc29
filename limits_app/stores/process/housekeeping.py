"""Housekeeping of the file: idle scopes are deleted while new ones are added, and a file that is full makes room.

The space is reserved, so that nothing is deleted before a good part of it is in use. From then on it goes round through
the scopes, a few for every new one. In a full file a step that needs more pages is repeated after something has given
way: counted usage first, and for a new scope its neighbours in the file that are idle, or else nearly idle. Where there
is none of these it finds no room. All other scopes keep their state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from limits_app.engine import SECOND_US, Record, lasts
from limits_app.stores.process.records import Records, scopes_around, scopes_from
from limits_app.stores.process.state_file import NoRoomError, Txn
from limits_app.stores.steps import CHECKS_PER_NEW_SCOPE, GRACE_US, FullnessWarnings, is_idle, that_give_way

_FULL: Final = 7 / 8
"""The share of the map from which on what gives way makes room for new scopes and for usage."""
_FULL_TO_NEW: Final = 29 / 32
"""The share of the map that new scopes may use; the rest is for changes of stored records."""
_ROOMY: Final = 3 / 8
"""Up to this share, idle scopes stay."""
_WARNINGS: Final = {
    3 / 4: "the state file in %s is %d %% full: raise LIMITS['MAP_MEGABYTES'] before new clients find no room",
    _FULL: "the state file in %s is full (%d %%): counted usage that was not rolled up is dropped, then idle "
    "clients; `on_unavailable` decides for new clients that find no room: raise LIMITS['MAP_MEGABYTES']",
}
_NEIGHBOURS: Final = 32
"""How many scopes on either side give way to a new one: a page of the file has about as many."""
_BATCH: Final = 64
_BATCHES: Final = 4
_HOURS: Final = 256
_UNCOUNTED_US: Final = SECOND_US
"""How long no more usage is kept after there was no room for some."""
_MIN_PAUSE_US: Final = 100_000
_PAUSE: Final = 16
"""How many times as long as a search without result the pause after it is, so that searches take little time."""


class CountedUsage(Protocol):
    """The usage in the file, as housekeeping needs it."""

    def close(self, txn: Txn, key: bytes, record: Record) -> None:
        """Keep all that a record has counted, which is deleted next."""

    def give_way(self, txn: Txn, most: int) -> int:
        """Delete up to `most` finished hours, and return how many were deleted."""


class Space(Protocol):
    """The space of the file."""

    directory: Path

    def fullness(self) -> float:
        """The share of the map that is in use."""

    def grows(self, txn: Txn) -> bool:
        """Whether a transaction uses more pages than before."""


class Housekeeping:
    """Deletes scopes: a few are checked for every new one, and more when the file is full.

    `clock` returns microseconds.
    """

    def __init__(self, records: Records, usage: CountedUsage, space: Space, clock: Callable[[], int]) -> None:
        self._records = records
        self._usage = usage
        self._space = space
        self._clock = clock
        self._next = b""
        self._ended_at = self._pause_us = self._uncounted_at = 0
        self._is_repeated = False
        """Whether the present step is repeated because there was no room."""
        self._warnings = FullnessWarnings(_WARNINGS)

    def may_count(self, now: int) -> bool:
        """Whether usage may be kept: not while the file is full."""
        return not (self._is_repeated or lasts(self._uncounted_at, _UNCOUNTED_US, now))

    def step(self, txn: Txn, now: int, new: Sequence[bytes]) -> None:
        """Delete idle scopes after scopes were added (`new`) or usage was kept.

        Raises NoRoomError in a full file, while there is still some room for other changes: in a map without any room
        nothing can be changed.
        """
        fullness = self._space.fullness()
        self._warnings.note(fullness, self._space.directory)
        if new and fullness > _ROOMY:
            self._delete_idle(txn, now, is_full=fullness > _FULL)
        if fullness > _FULL and self._space.grows(txn):
            has_no_room = bool(new) and fullness > _FULL_TO_NEW
            if has_no_room and (self._is_repeated or self._is_paused(now)):
                raise NoRoomError
            if not self._is_repeated:
                raise NoRoomError(partial(self._making_room, new))

    def make_room(self, transact: Callable[[Callable[[Txn, int], int], int], int]) -> None:
        """Delete what gives way to changes of stored records, in steps that `transact` makes."""
        now = self._clock()
        if transact(self._usage.give_way, _HOURS) or self._is_paused(now):
            return
        for _ in range(_BATCHES):
            transact(self._let_some_give_way, now)
        self._pause_after(now, at_least_us=_MIN_PAUSE_US)

    def _delete_idle(self, txn: Txn, now: int, *, is_full: bool) -> None:
        """Delete those of the next scopes that are idle."""
        scopes, self._next = scopes_from(txn, self._next, CHECKS_PER_NEW_SCOPE)
        for scope, record in self._found(txn, scopes).items():
            if is_idle(record, now, grace_us=0 if is_full else GRACE_US):
                if not is_full:
                    self._usage.close(txn, scope, record)
                self._records.remove(txn, scope)
            elif record.changed:
                self._records.put(txn, scope, record)

    def _let_some_give_way(self, txn: Txn, now: int) -> int:
        """Delete those of the next scopes that give way; returns how many were deleted."""
        scopes, self._next = scopes_from(txn, self._next, _BATCH)
        return self._let_give_way(txn, self._found(txn, scopes), now)

    @contextmanager
    def _making_room(self, new: Sequence[bytes], txn: Txn) -> Iterator[None]:
        """Let what was counted give way to a step, or else the neighbours of new scopes; the step counts nothing."""
        now = self._clock()
        self._is_repeated = True
        try:
            if not self._usage.give_way(txn, _HOURS):
                self._uncounted_at = now
                if new and not self._is_paused(now):
                    self._let_neighbours_give_way(txn, new, now)
            yield
        finally:
            self._is_repeated = False

    def _let_neighbours_give_way(self, txn: Txn, new: Sequence[bytes], now: int) -> None:
        gave_way = 0
        for scope in new:
            records = self._found(txn, scopes_around(txn, scope, _NEIGHBOURS))
            gave_way += self._drop_usage(txn, records) or self._let_give_way(txn, records, now)
        if not gave_way:
            self._pause_after(now)

    def _drop_usage(self, txn: Txn, records: dict[bytes, Record]) -> int:
        """Drop the labels of scopes that are counting, so that their counts are not collected; returns how many."""
        dropped = 0
        for scope, record in records.items():
            if record.label:
                record.label = b""
                self._records.put(txn, scope, record)
                dropped += 1
        return dropped

    def _let_give_way(self, txn: Txn, records: dict[bytes, Record], now: int) -> int:
        """Delete those scopes that give way; returns how many were deleted."""
        deleted = that_give_way(records, now)
        for scope in deleted:
            self._records.remove(txn, scope)
        for scope in records.keys() - deleted:
            if records[scope].changed:
                self._records.put(txn, scope, records[scope])
        return len(deleted)

    def _found(self, txn: Txn, scopes: Sequence[bytes]) -> dict[bytes, Record]:
        """Return the records of scopes, and delete those that cannot be read."""
        records = {}
        for scope in scopes:
            record = self._records.find(txn, scope)
            if record is None:
                self._records.remove(txn, scope)
            else:
                records[scope] = record
        return records

    def _is_paused(self, now: int) -> bool:
        """Whether the last search is over for too short a time."""
        return lasts(self._ended_at, self._pause_us, now)

    def _pause_after(self, began_at: int, at_least_us: int = 0) -> None:
        """Do not search again for a while, after a search that began at a time."""
        self._ended_at = self._clock()
        self._pause_us = max(at_least_us, _PAUSE * (self._ended_at - began_at))

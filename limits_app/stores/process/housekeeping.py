"""Housekeeping of the file: idle scopes are deleted while new ones are added, and a file that is full makes room.

The space is reserved, so that nothing is deleted before a good part of it is in use. From then on it goes round through
the scopes, a few for every new one. In a full file counted usage gives way first, then idle scopes. After a round
without any, scopes give way that are nearly idle. Where there is none of these, a new scope finds no room. All other
scopes keep their state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import lmdb

from limits_app.engine.clock import lasts
from limits_app.engine.engine import is_nearly_restored
from limits_app.engine.record import Record
from limits_app.stores.process.records import SCOPE_LENGTH, Records, entries
from limits_app.stores.process.state_file import TIGHT, Txn
from limits_app.stores.steps import CHECKS_PER_NEW_SCOPE, GRACE_US, is_idle

logger = logging.getLogger("limits_app")

_CROWDED: Final = 7 / 8
"""The share of the map that new scopes may use; the rest is for changes of stored records."""
_ROOMY: Final = 3 / 8
"""Up to this share, idle scopes stay."""
_CALM: Final = 5 / 8
"""Below this share, warnings are repeated when it is exceeded again."""
_WARNINGS: Final = {
    3 / 4: "the state file in %s is %d %% full: raise LIMITS['MAP_MEGABYTES'] before new clients find no room",
    _CROWDED: "the state file in %s is full (%d %%): counted usage that was not rolled up is dropped, then idle "
    "clients; `on_unavailable` decides for new clients that find no room: raise LIMITS['MAP_MEGABYTES']",
}
_NEARLY: Final = (0, 64, 16)
"""By round, which part of its time a scope may still need until it is idle (0: none); see `is_nearly_restored`."""
_BATCH: Final = 64
_BATCHES: Final = 16
_USAGE_BATCH: Final = 256
_ENTRIES_PER_SCOPE: Final = 8
_MIN_PAUSE_US: Final = 100_000
_PAUSE: Final = 8
"""How many times as long as the work the pause after it is, so that other changes find the file free."""


class CountedUsage(Protocol):
    """The usage in the file, as housekeeping needs it."""

    def close(self, txn: Txn, scope: bytes, record: Record, now: int) -> None:
        """Keep all that a record has counted, which is deleted next."""

    def give_way(self, txn: Txn, most: int) -> int:
        """Delete up to `most` entries, and return how many were deleted."""


class Housekeeping:
    """Deletes scopes: a few are checked for every new one, and more when there is no room.

    `fullness` returns the share of the map that is in use, and `name` is that of the file in warnings.
    """

    def __init__(self, records: Records, usage: CountedUsage, fullness: Callable[[], float], name: object) -> None:
        self._records = records
        self._usage = usage
        self._fullness = fullness
        self._name = name
        self._next = b""
        self._round = 0
        """The place of the present round in _NEARLY."""
        self._deleted = 0
        """How many scopes were deleted in the present round."""
        self._room = 0
        """How many new scopes may take the place of those that `make_room` has deleted."""
        self._ended_at = self._pause_us = 0
        self._warned_about = 0.0

    def step(self, txn: Txn, now: int, *, is_new: bool) -> None:
        """Delete idle scopes after a scope was added (`is_new`) or has finished usage; in a full file, make room.

        Raises MapFullError for a new scope without room, while there is still some for other changes: in a map without
        any room nothing can be changed.
        """
        fullness = self._fullness()
        self._warn(fullness)
        if fullness <= _CROWDED:
            self._round = self._room = 0
            if is_new and fullness > _ROOMY:
                self._go(txn, now, most=CHECKS_PER_NEW_SCOPE, grace_us=GRACE_US)
            return
        has_room = self._usage.give_way(txn, CHECKS_PER_NEW_SCOPE) > 0
        if is_new and not has_room:
            has_room = self._go(txn, now, most=CHECKS_PER_NEW_SCOPE) > 0 or self._room > 0
            self._room -= self._room > 0
        if is_new and (not has_room or fullness > TIGHT):
            raise lmdb.MapFullError("the last pages are needed for changes of stored records")

    def make_room(self, transact: Callable[[Callable[[Txn, int], int], int], int], now: Callable[[], int]) -> None:
        """Delete what gives way, in steps that `transact` makes: usage, or else some of the scopes."""
        if transact(self._usage.give_way, _USAGE_BATCH) or lasts(self._ended_at, self._pause_us, now()):
            return
        began_at = now()
        for _ in range(_BATCHES):
            self._room += transact(partial(self._go, most=_BATCH), now())
        self._ended_at = now()
        self._pause_us = max(_MIN_PAUSE_US, _PAUSE * (self._ended_at - began_at))

    def _go(self, txn: Txn, now: int, *, most: int, grace_us: int = 0) -> int:
        """Delete those of the next scopes that give way in the present round; returns how many were deleted."""
        scopes, self._next = _scopes_from(txn, self._next, most)
        deleted, part = 0, _NEARLY[self._round]
        for scope in scopes:
            record = self._records.find(txn, scope)
            if record is None:
                self._records.remove(txn, scope)
            elif is_idle(record, now, grace_us=grace_us) or (part and is_nearly_restored(record, now, part)):
                self._usage.close(txn, scope, record, now)
                self._records.remove(txn, scope)
                deleted += 1
            elif record.changed:
                self._records.put(txn, scope, record)
        self._deleted += deleted
        if not self._next:
            self._round = 0 if self._deleted else (self._round + 1) % len(_NEARLY)
            self._deleted = 0
        return deleted

    def _warn(self, fullness: float) -> None:
        """Warn before the file is full, and when it is."""
        if fullness <= _CALM:
            self._warned_about = 0.0
        for share, text in _WARNINGS.items():
            if self._warned_about < share < fullness:
                self._warned_about = share
                logger.warning(text, self._name, 100 * share)


def _scopes_from(txn: Txn, start: bytes, most: int) -> tuple[list[bytes], bytes]:
    """Up to `most` scopes that have records, from a key on, and the key to go on with (empty: from the beginning)."""
    scopes: list[bytes] = []
    for step, (key, _) in enumerate(entries(txn, b"", start)):
        if len(scopes) == most or step == most * _ENTRIES_PER_SCOPE:
            return scopes, key
        if len(key) == SCOPE_LENGTH:
            scopes.append(key)
    return scopes, b""

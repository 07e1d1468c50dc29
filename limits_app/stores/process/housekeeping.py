"""Housekeeping: scopes whose records equal unused ones are deleted, so that the file holds active scopes only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import lmdb

from limits_app.stores.process.records import SCOPE_LENGTH, Records, entries
from limits_app.stores.process.state_file import Txn
from limits_app.stores.process.usage import Usage
from limits_app.stores.steps import CHECKS_PER_NEW_SCOPE, GRACE_US, is_idle

_ENTRIES_PER_SCOPE: Final = 8
_BATCH: Final = 64


class Housekeeping:
    """Goes through the file in rounds, a few entries for every new scope."""

    def __init__(self, records: Records, usage: Usage, is_crowded: Callable[[], bool]) -> None:
        self._records = records
        self._usage = usage
        self._is_crowded = is_crowded
        self._next = b""

    def step(self, txn: Txn, now: int) -> None:
        """Look at the next scopes, and delete those that have been idle for a minute.

        Raises MapFullError while there is still room for deletions: in a map without any room nothing can be changed.
        """
        if self._is_crowded():
            raise lmdb.MapFullError("too few free pages")
        self._go(txn, now, most=CHECKS_PER_NEW_SCOPE, grace_us=GRACE_US)

    def make_room(self, txn: Txn, now: int) -> bool:
        """Delete scopes that are idle now, a batch of them; False when the round is complete."""
        self._go(txn, now, most=_BATCH, grace_us=0)
        return bool(self._next)

    def start_over(self) -> None:
        """Begin the round with the first scope."""
        self._next = b""

    def _go(self, txn: Txn, now: int, *, most: int, grace_us: int) -> None:
        scopes, self._next = _scopes_from(txn, self._next, most)
        for scope in scopes:
            record = self._records.find(txn, scope)
            if record is None:
                self._records.remove(txn, scope)
            elif is_idle(record, now, grace_us=grace_us):
                self._usage.close(txn, scope, record, now)
                self._records.remove(txn, scope)
            elif record.changed:
                self._records.put(txn, scope, record)


def _scopes_from(txn: Txn, start: bytes, most: int) -> tuple[list[bytes], bytes]:
    """Up to `most` scopes that have records, from a key on, and the key to go on with (empty: from the beginning)."""
    scopes: list[bytes] = []
    for step, (key, _) in enumerate(entries(txn, b"", start)):
        if len(scopes) == most or step == most * _ENTRIES_PER_SCOPE:
            return scopes, key
        if len(key) == SCOPE_LENGTH:
            scopes.append(key)
    return scopes, b""

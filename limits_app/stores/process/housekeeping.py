"""Housekeeping: scopes that cannot be told from unused ones are forgotten, so that the file holds what is active."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import lmdb

from limits_app.core.layout import Layout
from limits_app.core.unrolled import Record
from limits_app.stores.idleness import GRACE_US, LOOKS_PER_NEWCOMER
from limits_app.stores.process.leasing import Leasing
from limits_app.stores.process.places import scope_in
from limits_app.stores.process.records import Records
from limits_app.stores.process.tallying import Tallying

__all__ = ["Housekeeping"]

_STEPS_PER_LOOK: Final = 8
_BATCH: Final = 64


class Housekeeping:
    """Goes round the file, a few steps for every scope that is new."""

    def __init__(self, records: Records, leasing: Leasing, tallying: Tallying, is_crowded: Callable[[], bool]) -> None:
        self._is_crowded = is_crowded
        self._records = records
        self._leasing = leasing
        self._tallying = tallying
        self._hand = b""

    def step(self, txn: lmdb.Transaction[bytes], now: int) -> None:
        """Look at the next scopes, and forget those that have been idle for a minute.

        Raises MapFullError while there is still room to forget in: a map that is really full lets nothing be changed.
        """
        if self._is_crowded():
            raise lmdb.MapFullError("too few free pages")
        self._go(txn, now, looks=LOOKS_PER_NEWCOMER, grace_us=GRACE_US)

    def make_room(self, txn: lmdb.Transaction[bytes], now: int) -> bool:
        """Forget scopes that are idle right now, a batch of them; False once the round is complete."""
        return self._go(txn, now, looks=_BATCH, grace_us=0)

    def start_over(self) -> None:
        """Begin the round at the first scope."""
        self._hand = b""

    def _go(self, txn: lmdb.Transaction[bytes], now: int, *, looks: int, grace_us: int) -> bool:
        scopes, self._hand = _next_scopes(txn, self._hand, looks)
        for scope in scopes:
            record = self._records.stored(txn, scope)
            if record is None:
                self._records.remove(txn, scope)
            elif self._restored_at(txn, scope, record, now) + grace_us <= now:
                self._tallying.close(txn, scope, record, now)
                self._records.remove(txn, scope)
        return bool(self._hand)

    def _restored_at(self, txn: lmdb.Transaction[bytes], scope: bytes, record: Record, now: int) -> int:
        """From when on a scope cannot be told from an unused one, once the leases in it that ran out have ended."""
        layout: Layout = record[-1].layout
        after = list(record)
        for index, lease_key in layout.leases(scope):
            if record[index][0]:
                after[index] = self._leasing.reclaim(txn, lease_key, record[index], now)
        if after != list(record):
            self._records.write(txn, scope, after)
        return layout.restored_at(after)


def _next_scopes(txn: lmdb.Transaction[bytes], start: bytes, looks: int) -> tuple[list[bytes], bytes]:
    """Up to `looks` scopes from a key on, and the key to go on with (empty: from the beginning)."""
    scopes: list[bytes] = []
    with txn.cursor() as cursor:
        found = cursor.set_range(start) if start else cursor.first()
        if not found:
            return [], b""
        for step, key in enumerate(cursor.iternext(keys=True, values=False)):
            if len(scopes) == looks or step == looks * _STEPS_PER_LOOK:
                return scopes, key
            scope = scope_in(key)
            if scope is not None:
                scopes.append(scope)
    return scopes, b""

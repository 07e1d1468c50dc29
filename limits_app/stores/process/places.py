"""Where the record of a scope stands: those that are asked for often stand side by side.

Among a million of scopes each one stands on a page of its own otherwise, and pages that many are in no cache.
Keys, with `scope` in 16 bytes: `HOT scope` a hot record, `scope` a cold one, `hot` how many hot ones there are.
"""

from __future__ import annotations

from itertools import chain
from typing import Final

import lmdb

from limits_app.stores.process.scan import under

__all__ = ["HOT", "Places", "scope_in"]

_SCOPE_LENGTH: Final = 16
HOT: Final = bytes(4)
"""Scopes are digests: one in four billions begins like this, and is a few entries further on then."""
_HOT_LENGTH: Final = len(HOT) + _SCOPE_LENGTH
_NUMBER: Final = b"hot"
_MOST_HOT: Final = 8192
_ASKED_UNTIL_HOT: Final = 16
"""By one process for any cold ones, so nobody has to count for each; one that is asked for once seldom gets there."""


def scope_in(key: bytes) -> bytes | None:
    """The scope whose record has this key; None when it is the key of something else."""
    if len(key) == _HOT_LENGTH and key.startswith(HOT):
        return key[len(HOT) :]
    return key if len(key) == _SCOPE_LENGTH else None


class Places:
    """Finds records, and lets cold ones become hot; when there are too many hot ones, a neighbour makes room."""

    def __init__(self) -> None:
        self._asked = 0

    def find(self, txn: lmdb.Transaction[bytes], scope: bytes) -> tuple[bytes, bytes | None]:
        """The key of a record, and what is stored there."""
        key = HOT + scope
        stored = txn.get(key)
        return (scope, txn.get(scope)) if stored is None else (key, stored)

    def find_cold(self, txn: lmdb.Transaction[bytes], scope: bytes) -> tuple[bytes, bytes | None]:
        """`find` for a record that is about to be written and not hot; now and then it is afterwards."""
        stored = txn.get(scope)
        self._asked += 1
        if stored is None or self._asked < _ASKED_UNTIL_HOT:
            return scope, stored
        self._asked = 0
        key = HOT + scope
        txn.put(key, stored)
        txn.delete(scope)
        if not _made_room(txn, scope):
            _count(txn, 1)
        return key, stored

    def put(self, txn: lmdb.Transaction[bytes], scope: bytes, stored: bytes) -> None:
        """Write a record where it stands."""
        key = HOT + scope
        if txn.get(key) is None:
            key, _ = self.find_cold(txn, scope)
        txn.put(key, stored)

    def remove(self, txn: lmdb.Transaction[bytes], scope: bytes) -> None:
        """Take a record away."""
        if not txn.delete(scope) and txn.delete(HOT + scope):
            _count(txn, -1)


def _made_room(txn: lmdb.Transaction[bytes], scope: bytes) -> bool:
    """Whether the hot record next to this one had to be cold again, as there were as many as there may be."""
    if _number(txn) < _MOST_HOT:
        return False
    around = chain(under(txn, HOT, scope + b"\0"), under(txn, HOT))
    neighbour, stored = next(entry for entry in around if len(entry[0]) == _HOT_LENGTH)
    txn.delete(neighbour)
    txn.put(neighbour[len(HOT) :], stored)
    return True


def _number(txn: lmdb.Transaction[bytes]) -> int:
    return int.from_bytes(txn.get(_NUMBER) or b"")


def _count(txn: lmdb.Transaction[bytes], change: int) -> None:
    number = _number(txn) + change
    if number:
        txn.put(_NUMBER, number.to_bytes(4))
    else:
        txn.delete(_NUMBER)

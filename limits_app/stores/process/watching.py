"""Waking waiters of other processes: `watch: scope process` says who wants to hear about a scope."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import lmdb

from limits_app.core.keys import short_key
from limits_app.core.waiting import WaitingLine
from limits_app.stores.process.presence import ID_LENGTH, wake
from limits_app.stores.process.scan import under
from limits_app.stores.process.state_file import StateFile

__all__ = ["Watcher", "Watching", "is_watched", "watchers"]

_PREFIX: Final = b"watch:"
_COUNT: Final = b"watchers"

Watcher = tuple[bytes, bytes]
"""A scope, and the process that watches it."""


class Watching:
    """The waiting line of a process, which hears about what other processes give back, and tells them."""

    def __init__(self, file: StateFile) -> None:
        self._file = file
        self._watched: dict[bytes, str] = {}
        self.line = WaitingLine(self._watch, self._unwatch)

    def tell(self, scopes: Iterable[str], others: Sequence[Watcher]) -> None:
        """Something was given back in these scopes: wake who waits here, and the processes that watch them."""
        if self.line.busy:
            self.line.notify(scopes)
        if others:
            self._call(others)

    def _watch(self, scope: str) -> None:
        short, presence = short_key(scope), self._file.shown()
        self._watched[short] = scope
        presence.listen(self._hear)
        self._file.write(lambda txn: _add(txn, short + presence.identity))

    def _unwatch(self, scope: str) -> None:
        short = short_key(scope)
        self._watched.pop(short, None)
        self._remove([(short, self._file.identity())])

    def _hear(self, scope: bytes) -> None:
        watched = self._watched.get(scope)
        if watched is not None:
            self.line.notify([watched])

    def _call(self, others: Sequence[Watcher]) -> None:
        own = None if self._file.presence is None else self._file.presence.identity
        directory = self._file.directory
        gone = [(scope, process) for scope, process in others if process != own and not wake(directory, process, scope)]
        if gone:
            self._remove(gone)

    def _remove(self, gone: list[Watcher]) -> None:
        self._file.write(lambda txn: _delete(txn, gone))


def is_watched(txn: lmdb.Transaction[bytes]) -> bool:
    """Whether any process wants to hear about anything."""
    return txn.get(_COUNT) is not None


def watchers(txn: lmdb.Transaction[bytes], scopes: Iterable[bytes] = (b"",)) -> list[Watcher]:
    """Who watches these scopes (by default: any)."""
    if not is_watched(txn):
        return []
    keys = [key for scope in scopes for key, _ in under(txn, _PREFIX + scope)]
    return [(key[len(_PREFIX) : -ID_LENGTH], key[-ID_LENGTH:]) for key in keys]


def _add(txn: lmdb.Transaction[bytes], watcher: bytes) -> None:
    if txn.put(_PREFIX + watcher, b"", overwrite=False):
        _count(txn, 1)


def _delete(txn: lmdb.Transaction[bytes], gone: Iterable[Watcher]) -> None:
    for scope, process in gone:
        if txn.delete(_PREFIX + scope + process):
            _count(txn, -1)


def _count(txn: lmdb.Transaction[bytes], change: int) -> None:
    """How many watch at all, so that whoever settles need not look when nobody does."""
    number = int.from_bytes(txn.get(_COUNT) or b"") + change
    if number:
        txn.put(_COUNT, number.to_bytes(8))
    else:
        txn.delete(_COUNT)

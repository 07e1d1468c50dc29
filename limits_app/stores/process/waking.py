"""Waking waiters of other processes: `watch: scope process` says that a process waits in a scope."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from limits_app.acquiring import WaitingLine
from limits_app.engine import short_key
from limits_app.engine.errors import StoreUnavailable
from limits_app.stores.process.presence import ID_LENGTH, wake
from limits_app.stores.process.records import entries
from limits_app.stores.process.state_file import StateFile, Txn

_PREFIX: Final = b"watch:"
_COUNT: Final = b"watchers"

Watcher = tuple[bytes, bytes]
"""A scope, and a process that waits in it."""


class ProcessWaking:
    """The waiting line of this process, which other processes wake, and the messages to theirs."""

    def __init__(self, file: StateFile) -> None:
        self._file = file
        self._watched: dict[bytes, str] = {}
        self.line = WaitingLine(self._watch, self._unwatch)

    def notify(self, scopes: Iterable[str], others: Sequence[Watcher]) -> None:
        """Wake the waiters of these scopes: something was released, or has changed."""
        if self.line.busy:
            self.line.notify(scopes)
        if others:
            self._send(others)

    def _watch(self, scope: str) -> None:
        short = short_key(scope)
        self._watched[short] = scope
        if self._file.listen(self._receive):
            self._file.transact(add_watcher, (short, self._file.identity()))

    def _unwatch(self, scope: str) -> None:
        short = short_key(scope)
        self._watched.pop(short, None)
        self._file.transact(delete_watchers, [(short, self._file.identity())])

    def _receive(self, short: bytes) -> None:
        """Wake the waiters of a scope; called by the thread that reads the pipe."""
        scope = self._watched.get(short)
        if scope is not None:
            self.line.notify([scope])
        elif self._file.environment is not None:
            with suppress(StoreUnavailable):  # a waiter was interrupted before it could end the watch
                self._file.transact(self._forget, short)

    def _forget(self, txn: Txn, short: bytes) -> None:
        if short not in self._watched:
            delete_watchers(txn, [(short, self._file.identity())])

    def _send(self, others: Sequence[Watcher]) -> None:
        own, directory = self._file.presence, self._file.directory
        foreign = [watcher for watcher in others if own is None or watcher[1] != own.identity]
        gone = [(scope, process) for scope, process in foreign if not wake(directory, process, scope)]
        if gone:
            self._file.transact(delete_watchers, gone)


def any_watchers(txn: Txn) -> bool:
    """Whether any process waits at all."""
    return txn.get(_COUNT) is not None


def watchers(txn: Txn, scopes: Iterable[bytes] = (b"",)) -> list[Watcher]:
    """The processes that wait in these scopes (by default: in any)."""
    keys = [key for scope in scopes for key, _ in entries(txn, _PREFIX + scope)]
    return [(key[len(_PREFIX) : -ID_LENGTH], key[-ID_LENGTH:]) for key in keys]


def add_watcher(txn: Txn, watcher: Watcher) -> None:
    """Note that a process waits in a scope."""
    if txn.put(_PREFIX + b"".join(watcher), b"", overwrite=False):
        _count(txn, 1)


def delete_watchers(txn: Txn, gone: Iterable[Watcher]) -> None:
    """Forget that processes wait in scopes."""
    for scope, process in gone:
        if txn.delete(_PREFIX + scope + process):
            _count(txn, -1)


def _count(txn: Txn, change: int) -> None:
    """How many processes wait at all, so that a release need not look for them where there are none."""
    number = int.from_bytes(txn.get(_COUNT) or b"") + change
    if number:
        txn.put(_COUNT, number.to_bytes(8))
    else:
        txn.delete(_COUNT)

"""Waking waiters of other processes: `watch: scope process` says who wants to hear about a scope."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import lmdb

from limits_app.stores.process.presence import ID_LENGTH, wake
from limits_app.stores.process.records import under

__all__ = ["call", "unwatch", "watch", "watchers"]

_PREFIX: Final = b"watch:"
_COUNT: Final = b"watchers"

Watcher = tuple[bytes, bytes]
"""A scope, and the process that watches it."""


def watch(txn: lmdb.Transaction[bytes], scope: bytes, process: bytes) -> None:
    """Have a process woken when something is given back in a scope."""
    if txn.put(_PREFIX + scope + process, b"", overwrite=False):
        _count(txn, 1)


def unwatch(txn: lmdb.Transaction[bytes], scope: bytes, process: bytes) -> None:
    """Leave a process alone again."""
    if txn.delete(_PREFIX + scope + process):
        _count(txn, -1)


def watchers(txn: lmdb.Transaction[bytes], scopes: Iterable[bytes] | None = None) -> list[Watcher]:
    """Who watches these scopes (None: any)."""
    if txn.get(_COUNT) is None:
        return []
    prefixes = [_PREFIX] if scopes is None else [_PREFIX + scope for scope in scopes]
    keys = [key for prefix in prefixes for key, _ in under(txn, prefix)]
    return [(key[len(_PREFIX) : -ID_LENGTH], key[-ID_LENGTH:]) for key in keys]


def call(directory: Path, watching: Iterable[Watcher], own: bytes | None) -> list[Watcher]:
    """Wake the processes, except the calling one; returns those that are gone."""
    return [(scope, process) for scope, process in watching if process != own and not wake(directory, process, scope)]


def _count(txn: lmdb.Transaction[bytes], change: int) -> None:
    number = int.from_bytes(txn.get(_COUNT) or b"") + change
    if number:
        txn.put(_COUNT, number.to_bytes(8))
    else:
        txn.delete(_COUNT)

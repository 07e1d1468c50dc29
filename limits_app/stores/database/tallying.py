"""Collecting counts: out of the rows that count, a few at a time, into a table, and out of that into a batch.

Nobody who asks has to wait for a batch, since it is made of what no row holds any more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from limits_app.core.counting import Batch, Count
from limits_app.core.keys import unique_name
from limits_app.stores.database import statements
from limits_app.stores.database.counted import collected
from limits_app.stores.database.statements import COMMIT

if TYPE_CHECKING:
    from limits_app.stores.database.ledger import Ledger
    from limits_app.stores.database.links import Link

__all__ = ["Tallying"]

T = TypeVar("T")

_MOST: Final = 1000
_TOGETHER: Final = 64
"""How many rows are locked at a time."""


class Step(Protocol):
    """Takes a step of a store."""

    def __call__(self, work: Callable[[Link], T], /) -> T | None:
        """The result of `work`."""


class Tallying:
    """Collects what was counted, step by step; whatever ends it on the way, nothing is lost and nothing comes twice."""

    def __init__(self, ledger: Ledger, step: Step) -> None:
        self._ledger = ledger
        self._step = step

    def collect(self) -> Batch | None:
        """See `CountingStore.collect_counts`."""
        waiting = self._step(_waiting)
        if waiting is not None:
            return waiting
        labels = self._step(_counting) or {}
        scopes, left = iter(sorted(labels)), set[bytes]()
        while together := list(islice(scopes, _TOGETHER)):
            left |= self._close(labels, together, skips_locked=True)
        for scope in left:
            # Somebody had it locked: it is waited for without keeping others from theirs.
            self._close(labels, [scope])
        return self._step(partial(_batch, is_full=len(labels) == _MOST))

    def forget(self, name: str) -> None:
        """See `CountingStore.forget_counts`."""
        self._step(lambda link: link.run(statements.FORGET, (name,)))

    def _close(self, labels: dict[bytes, bytes], scopes: Sequence[bytes], *, skips_locked: bool = False) -> set[bytes]:
        """Take out of some rows what they have counted; the scopes of those that could not be had."""

        def close(link: Link) -> set[bytes]:
            page = self._ledger.open_rows(link, scopes, skips_locked=skips_locked)
            after = [collected(record, labels[record.scope]) for record in page.records]
            self._ledger.write(link, page, after, lambda _records, _now: None)
            return set(scopes).difference([record.scope for record in after])

        return self._step(close) or set()


def _counting(link: Link) -> dict[bytes, bytes]:
    """The rows that count, with their labels; those first whose hour is over first."""
    return {bytes(scope): bytes(label) for scope, label in link.run(statements.COUNTING, (_MOST,))}


def _waiting(link: Link) -> Batch | None:
    """The batch that nobody has forgotten."""
    for name, stored in link.run(statements.WAITING):
        return _unpacked(name, bytes(stored))
    return None


def _batch(link: Link, *, is_full: bool) -> Batch | None:
    """A new batch of what is in the table; or the one that another has made meanwhile."""
    name = unique_name()
    link.run(link.begins)
    # There is room for one only, so that those who collect wait for each other here.
    link.run(statements.hold(*link.adds), (name, b""))
    if link.cursor.rowcount == 0:
        link.rollback()
        return _waiting(link)
    rows = link.run(statements.TALLIED, (_MOST,))
    if not rows:
        link.rollback()
        return None
    stored = _packed(rows, is_full=is_full or len(rows) == _MOST)
    ids = [row[0] for row in rows]
    link.batch([(statements.remove_counts(len(ids)), ids), (statements.FILL, (stored, name)), COMMIT])
    return _unpacked(name, stored)


def _packed(rows: Iterable[Sequence[bytes]], *, is_full: bool) -> bytes:
    counts = [[*json.loads(bytes(label)), hour, json.loads(bytes(amounts))] for _, hour, label, amounts in rows]
    return json.dumps([is_full, counts]).encode()


def _unpacked(name: str, stored: bytes) -> Batch:
    is_full, counts = json.loads(stored)
    return Batch(name, [Count(*count) for count in counts], is_full)

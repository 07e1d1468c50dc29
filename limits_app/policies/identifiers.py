"""Which identifiers have rows, in about two bytes each: most clients have none, and nothing is read for them."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from threading import Lock
from typing import Any, Final

from limits_app.core.runtime import on_fork
from limits_app.models.changes import identifier_digest
from limits_app.models.users import is_user, user_identifier, user_key
from limits_app.policies.patterns import PatternIndex, client_network

Page = Sequence[tuple[Any, str]]
"""Primary keys in ascending order, each with the identifier of its row."""

Read = Callable[[Any, int], Page]
"""Returns the rows whose primary keys are above a key (None: from the first one), at most as many as the number says;
after the last one, none."""

READ_AGAIN: Final = 1000
"""How many primary keys below the highest one are read again: a transaction may commit rows after later ones."""

_BUCKETS: Final = 1 << 16
_MOST_ADDED: Final = 8192
"""How many hashes are kept in a set, where each takes about 60 bytes, before they are merged into the table."""
_MULTIPLIER: Final = int.from_bytes(os.urandom(8)) | 1
"""Of this process: no client can choose identifiers whose hashes are those of others."""


def identifiers_read(identifier: str) -> tuple[str, ...]:
    """The identifiers by whose rows a client is found: its own, and another one that means the same client."""
    other = None
    if identifier.startswith("ip:"):
        other = client_network(identifier)
    elif is_user(identifier):
        text = identifier.removeprefix("user:")
        if not (text.isascii() and text.isdecimal()) or text.startswith("0"):
            key = user_key(identifier)
            other = None if key is None else user_identifier(key)
    return (identifier,) if other in {None, identifier} else (identifier, str(other))


def _hash(digest: bytes) -> int:
    """32 bits: a bucket and a fingerprint."""
    return int.from_bytes(digest) * _MULTIPLIER >> 32 & 0xFFFFFFFF


class Fingerprints:
    """An immutable set of hashes: fingerprints of 16 bits in 65,536 buckets.

    It takes two bytes for each hash and 262 KB; a hash that is not in it is found in one of 65,536 cases for each that
    its bucket has.
    """

    __slots__ = ("_starts", "_table")

    def __init__(self, starts: array[int], table: array[int]) -> None:
        self._starts = starts
        self._table = table

    def __contains__(self, hashed: int) -> bool:
        bucket = hashed >> 16
        return hashed & 0xFFFF in self._table[self._starts[bucket] : self._starts[bucket + 1]]

    def __len__(self) -> int:
        return len(self._table)

    @property
    def size(self) -> int:
        """The memory that it takes, in bytes."""
        return len(self._table) * self._table.itemsize + len(self._starts) * self._starts.itemsize

    def with_added(self, hashes: Collection[int]) -> Fingerprints:
        """The same set with more hashes; one that is in it already is added again."""
        old_starts, old = self._starts, self._table
        counts = array("I", bytes(4 * _BUCKETS))
        for hashed in hashes:
            counts[hashed >> 16] += 1
        starts, ends = array("I", bytes(4)), array("I")
        table = array("H", bytes(2 * (len(old) + len(hashes))))
        begin = 0
        for bucket, count in enumerate(counts):
            first, last = old_starts[bucket], old_starts[bucket + 1]
            end = begin + last - first
            table[begin:end] = old[first:last]
            ends.append(end)
            begin = end + count
            starts.append(begin)
        for hashed in hashes:
            bucket = hashed >> 16
            table[ends[bucket]] = hashed & 0xFFFF
            ends[bucket] += 1
        return Fingerprints(starts, table)


_EMPTY: Final = Fingerprints(array("I", bytes(4 * (_BUCKETS + 1))), array("H"))


class _Reading:
    """How far a table was read; `is_complete` once its end was reached. `number` is that of the attempt."""

    def __init__(self, read: Read) -> None:
        self.read = read
        self.number = 0
        self.restart()

    def restart(self) -> None:
        """Begin again."""
        self.number += 1
        self.highest: Any = None
        self.is_complete = False


class KnownIdentifiers:
    """The identifiers that have rows, and the patterns among them.

    `entities` reads the table of entities, `members` that of users in groups with plans. Both are read page by page by
    `read_page`, in a background thread. An identifier that was read or added is always recognized; another one is
    taken for one of them in about 0.02 % of cases. A deleted row stays until everything is read again.

    Methods may be called by several threads; `may_have_rows` takes no lock.
    """

    def __init__(self, entities: Read, members: Read, *, page_size: int = 1000) -> None:
        self._entities = _Reading(entities)
        self._members = _Reading(members)
        self._page_size = page_size
        self.after_fork()
        self._forget()
        on_fork(self)

    def after_fork(self) -> None:
        """Make a new lock in a child process, which keeps what was read."""
        self._lock = Lock()

    def _forget(self) -> None:
        self._table = _EMPTY
        self._added: set[int] = set()
        self._unmerged = array("I")
        """Hashes that were read of a table that is not complete; no lookup needs them yet."""
        self.patterns = PatternIndex()

    def restart(self) -> None:
        """Forget everything, and begin to read again."""
        with self._lock:
            self._entities.restart()
            self._members.restart()
            self._forget()

    def restart_members(self) -> None:
        """Read the users in groups with plans again; until then, each user may be one of them."""
        with self._lock:
            self._members.restart()

    @property
    def is_complete(self) -> bool:
        """Whether everything was read."""
        return self._entities.is_complete and self._members.is_complete

    def __len__(self) -> int:
        return len(self._table) + len(self._added) + len(self._unmerged)

    @property
    def size(self) -> int:
        """The memory that the table takes, in bytes."""
        return self._table.size

    def may_have_rows(self, identifier: str) -> bool:
        """Whether a client may have rows; True for all until they were read."""
        if not self._entities.is_complete or (is_user(identifier) and not self._members.is_complete):
            return True
        for name in identifiers_read(identifier):
            hashed = _hash(identifier_digest(name))
            # In this order, because hashes are in the table before they leave the set.
            if hashed in self._added or hashed in self._table:
                return True
        return False

    def add(self, digests: Iterable[bytes]) -> None:
        """Add the digests of identifiers that may have rows from now on."""
        with self._lock:
            self._add(map(_hash, digests))

    def add_patterns(self, identifiers: Iterable[str]) -> None:
        """Add the patterns among some identifiers."""
        with self._lock:
            self.patterns = self.patterns.with_added(identifiers)

    def read_latest(self) -> None:
        """Read the entities with the highest primary keys again, and those above; nothing until all were read."""
        self._read_latest(self._entities)

    def read_latest_members(self) -> None:
        """The same for users in groups with plans."""
        self._read_latest(self._members)

    def _read_latest(self, reading: _Reading) -> None:
        highest = reading.highest
        # Where keys are no numbers, later rows need not have higher ones.
        if not reading.is_complete or not isinstance(highest, int | None):
            return
        key = None if highest is None else highest - READ_AGAIN
        is_last = False
        while not is_last:
            page = reading.read(key, self._page_size)
            hashes = self._noted(page)
            with self._lock:
                self._add(hashes)
                if page:
                    key = page[-1][0]
                    reading.highest = key if reading.highest is None else max(key, reading.highest)
            is_last = len(page) < self._page_size

    def read_page(self) -> bool:
        """Read the next page; returns whether there may be more."""
        reading = self._members if self._entities.is_complete else self._entities
        if not reading.is_complete:
            number = reading.number
            page = reading.read(reading.highest, self._page_size)
            hashes = self._noted(page)
            with self._lock:
                if reading.number == number:
                    self._unmerged.extend(hashes)
                    reading.highest = page[-1][0] if page else reading.highest
                    is_last = len(page) < self._page_size
                    if is_last or len(self._unmerged) >= _BUCKETS:
                        self._table = self._table.with_added(self._unmerged)
                        self._unmerged = array("I")
                    reading.is_complete = is_last
        return not self.is_complete

    def _noted(self, page: Page) -> list[int]:
        """The hashes of the identifiers of a page, whose patterns are added."""
        identifiers = [identifier for _, identifier in page]
        self.add_patterns(identifiers)
        return [_hash(identifier_digest(identifier)) for identifier in identifiers]

    def _add(self, hashes: Iterable[int]) -> None:
        self._added.update([hashed for hashed in hashes if hashed not in self._table])
        if len(self._added) > _MOST_ADDED:
            self._table = self._table.with_added(self._added)
            self._added = set()

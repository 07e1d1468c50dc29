"""Which identifiers have rows, in about two bytes each: most clients have none, and nothing is read for them."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from mmap import mmap
from typing import Any, Final, Literal

from limits_app.acquiring import on_fork
from limits_app.engine.locks import RLock
from limits_app.models.changes import identifier_digest
from limits_app.models.users import identifiers_of_client, is_user
from limits_app.policies.patterns import PatternIndex

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


def _hash(digest: bytes) -> int:
    """32 bits: a bucket and a fingerprint."""
    return int.from_bytes(digest) * _MULTIPLIER >> 32 & 0xFFFFFFFF


class Fingerprints:
    """An immutable set of hashes: fingerprints of 16 bits in 65,536 buckets.

    It takes two bytes for each hash and 262 KB; a hash that is not in it is found in one of 65,536 cases for each that
    its bucket has.
    """

    __slots__ = ("_starts", "_table")

    def __init__(self, starts: Sequence[int], table: Sequence[int]) -> None:
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
        return 2 * len(self._table) + 4 * len(self._starts)

    def with_added(self, hashes: Collection[int]) -> Fingerprints:
        """The same set with more hashes; one that is in it already is added again."""
        if not hashes:
            return self
        old_starts = self._starts
        old: Any = self._table  # an array or a view, whose slices are memory
        left = _numbers("I", _BUCKETS)
        for hashed in hashes:
            left[hashed >> 16] += 1
        starts, table = _numbers("I", _BUCKETS + 1), _numbers("H", len(old) + len(hashes))
        begin = 0
        for bucket, count in enumerate(left):
            first, last = old_starts[bucket], old_starts[bucket + 1]
            end = begin + last - first
            table[begin:end] = old[first:last]
            begin = end + count
            starts[bucket + 1] = begin
        for hashed in hashes:
            bucket = hashed >> 16
            table[starts[bucket + 1] - left[bucket]] = hashed & 0xFFFF
            left[bucket] -= 1
        return Fingerprints(starts, table)


def _numbers(code: Literal["H", "I"], number: int) -> memoryview[int]:
    """So many zeros, in pages that return to the system with them.

    Each table is larger than those before it, so that allocated memory would keep a hole for each of them.
    """
    return memoryview(mmap(-1, number * array(code).itemsize)).cast(code)


_EMPTY: Final = Fingerprints(array("I", bytes(4 * (_BUCKETS + 1))), array("H"))


@dataclass(frozen=True, slots=True)
class Known:
    """The known identifiers, in one object, so that each look-up sees one state of it.

    `added` are hashes that are not in the table yet; more are added to this set.
    """

    has_entities: bool = False
    """Whether all entities were read."""
    has_members: bool = False
    """Whether all members of groups were read."""
    table: Fingerprints = _EMPTY
    added: set[int] = field(default_factory=set)
    patterns: PatternIndex = field(default_factory=PatternIndex)

    @property
    def is_complete(self) -> bool:
        """Whether everything was read."""
        return self.has_entities and self.has_members

    def may_have_rows(self, identifier: str) -> bool:
        """Whether a client may have rows; True for all until they were read."""
        if not self.has_entities or (not self.has_members and is_user(identifier)):
            return True
        if not self.added and self.table is _EMPTY:
            return False
        for name in identifiers_of_client(identifier):
            hashed = _hash(identifier_digest(name))
            if hashed in self.added or hashed in self.table:
                return True
        return False


class _Reading:
    """How far a table was read. `number` is that of the attempt."""

    def __init__(self, read: Read) -> None:
        self.read = read
        self.number = 0
        self.restart()

    def restart(self) -> None:
        """Begin again."""
        self.number += 1
        self.highest: Any = None
        """The highest key that was read."""
        self.position: Any = None
        """The key above which the next page is read."""
        self.expected: Any = None
        """A key that is read again: if neither it nor a higher one is there, later rows may have lower keys."""
        self.is_outdated = False
        """Whether there may be later rows than those that were read."""

    def note(self, page: Page) -> None:
        """Note how far a page goes."""
        if page:
            self.position = page[-1][0]
            self.highest = self.position if self.highest is None else max(self.highest, self.position)

    def go_back(self) -> None:
        """Read the latest rows again, and those above; all where keys are no numbers: then later ones may be lower."""
        self.number += 1
        self.is_outdated = False
        is_number = isinstance(self.highest, int)
        self.position = self.highest - READ_AGAIN if is_number else None
        self.expected = self.highest if is_number else None

    @property
    def lacks_expected(self) -> bool:
        """Whether, after the last page, the key that was expected was not there, nor a higher one."""
        return self.expected is not None and self.position < self.expected


class KnownIdentifiers:
    """The identifiers that have rows, and the patterns among them.

    `entities` reads the table of entities, `members` that of users in groups with plans. Both are read page by page by
    `read_page`, in a background thread. An identifier that was read or added is always recognized; another one is
    taken for one of them in about 0.02 % of cases. A deleted row stays until everything is read again.

    Methods may be called by several threads; looking up takes no lock.
    """

    def __init__(self, entities: Read, members: Read, *, page_size: int = 1000) -> None:
        self._entities = _Reading(entities)
        self._members = _Reading(members)
        self._page_size = page_size
        self.known = Known()
        """Another object after each change, except for identifiers that are added."""
        self._unmerged = array("I")
        """Hashes that were read of a table that is not complete; no lookup needs them yet."""
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Make a new lock in a child process, which keeps the identifiers that were read."""
        self._lock = RLock()  # reentrant, because a finalizer may resolve limits while this thread holds the lock

    def restart(self) -> None:
        """Forget everything, and begin to read again."""
        with self._lock:
            self.known = Known()
            self._unmerged = array("I")
            self._entities.restart()
            self._members.restart()

    @property
    def is_complete(self) -> bool:
        """Whether everything was read."""
        return self.known.is_complete

    @property
    def patterns(self) -> PatternIndex:
        """The patterns among the identifiers."""
        return self.known.patterns

    def __len__(self) -> int:
        state = self.known
        return len(state.table) + len(state.added) + len(self._unmerged)

    @property
    def size(self) -> int:
        """The memory that the table takes, in bytes."""
        return self.known.table.size

    def may_have_rows(self, identifier: str) -> bool:
        """See `Known.may_have_rows`."""
        return self.known.may_have_rows(identifier)

    def add(self, digests: Iterable[bytes]) -> None:
        """Add the digests of identifiers that may have rows from now on."""
        with self._lock:
            self._add(map(_hash, digests))

    def read_latest(self) -> None:
        """Read the entities with the highest primary keys again, and those above; later where not all were read.

        Everything is read again if the highest one that was read is gone, and none is above it.
        """
        if not self._read_latest(self._entities):
            self.restart()

    def read_latest_later(self) -> None:
        """Do so in `read_page`; until then, every client may have rows."""
        with self._lock:
            self._entities.is_outdated = True
            if self.known.has_entities:
                self._entities.go_back()
                self.known = replace(self.known, has_entities=False)

    def refresh(self) -> None:
        """Read the latest rows of all tables, as far as these were read; rows that are gone are no matter."""
        for reading in (self._entities, self._members):
            self._read_latest(reading)

    def _read_latest(self, reading: _Reading) -> bool:
        """Returns whether rows that were created since the last reading are among those that were read."""
        with self._lock:
            number, highest = reading.number, reading.highest
            if not self._is_read(reading):
                reading.is_outdated = True
                return True
        # Where keys are no numbers, later rows need not have higher ones.
        if not isinstance(highest, int | None):
            return False
        key = None if highest is None else highest - READ_AGAIN
        is_last = False
        while not is_last:
            page = reading.read(key, self._page_size)
            hashes = _hashes(page)
            with self._lock:
                if reading.number != number:
                    return True  # they are read by the next attempt
                self._add_patterns(page)
                self._add(hashes)
                if page:
                    key = page[-1][0]
                    reading.highest = key if reading.highest is None else max(key, reading.highest)
            is_last = len(page) < self._page_size
        return highest is None or (key is not None and key >= highest)

    def read_page(self) -> bool:
        """Read the next page; returns whether there may be more."""
        if self.is_complete:
            return False
        reading = self._members if self.known.has_entities else self._entities
        number = reading.number
        page = reading.read(reading.position, self._page_size)
        hashes = _hashes(page)
        with self._lock:
            if reading.number == number:
                table = self.known.table
                self._unmerged.extend([hashed for hashed in hashes if hashed not in table])
                self._add_patterns(page)
                reading.note(page)
                is_last = len(page) < self._page_size
                if is_last or len(self._unmerged) >= _BUCKETS:
                    self.known = replace(self.known, table=table.with_added(self._unmerged))
                    self._unmerged = array("I")
                if is_last:
                    self._end(reading)
        return not self.is_complete

    def _end(self, reading: _Reading) -> None:
        """The end of a table was reached."""
        if reading.lacks_expected:
            self.restart()
        elif reading.is_outdated:
            reading.go_back()
        elif reading is self._entities:
            self.known = replace(self.known, has_entities=True)
        else:
            self.known = replace(self.known, has_members=True)

    def _is_read(self, reading: _Reading) -> bool:
        return self.known.has_entities if reading is self._entities else self.known.has_members

    def _add_patterns(self, page: Page) -> None:
        patterns = self.known.patterns.with_added([identifier for _, identifier in page])
        if patterns is not self.known.patterns:
            self.known = replace(self.known, patterns=patterns)

    def _add(self, hashes: Iterable[int]) -> None:
        state = self.known
        state.added.update([hashed for hashed in hashes if hashed not in state.table])
        if len(state.added) > _MOST_ADDED:
            self.known = replace(state, table=state.table.with_added(state.added), added=set())


def _hashes(page: Page) -> list[int]:
    return [_hash(identifier_digest(identifier)) for _, identifier in page]

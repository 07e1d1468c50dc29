"""Changes of the configuration, and the log in which a store keeps the last ones beside its version.

The log is bytes: an entry of 16 bytes for each change, with the version that the change has made. The changes after a
version are those behind its last entry, so the log begins with an entry whose version alone counts.
A version that is missing in the log, and a log that does not end with the version of the store, mean that changes are
unknown: older ones were dropped, the state was deleted or restored, or another program has raised the version.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from struct import Struct
from time import time_ns
from typing import Final, NamedTuple

MOST_CHANGES: Final = 1000
"""How many changes a log keeps."""
MOST_CLIENTS: Final = 64
"""More clients that change together are announced as ROWS, where all that are new are in the latest rows."""
DIGEST_LENGTH: Final = 8
ENTRY: Final = Struct(f"<d{DIGEST_LENGTH}s")
"""An entry of a log: a version, and a change. A double has every integer below 2^53, also in Lua."""

_RESERVED: Final = bytes(DIGEST_LENGTH - 1)
"""What changes without a digest begin with. A digest that does as well is read as one of them, which includes it."""


class ChangeKind(Enum):
    """What a change concerns: one client, rows of many clients, what belongs to no single client, or anything.

    ACCESS comes with changes of clients, of which one is blocked or exempt now, or was before. COOLING is about the
    cool-downs of the members of pools, which are no configuration.
    """

    CLIENT = "client"
    ACCESS = "access"
    ROWS = "rows"
    GENERAL = "general"
    ALL = "all"
    EVERYTHING = "everything"
    COOLING = "cooling"


class Change(NamedTuple):
    """A change of the configuration; that of one client has its digest, of 8 bytes."""

    kind: ChangeKind
    digest: bytes = b""

    @classmethod
    def of_client(cls, digest: bytes) -> Change:
        """Return the change of one client. Raises ValueError for a digest that is not 8 bytes long."""
        if len(digest) != DIGEST_LENGTH:
            raise ValueError(f"the digest of a client must have {DIGEST_LENGTH} bytes; got {len(digest)}: {digest!r}")
        return cls(ChangeKind.CLIENT, digest)

    def encode(self) -> bytes:
        """Return the 8 bytes by which logs keep the change."""
        return self.digest or _CODES[self.kind]

    @classmethod
    def decode(cls, encoded: bytes) -> Change:
        """Return a change from its 8 bytes; one of a kind that is unknown here is ALL."""
        if not encoded.startswith(_RESERVED):
            return cls(ChangeKind.CLIENT, encoded)
        return next((cls(kind) for kind, code in _CODES.items() if code == encoded), ALL)


EVERYTHING: Final = Change(ChangeKind.EVERYTHING)
"""Anything may have changed, and rows that are not the latest may have new identifiers."""
ACCESS: Final = Change(ChangeKind.ACCESS)
"""Who is blocked or exempt has changed, among the clients that are announced together with it."""
ALL: Final = Change(ChangeKind.ALL)
"""Anything may have changed; new identifiers are those of the latest rows."""
GENERAL: Final = Change(ChangeKind.GENERAL)
"""What belongs to no single client has changed, such as a plan; there are no new identifiers."""
ROWS: Final = Change(ChangeKind.ROWS)
"""Rows of many clients have changed, and no more than that; new identifiers are those of the latest rows."""

COOLING: Final = Change(ChangeKind.COOLING)
"""Cool-downs of members have changed; the limits are the same."""

_ALL: Final = _RESERVED + b"\0"
_CODES: Final = {
    ChangeKind.ALL: _ALL,
    ChangeKind.ROWS: _RESERVED + b"\1",
    ChangeKind.EVERYTHING: _RESERVED + b"\2",
    ChangeKind.ACCESS: _RESERVED + b"\3",
    ChangeKind.GENERAL: _RESERVED + b"\4",
    ChangeKind.COOLING: _RESERVED + b"\5",
}

Changes = tuple[Change, ...]


def announced(changes: Collection[Change]) -> Changes:
    """Return changes as they are announced together, each once.

    ALL takes the place of ROWS, GENERAL, ACCESS and COOLING, but not of clients: these may have rows now that are not
    the latest. GENERAL takes the place of ACCESS and COOLING, and is ALL together with ROWS.
    EVERYTHING takes the place of all others, also of more than MOST_CLIENTS clients.

    Raises ValueError when there are none.
    """
    distinct = tuple(dict.fromkeys(changes))
    if not distinct:
        raise ValueError("an announcement must have at least one change; got none: pass ALL where it is unknown")
    clients = tuple([change for change in distinct if change.kind is ChangeKind.CLIENT])
    if EVERYTHING in distinct or len(clients) > MOST_CLIENTS:
        return (EVERYTHING,)
    if ALL in distinct or (GENERAL in distinct and ROWS in distinct):
        return (*clients, ALL)
    return (*clients, GENERAL) if GENERAL in distinct else distinct


class ChangeLog(NamedTuple):
    """The version of a configuration, and the log of the changes that have led to it; both as they are stored."""

    version: int = 0
    log: bytes = b""

    def advanced(self, changes: Collection[Change], *, least: int | None = None) -> ChangeLog:
        """Return the next version, with the changes that make it in the log; it is at least `least_version`."""
        version = max(self.version + 1, least_version() if least is None else least)
        log = self.log
        if not self._is_complete():
            # Of a store without a version it is unknown whether there were changes before it lost its state.
            log = ENTRY.pack(self.version, _ALL) if self.version else b""
        log += b"".join([ENTRY.pack(version, change.encode()) for change in announced(changes)])
        return ChangeLog(version, log[-_MOST_BYTES:])

    def since(self, version: int) -> tuple[int, Changes] | None:
        """Return the version now and the changes after another one; None when they are unknown."""
        if version == self.version:
            return version, ()
        if not self._is_complete():
            return None
        changes: list[Change] = []
        for at in range(len(self.log) - ENTRY.size, max(len(self.log) - _MOST_BYTES, 0) - 1, -ENTRY.size):
            entry_version, encoded = ENTRY.unpack_from(self.log, at)
            if entry_version == version:
                return self.version, tuple(dict.fromkeys(reversed(changes)))
            changes.append(Change.decode(encoded))
        return None

    def _is_complete(self) -> bool:
        """Return whether the log ends with the version."""
        return len(self.log) >= ENTRY.size and ENTRY.unpack(self.log[-ENTRY.size :])[0] == self.version


_MOST_BYTES: Final = (1 + MOST_CHANGES) * ENTRY.size
"""The first entry says where the log begins."""


def least_version() -> int:
    """Return the smallest value of the next version: microseconds since 1970.

    No store is changed more often, so that one that starts empty, or whose older state was restored, never repeats a
    version under which another process has kept limits.
    """
    return time_ns() // 1_000

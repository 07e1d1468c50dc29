"""Records as rows: the column `states` has the name of the schema, all integers and the leases; `logs` has the logs.

The logs of sliding windows are large, so they are unpacked and written only when they are needed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from operator import is_not
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from limits_app.engine import HOLDER_LENGTH, Lease, LeaseId, Log, Record, Schema, digest_in, label_of
from limits_app.stores.codecs import Codec, Codecs, pack_kept, unpack_kept
from limits_app.stores.database.connections import marks, namespace_id

if TYPE_CHECKING:
    from limits_app.engine import Scope
    from limits_app.stores.database.connections import StoreConnection

ROW: Final = ("limits_app_state", "scope, states, logs, kept, counting, label, namespace")
_MARK: Final = ("counting", "label", "namespace")
COUNT: Final = ("limits_app_count", "hour, label, namespace, amounts")
"""Tables with their columns."""
COUNT_COLUMNS: Final = 4
COLUMNS: Final = 4
"""Of `rows_sql`, before those that are read beside a record."""
NEXT_ROWS: Final = "SELECT scope, states, logs, kept FROM limits_app_state WHERE scope > %s ORDER BY scope LIMIT %s"

_DEFINITIONS: Final = "SELECT definitions FROM limits_app_layout WHERE name = %s"
_WIDTH: Final = 8
_LOG_LENGTH: Final = Struct("<I")
_LEASES_HEAD: Final = Struct("=BI")
"""The length of a limit's key, and how many leases it has."""
_LEASE: Final = Struct(f"={HOLDER_LENGTH}s3q")


class StoredRecord:
    """The record of one scope in a transaction, and what its row has; `codec` is None where that is new or unreadable.

    `scope` or `label` is needed where usage is counted: a label with the number of the namespace, as in the row.
    """

    __slots__ = ("_codec", "_logs", "_until", "is_new", "key", "label", "record", "scope")

    def __init__(self, key: bytes, record: Record, codec: Codec | None, *, is_new: bool = False) -> None:
        self.key = key
        self.record = record
        self.is_new = is_new
        self.scope: Scope | None = None
        self.label: tuple[bytes, int] | None = None
        self._codec = codec
        self._logs = [] if codec is None else codec.logs_of(record)
        self._until = record.counted_until

    def changes(self, codec: Codec) -> dict[str, object]:
        """Return the columns of the row that save the record, and their values."""
        changes: dict[str, object] = {"states": _states(codec, self.record)}
        logs = codec.logs_of(self.record)
        if codec is not self._codec or any(map(is_not, logs, self._logs)):
            changes["logs"] = pack_logs(logs)
        if self.record.kept_changed:
            changes["kept"] = pack_kept(self.record.kept)
        if self.record.counted_until != self._until:
            changes |= zip(_MARK, self._mark(), strict=True)
        return changes

    def new_row(self, codec: Codec) -> list[object]:
        """Return the values of `ROW`."""
        return [self.key, _states(codec, self.record), pack_logs(codec.logs_of(self.record)), None, *self._mark()]

    def counts(self) -> list[object]:
        """Return the values of `COUNT` for each hour of usage that is finished."""
        finished = self.record.finished
        return [
            value
            for hour, *amounts_and_plan in finished
            for value in (hour, *self._label(), json.dumps(amounts_and_plan).encode())
        ]

    def _mark(self) -> tuple[int | None, bytes | None, int | None]:
        """Return the columns by which rows that count are found: their place, and the scope that they are of."""
        return (place_of(self.key), *self._label()) if self.record.counted_until else (None, None, None)

    def _label(self) -> tuple[bytes, int]:
        if self.label is None and self.scope is not None:
            self.label = label_of(self.scope), namespace_id(digest_in(self.scope.key))
        return self.label or (b"", namespace_id(b""))


class RecordTable:
    """Reads and writes the rows of scopes, whichever schemas they were written under."""

    def __init__(self) -> None:
        self._codecs = Codecs(Codec)
        self._defined: set[bytes] = set()

    def define(self, connection: StoreConnection, schema: Schema) -> None:
        """Let other processes read the records of a schema."""
        codec = self._codecs.of(schema)
        if codec.name not in self._defined:
            connection.insert("limits_app_layout", "name, definitions", (codec.name, codec.definitions))
            self._defined.add(codec.name)

    def codec(self, record: Record) -> Codec:
        """Return the codec of a record's schema."""
        return self._codecs.of(record.schema)

    def read(self, connection: StoreConnection, row: Sequence[Any]) -> StoredRecord | None:
        """Return the record of a row; None when its definitions are missing or of a newer version of this package."""
        key, packed, packed_logs = bytes(row[0]), bytes(row[1]), bytes(row[2] or b"")
        codec = self._codecs.of_record(packed, partial(_find_definitions, connection))
        if codec is None:
            return None
        logs = [Log.stored(partial(unpack_log, packed_logs, index)) for index in range(len(codec.with_log))]
        record = codec.decode(packed, unpack_leases(packed[codec.size :]), logs)
        if record is None:
            return None
        record.kept = unpack_kept(row[3] and bytes(row[3]))
        return StoredRecord(key, record, codec)


def _find_definitions(connection: StoreConnection, name: bytes) -> bytes | None:
    rows = connection.execute(_DEFINITIONS, (name,))
    return bytes(rows[0][0]) if rows else None


@cache
def rows_sql(number: int, read: str) -> str:
    """Return the SQL that reads the rows of `number` scopes, in the order in which all processes lock them.

    `read` is read beside each.
    """
    condition = "= %s" if number == 1 else f"IN ({marks(number)}) ORDER BY scope"
    return f"SELECT scope, states, logs, kept, {read} FROM limits_app_state WHERE scope {condition}"  # noqa: S608


@cache
def next_counting_sql(columns: str, by_place: str) -> str:
    """Return the SQL that reads the next rows of a namespace that count, after a place up to another one."""
    return (
        f"SELECT {columns} FROM limits_app_state {by_place}"  # noqa: S608 - names only
        "WHERE namespace = %s AND counting > %s AND counting <= %s ORDER BY counting LIMIT %s"
    )


def place_of(key: bytes) -> int:
    """Return the place of a row among those that count."""
    return int.from_bytes(key[:8]) >> 1


def change_rows(keys: Sequence[bytes], changes: Sequence[Mapping[str, object]]) -> tuple[str, list[object]]:
    """Return the statement that saves the changes of rows, which are to the same columns, with its values.

    A column that is set to NULL is so in all of them.
    """
    nulls = tuple([value is None for value in changes[0].values()])
    sql = _change_rows_sql(tuple(changes[0]), nulls, len(keys))
    columns = [column for column, is_null in zip(changes[0], nulls, strict=True) if not is_null]
    if len(keys) == 1:
        return sql, [*[changes[0][column] for column in columns], *keys]
    values = [
        value for column in columns for key, row in zip(keys, changes, strict=True) for value in (key, row[column])
    ]
    return sql, [*values, *keys]


@cache
def _change_rows_sql(columns: tuple[str, ...], nulls: tuple[bool, ...], number: int) -> str:
    value = "%s" if number == 1 else f"CASE scope{' WHEN %s THEN %s' * number} END"
    sets = [f"{column} = {'NULL' if is_null else value}" for column, is_null in zip(columns, nulls, strict=True)]
    rows = "= %s" if number == 1 else f"IN ({marks(number)})"
    return f"UPDATE limits_app_state SET {', '.join(sets)} WHERE scope {rows}"  # noqa: S608 - names only


def _states(codec: Codec, record: Record) -> bytes:
    """Return the column of states, with the leases."""
    packed = codec.encode(record)
    return packed + pack_leases(record.leases) if record.leases else packed


def pack_leases(leases: Mapping[LeaseId, Lease]) -> bytes:
    """Return leases as bytes, grouped by the keys of their limits."""
    groups: dict[str, list[bytes]] = {}
    for (key, holder), lease in leases.items():
        groups.setdefault(key, []).append(_LEASE.pack(holder, *lease))
    packed = []
    for key, entries in groups.items():
        name = key.encode()
        packed += [_LEASES_HEAD.pack(len(name), len(entries)), name, *entries]
    return b"".join(packed)


def unpack_leases(packed: bytes) -> dict[LeaseId, Lease]:
    """Read the bytes that `pack_leases` wrote."""
    leases: dict[LeaseId, Lease] = {}
    at = 0
    while at < len(packed):
        length, number = _LEASES_HEAD.unpack_from(packed, at)
        start = at + _LEASES_HEAD.size + length
        key = packed[start - length : start].decode()
        at = start + number * _LEASE.size
        for holder, amount, expires_at, ends_at in _LEASE.iter_unpack(packed[start:at]):
            leases[key, holder] = amount, expires_at, ends_at
    return leases


def pack_logs(logs: Iterable[Log]) -> bytes:
    """Return logs as bytes, each compressed, after its length.

    The bytes at the same position of all numbers are stored together, since most of them are equal.
    """
    packed = []
    for log in logs:
        raw = log.pack()
        columns = zlib.compress(b"".join([raw[column::_WIDTH] for column in range(_WIDTH)]), 1)
        packed += [_LOG_LENGTH.pack(len(columns)), columns]
    return b"".join(packed)


def unpack_log(packed: bytes, index: int) -> bytes | None:
    """Read one of the logs that `pack_logs` wrote, as `Log.pack` has it; None where there are fewer."""
    at = end = 0
    for _ in range(index + 1):
        if end == len(packed):
            return None
        at = end + _LOG_LENGTH.size
        end = at + _LOG_LENGTH.unpack_from(packed, end)[0]
    columns = zlib.decompress(packed[at:end])
    numbers, count = bytearray(len(columns)), len(columns) // _WIDTH
    for column in range(_WIDTH):
        numbers[column::_WIDTH] = columns[column * count : (column + 1) * count]
    return bytes(numbers)

"""Records in the file, with their leases and logs in separate entries.

Keys, with the 16 bytes of a scope: `scope` its record, `scope g limit` the log of a sliding window, `scope l limit
holder` a lease, `scope k` the kept use of other limits. `d name` are the definitions of a schema. Behind a record that
is counting usage is its label, see `usage`.
The scopes of a namespace begin with the first bytes of its digest, so that they are found without the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from functools import lru_cache, partial
from struct import Struct
from typing import Any, Final

from limits_app import engine
from limits_app.engine import (
    HOLDER_LENGTH,
    Lease,
    LeaseId,
    Log,
    Record,
    RequestPlan,
    Schema,
    Scope,
    digest_in,
    namespace_digest,
    new_record,
    short_key,
)
from limits_app.stores.codecs import Codec, Codecs, pack_kept, unpack_kept
from limits_app.stores.process.state_file import Txn

SCOPE_LENGTH: Final = 16
VERSION_LENGTH: Final = 8
WATCHED: Final = b"watch"
"""What the keys of waiting processes begin with."""
_NAMESPACE_LENGTH: Final = 4
_ENTRIES_PER_SCOPE: Final = 8
_DEFINITIONS: Final = b"d"
_LOG: Final = b"g"
_LEASE: Final = b"l"
_KEPT: Final = b"k"
_LEASE_FORM: Final = Struct("=3q")
_REQUIRED: Final = object()
_CODECS: Final = Codecs(Codec)


class StoredLeases(MutableMapping[LeaseId, Lease]):
    """The leases of a scope: each is one entry of the transaction."""

    __slots__ = ("_scope", "_txn")

    def __init__(self, txn: Txn, scope: bytes) -> None:
        self._txn = txn
        self._scope = scope

    def _key(self, lease_id: LeaseId) -> bytes:
        key, holder = lease_id
        return self._scope + _entry_name(_LEASE, key) + holder  # type: ignore[operator]  # holders are bytes here

    def __getitem__(self, lease_id: LeaseId) -> Lease:
        value = self._txn.get(self._key(lease_id))
        if value is None:
            raise KeyError(lease_id)
        return _unpacked(value)

    def __setitem__(self, lease_id: LeaseId, lease: Lease) -> None:
        self._txn.put(self._key(lease_id), _LEASE_FORM.pack(*lease) + lease_id[0].encode())

    def __delitem__(self, lease_id: LeaseId) -> None:
        if not self._txn.delete(self._key(lease_id)):
            raise KeyError(lease_id)

    def pop(self, lease_id: LeaseId, default: Any = _REQUIRED) -> Any:
        """Remove a lease and return it, in one step of LMDB."""
        value = self._txn.pop(self._key(lease_id))
        if value is not None:
            return _unpacked(value)
        if default is _REQUIRED:
            raise KeyError(lease_id)
        return default

    def __iter__(self) -> Iterator[LeaseId]:
        for key, value in entries(self._txn, self._scope + _LEASE):
            yield value[_LEASE_FORM.size :].decode(), key[-HOLDER_LENGTH:]

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _unpacked(value: bytes) -> Lease:
    amount, expires_at, ends_at = _LEASE_FORM.unpack_from(value)
    return amount, expires_at, ends_at


class PreparedScopes:
    """What a plan needs in the file: of each scope the key, the codec and the scope itself."""

    __slots__ = ("scopes",)

    def __init__(self, plan: RequestPlan) -> None:
        self.scopes: list[tuple[bytes, Codec, Scope]] = []
        for schema, scope in zip(plan.shape.schemas, plan.scopes, strict=True):
            self.scopes.append((file_key(scope.key), _CODECS.of(schema), scope))


def prepared(plan: RequestPlan) -> PreparedScopes:
    """Return the values of a plan, which are computed once."""
    cached = plan.store_cache
    if not isinstance(cached, PreparedScopes):
        cached = plan.store_cache = PreparedScopes(plan)
    return cached


def file_key(key: str) -> bytes:
    """Return the key of a scope as the 16 bytes that are its key in the file."""
    short, namespace = short_key(key), digest_in(key)
    return namespace[:_NAMESPACE_LENGTH] + short[_NAMESPACE_LENGTH:] if namespace else short


def keys_begin_with(namespace: str) -> bytes:
    """Return what the keys of all scopes of a namespace begin with."""
    return namespace_digest(namespace)[:_NAMESPACE_LENGTH]


class Records:
    """Reads and writes records in transactions. `new` are the unused scopes that were loaded last."""

    def __init__(self) -> None:
        self._defined: set[bytes] = set()
        self.new: list[bytes] = []

    def forget_definitions(self) -> None:
        """The file may be another one, in which no schema is defined yet."""
        self._defined.clear()

    def load(self, txn: Txn, plan: PreparedScopes, *, carry_at: int | None = None) -> list[Record]:
        """Return the records of a plan's scopes, each under the schema that wrote it.

        With a time in microseconds, those of other schemas are migrated to the schemas of the plan.
        """
        if self.new:
            self.new = []
        records = []
        for scope, codec, _ in plan.scopes:
            stored = txn.get(scope)
            record = None
            if stored is not None:
                leases: MutableMapping[LeaseId, Lease] = StoredLeases(txn, scope) if codec.schema.permits else {}
                record = _decoded(stored, codec, leases, _logs(txn, scope, codec) if codec.with_log else ())
            if record is None:
                record = self._other(txn, scope, stored, codec.schema)
                if carry_at is not None and record.schema is not codec.schema:
                    record = engine.carry_over(record, codec.schema, carry_at)
            records.append(record)
        return records

    def _other(self, txn: Txn, scope: bytes, stored: bytes | None, schema: Schema) -> Record:
        """Return a record that another schema wrote, or a new one where none can be read."""
        if stored is None:
            self.new.append(scope)
        record = None if stored is None else _read(txn, scope, stored)
        if record is None:
            record = new_record(schema)
            record.leases = StoredLeases(txn, scope)
        return record

    def find(self, txn: Txn, scope: bytes) -> Record | None:
        """Return the record of a scope under the schema that wrote it; None when it has none that can be read."""
        stored = txn.get(scope)
        return None if stored is None else _read(txn, scope, stored)

    def label(self, txn: Txn, stored: bytes) -> bytes:
        """Return the label behind a stored record; nothing where it is not counting, or cannot be read."""
        codec = _CODECS.of_record(stored, lambda name: txn.get(_DEFINITIONS + name))
        return stored[codec.size :] if codec is not None and codec.schema.counts_usage else b""

    def put(self, txn: Txn, scope: bytes, record: Record, codec: Codec | None = None) -> None:
        """Write a record, probably with `codec`; a log only when it has changed."""
        if codec is None or codec.schema is not record.schema:
            codec = _CODECS.of(record.schema)
        if codec.name not in self._defined:
            self._define(txn, codec)
        txn.put(scope, codec.encode(record) + record.label)
        if record.kept:
            txn.put(scope + _KEPT, pack_kept(record.kept))
        elif record.kept_changed:
            txn.delete(scope + _KEPT)
        if codec.with_log:
            for key, log in zip(_log_keys(scope, codec), codec.logs_of(record), strict=True):
                if not log.is_stored:
                    txn.put(key, log.pack())

    def remove(self, txn: Txn, scope: bytes) -> None:
        """Delete the record, the logs and the leases of a scope."""
        for key, _ in list(entries(txn, scope)):
            txn.delete(key)

    def transfer(self, old: Txn, new: Txn, now: int) -> None:
        """Add the content of a file to that of another one; waiters of the former are not woken, but look again."""
        both = {key for key, _ in entries(old, b"") if len(key) == SCOPE_LENGTH and new.get(key) is not None}
        for key, value in entries(old, b""):
            if key[:SCOPE_LENGTH] not in both and not key.startswith(WATCHED):
                new.put(key, value, overwrite=False)
        for scope in both:
            record, other = self.find(new, scope), self.find(old, scope)
            if record is not None and other is not None:
                engine.merge(record, other, now)
                self.put(new, scope, record)

    def _define(self, txn: Txn, codec: Codec) -> None:
        """Write the definitions of a schema. It counts as defined when they are read, since a step may be undone."""
        if txn.get(_DEFINITIONS + codec.name) is None:
            txn.put(_DEFINITIONS + codec.name, codec.definitions)
        else:
            self._defined.add(codec.name)


def _read(txn: Txn, scope: bytes, stored: bytes) -> Record | None:
    codec = _CODECS.of_record(stored, lambda name: txn.get(_DEFINITIONS + name))
    record = None if codec is None else _decoded(stored, codec, StoredLeases(txn, scope), _logs(txn, scope, codec))
    if record is not None:
        record.kept = unpack_kept(txn.get(scope + _KEPT))
    return record


def _decoded(stored: bytes, codec: Codec, leases: MutableMapping[LeaseId, Lease], logs: Sequence[Log]) -> Record | None:
    """Return a record with the label that is behind it."""
    record = codec.decode(stored, leases, logs)
    if record is not None and record.counted_until:
        record.label = stored[codec.size :]
    return record


def _logs(txn: Txn, scope: bytes, codec: Codec) -> list[Log]:
    """The logs of a scope, which are read when they are needed."""
    return [Log.stored(partial(txn.get, key)) for key in _log_keys(scope, codec)]


def _log_keys(scope: bytes, codec: Codec) -> list[bytes]:
    return [scope + _entry_name(_LOG, codec.schema.rules[index].key) for index in codec.with_log]


def entries(txn: Txn, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Iterate over all entries whose key starts with a prefix, from `prefix + start` on."""
    with txn.cursor() as cursor:
        if cursor.set_range(prefix + start):
            for key, value in cursor.iternext():
                if not key.startswith(prefix):
                    return
                yield key, value


def scopes_from(txn: Txn, start: bytes, most: int) -> tuple[list[bytes], bytes]:
    """Return up to `most` scopes from a key on, and the key to go on with (empty: from the beginning)."""
    with txn.cursor() as cursor:
        if not cursor.set_range(start):
            return [], b""
        return _scopes(cursor.iternext(values=False), most)


def scopes_around(txn: Txn, scope: bytes, most: int) -> list[bytes]:
    """Return up to `most` scopes on either side of one, without itself."""
    with txn.cursor() as cursor:
        after = _scopes(cursor.iternext(values=False), most + 1)[0] if cursor.set_range(scope) else []
        if not cursor.set_range(scope):
            cursor.last()
        before, _ = _scopes(cursor.iterprev(values=False), most + 1)
    return [key for key in dict.fromkeys([*before, *after]) if key != scope]


def _scopes(keys: Iterable[bytes], most: int) -> tuple[list[bytes], bytes]:
    """Return the first scopes among keys, and the key behind them; it looks at a limited number of keys."""
    scopes: list[bytes] = []
    for step, key in enumerate(keys):
        if len(scopes) == most or step == most * _ENTRIES_PER_SCOPE:
            return scopes, key
        if len(key) == SCOPE_LENGTH:
            scopes.append(key)
    return scopes, b""


@lru_cache(maxsize=4096)
def _entry_name(kind: bytes, key: str) -> bytes:
    """The name of the entries of one kind that belong to a limit: 9 bytes."""
    return kind + short_key(key)[:8]

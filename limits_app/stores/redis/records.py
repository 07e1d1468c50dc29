"""Records: how the state of a scope is stored, and the changes of it that are computed by the engine.

A record is the name of its schema, the second until which it is kept, the time of the last reset, and the integers of
all states. The kept use of
other limits is another field of its hash. Logs of sliding windows are strings, and leases are sorted sets, under
separate keys. Scripts decide on requests. Here is what they leave to the engine: records that were written under
another schema, and resets. Such records are loaded, changed, and stored if no other caller has changed them meanwhile.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from struct import Struct, calcsize, pack
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from limits_app.engine import engine
from limits_app.engine.algorithms import State
from limits_app.engine.algorithms.rule import NEVER_US
from limits_app.engine.algorithms.window_log import EMPTY_LOG, Log
from limits_app.engine.counting import label_of
from limits_app.engine.errors import StaleConfiguration, StoreUnavailable
from limits_app.engine.keys import Scope, digest_in, short_key, slices_key
from limits_app.engine.plan import Amounts, Claim, Plan, PlannedLimit
from limits_app.engine.record import Lease, LeaseId, Record, Schema, new_record
from limits_app.stores.codecs import SchemaCodec, pack_kept, unpack_kept

if TYPE_CHECKING:
    from limits_app.stores.redis.calls import Calls, Command, ScriptCall

_HEADER: Final = "6sIQ"
"""The name of the schema, the second until which the record is kept, and the time of the last reset."""
HEADER_NUMBERS: Final = 3
NAME_LENGTH: Final = 6
HOLDER_LENGTH: Final = 16
_ALWAYS: Final = 2**32 - 1
_LOG_ENTRY: Final = Struct("<dd")
_LOG_PLACE: Final = 5
"""Where the log is in the state of a sliding window."""
_MOST_ATTEMPTS: Final = 50


class Codec(SchemaCodec):
    """Writes and reads the states of one schema.

    `places` are where the numbers of each state start; `lua_format` is how scripts pack a record.
    """

    __slots__ = ("_spans", "_struct", "lua_format", "places", "size")

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema, NAME_LENGTH)
        formats = [rule.lua_format for rule in schema.rules]
        self.places = list(accumulate(map(len, formats), initial=HEADER_NUMBERS))
        self._spans = list(pairwise(self.places))
        self._struct = Struct(f"<{_HEADER}{''.join(formats)}")
        self.size = self._struct.size
        self.lua_format = "<c6I4I8" + "".join([f"I{calcsize('<' + letter)}" for letter in "".join(formats)])

    def numbers(self, packed: bytes, at: int = 0) -> list[State]:
        """Return the numbers of each limit in the record that starts at `at`; the logs are stored elsewhere."""
        numbers = self._struct.unpack_from(packed, at)
        return [numbers[start:end] for start, end in self._spans]

    def decode(self, stored: bytes, logs: Mapping[str, bytes | None]) -> tuple[Record, bool]:
        """Return a record, whose `logs` are stored as these bytes, and whether it is kept while idle."""
        states: list[State] = []
        for rule, state in zip(self.schema.rules, self.numbers(stored), strict=True):
            log = (_stored_log(logs[rule.key], *state[_LOG_PLACE:-1]),) if rule.has_log else ()
            states.append((*state[:_LOG_PLACE], *log) if rule.has_log else state)
        record = new_record(self.schema)
        record.states = states
        _, kept_until, record.reset_at, *_ = self._struct.unpack(stored)
        return record, kept_until == _ALWAYS

    def encode(self, record: Record, kept_until: int) -> bytes:
        """Return a record as bytes, of which logs are stored from their first entry on."""
        numbers: list[int] = [record.reset_at]
        for rule, state in zip(self.schema.rules, record.states, strict=True):
            numbers += (*state[:-1], 0, len(cast("Log", state[-1])), 0) if rule.has_log else state
        return self._struct.pack(self.name, kept_until, *[max(number, 0) for number in numbers])


def read_states(
    reply: bytes, at: int, codecs: Sequence[Codec], limits: Sequence[PlannedLimit], *, is_rejected: bool
) -> tuple[list[State], int]:
    """Return the states of limits, whose scopes have the codecs, and where they end in the reply.

    The records start at `at`; after those of a rejection follows an entry of each log.
    """
    scopes = []
    for codec in codecs:
        scopes.append(codec.numbers(reply, at))
        at += codec.size
    states: list[State] = []
    for limit in limits:
        state, log = scopes[limit.scope_index][limit.index], EMPTY_LOG
        if limit.rule.has_log:
            if is_rejected:
                entry = _LOG_ENTRY.unpack_from(reply, at)
                at += _LOG_ENTRY.size
                log = _log_of([entry] if entry[0] else [])
            state = (*state[:_LOG_PLACE], log)
        states.append(state)
    return states, at


@dataclass(slots=True)
class Stored:
    """The stored data of a scope: the record as bytes, and decoded; None where it cannot be read."""

    short: bytes
    raw: bytes | None
    raw_kept: bytes | None
    record: Record | None
    leases: dict[LeaseId, tuple[bytes, Lease]]
    is_lasting: bool = False

    def migrated(self, schema: Schema, now: int) -> Record:
        """Return the record under another schema; the leases of a lost record still count."""
        record = self.record
        if record is None:
            record = new_record(schema)
            record.leases = {lease_id: lease for lease_id, (_, lease) in self.leases.items()}
        elif record.schema is schema:
            return record
        return engine.migrate(record, schema, now)


class Changed(NamedTuple):
    """What is stored for a scope, the record that replaces it, the scope where it is known, and whether it stays."""

    stored: Stored
    record: Record
    scope: Scope | None
    is_lasting: bool


def changed_of(plan: Plan, found: Sequence[Stored], records: Sequence[Record]) -> list[Changed]:
    """Return what changes in the scopes of a plan."""
    known = zip(plan.scopes, plan.shape.scopes, strict=True)
    return [
        Changed(stored, record, scope, is_lasting=planned.lasting)
        for stored, record, (scope, planned) in zip(found, records, known, strict=True)
    ]


class Records:
    """Loads records and stores them again; `run` sends a call and returns the reply."""

    def __init__(self, calls: Calls, run: Callable[[Command], Any]) -> None:
        self._calls = calls
        self._codecs = calls.codecs
        self._run = run
        self._names = calls.names

    def peek(self, claim: Claim) -> None:
        """Fill in the time, and the states of a claim under the present limits."""
        plan = claim.plan
        schemas = plan.shape.schemas
        now, found = self.load(plan.short_keys(), schemas, claim)
        records = [stored.migrated(schema, now) for stored, schema in zip(found, schemas, strict=True)]
        engine.peek(claim, records, now)

    def migrate(self, claim: Claim) -> None:
        """Change the records of a claim to the present limits of their scopes; recorded use is kept."""
        plan, shape = claim.plan, claim.shape

        def change(found: Sequence[Stored], now: int) -> list[Changed]:
            changed: list[Changed] = []
            for place, stored in enumerate(found):
                schema = shape.schemas[place]
                if stored.raw is not None and (stored.record is None or stored.record.schema is not schema):
                    record = stored.migrated(schema, now)
                    # The states do not count expired leases, so that these must not be returned any more.
                    record.leases = {key: lease for key, lease in record.leases.items() if lease[1] > now}
                    changed.append(Changed(stored, record, plan.scopes[place], is_lasting=shape.scopes[place].lasting))
            return changed

        self.change(plan.short_keys(), shape.schemas, change, counters=plan.counters, current=claim)

    def settle(self, claim: Claim, changes: Amounts) -> bool:
        """Settle a claim in scopes of which one has other limits by now; return False where a lease had run out."""
        plan, schemas, kept_leases = claim.plan, claim.shape.schemas, True
        claim.holder = self._calls.holder(claim)
        if claim.unanswered:
            changes = permits_and_debt(claim, changes)

        def change(found: Sequence[Stored], now: int) -> list[Changed]:
            nonlocal kept_leases
            records = [stored.record or new_record(schema) for stored, schema in zip(found, schemas, strict=True)]
            kept_leases = engine.settle(claim, records, now, changes)
            if claim.unanswered:
                for record in records:
                    record.finished = ()  # usage is not counted twice
            return changed_of(plan, found, records)

        self.change(plan.short_keys(), schemas, change, counters=plan.counters)
        return kept_leases

    def reset(self, scope: str, keys: Collection[str] | None) -> None:
        """Forget the use of the limits `keys` of a scope, or of all."""

        def change(found: Sequence[Stored], now: int) -> list[Changed]:
            stored, in_slices = found
            if stored.record is None:
                return []
            engine.reset(stored.record, keys, now, in_slices.record)
            return [Changed(stored, stored.record, None, is_lasting=stored.is_lasting)]

        self.change([short_key(scope), short_key(slices_key(scope))], (), change, counters=digest_in(scope))

    def change(
        self,
        shorts: Sequence[bytes],
        schemas: Sequence[Schema],
        change: Callable[[Sequence[Stored], int], list[Changed]],
        *,
        counters: bytes,
        current: Claim | None = None,
    ) -> None:
        """Load the data of scopes, change it, and store it again (compare and swap).

        `counters` is the digest of the namespace of the scopes. Raises StaleConfiguration unless `current` is.
        """
        for _ in range(_MOST_ATTEMPTS):
            now, found = self.load(shorts, schemas, current)
            changed = change(found, now)
            if not changed:
                return
            if self._run(self._swap(changed, now, counters)) == b"A":
                return
        raise StoreUnavailable(f"gave up after {_MOST_ATTEMPTS} attempts: the limits of this scope keep changing")

    def load(
        self, shorts: Sequence[bytes], schemas: Sequence[Schema], current: Claim | None
    ) -> tuple[int, list[Stored]]:
        """Return the time, and the stored data of scopes. Raises StaleConfiguration unless a claim is current."""
        known: dict[bytes, dict[bytes, Codec]] = {short: {} for short in shorts}
        for short, schema in zip(shorts, schemas, strict=False):
            codec = self._codecs.of(schema)
            known[short][codec.name] = codec
        while True:
            reply = self._run(self._load_call(known, current))
            if reply == b"S":
                raise StaleConfiguration
            now, rest = int(Struct("<d").unpack(reply[0])[0]), iter(reply[1:])
            found = [_stored(short, list(codecs.values()), rest) for short, codecs in known.items()]
            has_more = False
            for stored in found:
                name = (stored.raw or b"")[:NAME_LENGTH]
                if name and name not in known[stored.short]:
                    other = self._codecs.named(name)
                    other = other or self._codecs.defined(self._run(self._calls.definitions(name)))
                    if other is not None and other.name == name:
                        known[stored.short][name] = other
                        has_more = True
            if not has_more:
                return now, found

    def _load_call(self, known: Mapping[bytes, Mapping[bytes, Codec]], current: Claim | None) -> ScriptCall:
        version, namespace = (None, "") if current is None else (current.version, current.plan.namespace)
        keys = [self._names.version(self._names.tag(next(iter(known), None)), namespace)]
        plan = pack("<dd", -1 if version is None else version, len(known))
        for short, codecs in known.items():
            logs, permits = _separate_keys(codecs.values())
            keys += [self._names.scope(short), *[self._names.log(short, key) for key in logs]]
            keys += [self._names.leases(short, key) for key in permits]
            plan += pack("<dd", len(logs), len(permits))
        return self._calls.script("records", keys, plan)

    def _swap(self, changed: Sequence[Changed], now: int, counters: bytes) -> ScriptCall:
        """Return the call that replaces the loaded records."""
        keys = [self._names.scope(one.stored.short) for one in changed]
        records, usages, writes = list[bytes](), list[bytes](), list[bytes]()
        for stored, record, scope, is_lasting in changed:
            kept_us = self._calls.clock.idle_us(_restored_at(record, now) - now)
            kept_until = _ALWAYS if is_lasting else min((now + kept_us) // 1_000_000, _ALWAYS - 1)
            kept_ms = b"%d" % (kept_us // 1000 + 1)
            encoded = self._codecs.of(record.schema).encode(record, kept_until)
            before = (stored.raw or b"") + (stored.raw_kept or b"")
            records += [before, encoded, pack_kept(record.kept), b"0" if is_lasting else kept_ms]
            for rule, state in zip(record.schema.rules, record.states, strict=True):
                if rule.has_log:
                    keys.append(self._names.log(stored.short, rule.key))
                    writes += [b"SET", b"%d" % len(keys), _packed(cast("Log", state[-1])), kept_ms]
            for lease_id in stored.leases.keys() - record.leases.keys():
                keys.append(self._names.leases(stored.short, lease_id[0]))
                writes += [b"ZREM", b"%d" % len(keys), stored.leases[lease_id][0], b""]
            for finished in record.finished:
                label = b"" if scope is None else label_of(scope, list(finished.amounts))
                sums = finished.amounts.values()
                usages += [label, pack(f"<{1 + len(sums)}d", finished.hour, *sums)]
        tag = self._names.tag(changed[0].stored.short)
        keys += self._names.finished_usage(tag, counters)
        plan = pack("<dd", len(changed), len(usages) // 2)
        return self._calls.script("records", keys, plan, *records, *usages, *writes)


def permits_and_debt(claim: Claim, changes: Amounts) -> Amounts:
    """Return the changes of a claim without refunds: what is settled although it may be settled already."""
    is_permit = [limit.is_permit for limit in claim.shape.limits]
    return [change if permit else max(change, 0) for permit, change in zip(is_permit, changes, strict=True)]


def lease_member(holder: bytes, claim: Claim, limit: PlannedLimit) -> bytes:
    """Return the member of a claim in the leases of a limit; it stays the same when the longest hold starts again."""
    ends = min(claim.decided_at + limit.rule.hold_us, NEVER_US)
    return holder + pack("<dd", claim.amounts[limit.place], ends)


def _log_of(entries: Iterable[Sequence[Any]]) -> Log:
    """Return a log of pairs of time and running total."""
    pairs = list(entries)
    return Log(array("q", [int(time) for time, _ in pairs]), array("q", [int(total) for _, total in pairs]))


def _stored_log(packed: bytes | None, head: int, entries: int) -> Log:
    """Return the log of a sliding window; empty where it was evicted."""
    size = _LOG_ENTRY.size
    found = (packed or b"")[head * size : (head + entries) * size]
    return _log_of(_LOG_ENTRY.iter_unpack(found)) if len(found) == entries * size else EMPTY_LOG


def _packed(log: Log) -> bytes:
    return b"".join([_LOG_ENTRY.pack(log.time(index), log.total(index)) for index in range(len(log))])


def _separate_keys(codecs: Iterable[Codec]) -> tuple[list[str], list[str]]:
    """Return the keys of limits with logs, and of those with leases, which are stored separately."""
    rules = [rule for codec in codecs for rule in codec.schema.rules]
    logs = dict.fromkeys([rule.key for rule in rules if rule.has_log])
    return list(logs), list(dict.fromkeys([rule.key for rule in rules if rule.is_permit]))


def _stored(short: bytes, codecs: Sequence[Codec], rest: Iterator[Any]) -> Stored:
    """Read what the reply of records.lua says of one scope."""
    logs, permits = _separate_keys(codecs)
    raw, raw_kept, packed = next(rest), next(rest), {key: next(rest) for key in logs}
    leases: dict[LeaseId, tuple[bytes, Lease]] = {}
    for key in permits:
        members = next(rest)
        for member, expires in zip(members[::2], members[1::2], strict=True):
            amount, ends = _LOG_ENTRY.unpack(member[HOLDER_LENGTH:])
            leases[key, member[:HOLDER_LENGTH]] = member, (int(amount), int(float(expires)), int(ends))
    stored = Stored(short, raw, raw_kept, None, leases)
    codec = next((one for one in codecs if raw is not None and raw[:NAME_LENGTH] == one.name), None)
    if codec is not None and len(raw) == codec.size:
        record, stored.is_lasting = codec.decode(raw, packed)
        stored.record = record
        record.kept = unpack_kept(raw_kept)
        record.leases = {lease_id: lease for lease_id, (_, lease) in leases.items()}
    return stored


def _restored_at(record: Record, now: int) -> int:
    """Return when the record equals an unused one; permits are kept for a lease."""
    uses = [*zip(record.schema.rules, record.states, strict=True), *record.kept.values()]
    times = [
        now + rule.lease_us if rule.is_permit else rule.restored_at(rule.current(state, now)) for rule, state in uses
    ]
    return max([now, engine.knows_reset_until(record), *times])

"""Records as bytes, and the codecs that a store has met: all kinds of limits are read as they were written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from limits_app.engine.limits import (
    Blocked,
    CallLimit,
    LimitDefinition,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.engine.record import Record, new_record, schema_of
from limits_app.stores.codecs import Codec, Codecs, definitions_of, schema_from, unpack_kept
from limits_app.stores.process.records import Records, StoredLeases
from limits_app.stores.process.state_file import Txn

DAY = 86_400
SCOPE = b"s" * 16
HOLDER = b"processs" + b"number 1"
LIMITS: list[LimitDefinition] = [
    RateLimit("k", 10, 60),
    RateLimit("k", 0.5, 60, RateLimitAlgorithm.GCRA, 2.5, soft=True),
    CallLimit(10, 60, RateLimitAlgorithm.SLIDING_WINDOW),
    CallLimit(10, 60, RateLimitAlgorithm.FIXED_WINDOW, soft=True),
    QuotaLimit.per_month("k", 10, "Europe/Berlin"),
    QuotaLimit.per_session("k", 10, 0.5, soft=True),
    ResourceLimit("db", 3, 2.5),
]


@pytest.fixture
def txn(tmp_path: Path) -> Iterator[Txn]:
    """A transaction of a file."""
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
        yield transaction


@pytest.mark.parametrize("counts", [False, True], ids=["not_counting", "counting"])
@pytest.mark.parametrize(
    "limits", [*((limit,) for limit in LIMITS), (Blocked(),), (), (LIMITS[0], LIMITS[2], LIMITS[-1])], ids=repr
)
def test_a_record_is_read_as_it_was_written(limits: tuple[LimitDefinition, ...], counts: bool, txn: Txn) -> None:
    codec = Codec(schema_of(limits, counts_usage=counts))
    record = new_record(codec.schema)
    record.states = [
        (*[number + 5 for number in state[:-1]], state[-1]) if rule.has_log else tuple([n + 5 for n in state])
        for rule, state in zip(codec.schema.rules, record.states, strict=True)
    ]
    if counts:
        record.amounts, record.counted_until = [7] * len(limits), 3_600_000_000
    records = Records()
    records.put(txn, SCOPE, record)
    again = read(records, txn)
    assert codec.encode(again) == codec.encode(record)
    assert [len(state) for state in again.states] == [len(state) for state in record.states]
    assert (again.amounts is None) is not counts


def read(records: Records, txn: Txn) -> Record:
    """The record of the scope."""
    record = records.find(txn, SCOPE)
    assert record is not None
    return record


def test_a_log_is_read_when_it_is_needed_and_written_when_it_has_changed(txn: Txn) -> None:
    records = Records()
    record = new_record(schema_of((CallLimit(10, 60, RateLimitAlgorithm.SLIDING_WINDOW),)))
    [rule] = record.schema.rules
    for now in (10**15, 10**15 + 10**6):
        state = rule.take(record.states[0], now, rule.parts_per_unit)
        assert state is not None
        record.states = [state]
    records.put(txn, SCOPE, record)
    [key] = [key for key, _ in txn.cursor() if key.startswith(SCOPE + b"g")]
    assert len(record.states[0][-1]) == 1
    again = read(records, txn)
    assert again.states[0][-1].is_stored
    txn.put(key, b"")
    records.put(txn, SCOPE, again)
    assert txn.get(key) == b""
    assert len(again.states[0][-1]) == 0


def test_numbers_of_more_than_64_bits_are_stored_as_the_largest() -> None:
    codec = Codec(schema_of((CallLimit(10, DAY),)))
    record = new_record(codec.schema)
    record.states = [tuple(2**70 for _ in state) for state in record.states]
    read = codec.decode(codec.encode(record), {})
    assert read is not None
    assert read.states == [tuple(2**63 - 1 for _ in state) for state in record.states]


def test_a_record_of_another_schema_is_not_read() -> None:
    codec, other = Codec(schema_of((CallLimit(10, 60),))), Codec(schema_of((CallLimit(11, 60),)))
    stored = codec.encode(new_record(codec.schema))
    assert other.decode(stored, {}) is None
    assert codec.decode(stored[:-1], {}) is None


def test_leases_are_entries_of_the_scope(txn: Txn) -> None:
    leases, others = StoredLeases(txn, SCOPE), StoredLeases(txn, b"t" * 16)
    lease = (2, 30, 40)
    assert leases.pop(("db", HOLDER), None) is None
    leases["db", HOLDER] = lease
    leases["gr\u00f6\u00dfe", HOLDER] = (1, 2, 3)
    assert list(others) == []
    assert sorted(leases) == [("db", HOLDER), ("gr\u00f6\u00dfe", HOLDER)]
    assert leases["db", HOLDER] == (2, 30, 40)
    assert len(leases) == 2
    del leases["gr\u00f6\u00dfe", HOLDER]
    with pytest.raises(KeyError):
        del leases["gr\u00f6\u00dfe", HOLDER]
    assert leases.pop(("db", HOLDER)) == (2, 30, 40)
    with pytest.raises(KeyError):
        leases.pop(("db", HOLDER))
    assert list(leases) == []


@pytest.fixture
def met() -> Codecs[Codec]:
    return Codecs(Codec)


def unknown(_name: bytes) -> None:
    """No definitions are stored."""


def test_a_schema_has_one_codec_however_it_is_found(met: Codecs[Codec]) -> None:
    schema = schema_of((CallLimit(5, 60),))
    codec = met.of(schema)
    stored = codec.encode(new_record(schema))
    assert met.of(schema) is met.of_record(stored, unknown) is codec


def test_a_schema_that_was_never_met_is_read_from_its_definitions(met: Codecs[Codec]) -> None:
    written = Codec(schema_of((CallLimit(6, 60),)))
    stored = written.encode(new_record(written.schema))
    assert met.of_record(stored, unknown) is None
    read = met.of_record(stored, {written.name: written.definitions}.get)
    assert read is met.of_record(stored, unknown) is met.of(written.schema)


@pytest.mark.parametrize("definitions", [None, b"[1, [[]]]", b'[1, [["newer", 1]]]', b"?", b"1"])
def test_unreadable_definitions_have_no_codec(met: Codecs[Codec], definitions: bytes | None) -> None:
    assert met.of_record(b"a record", lambda _name: definitions) is None


def test_number_of_kept_codecs_is_bounded() -> None:
    met = Codecs(Codec, most=2)
    schemas = [schema_of((CallLimit(most, 60),)) for most in (1, 2, 3)]
    first, *_, last = [met.of(schema) for schema in schemas]
    assert met.of_record(first.name, unknown) is None
    assert met.of_record(last.name, unknown) is last


@pytest.mark.parametrize("limit", [*LIMITS, Blocked()], ids=repr)
@pytest.mark.parametrize("counts", [False, True])
def test_a_schema_is_read_as_it_was_written(limit: LimitDefinition, counts: bool) -> None:
    schema = schema_of((limit,), 10_000_000, counts)
    assert schema_from(definitions_of(schema)) is schema


@pytest.mark.parametrize("packed", [None, b"", b"?", b"1", b'[[["newer", 1], [0], null]]', b"[[]]"])
def test_kept_use_that_cannot_be_read_is_none(packed: bytes | None) -> None:
    assert unpack_kept(packed) == {}


def test_limits_of_one_kind_that_differ_have_names_that_differ() -> None:
    names = {Codec(schema_of((limit,))).name for limit in LIMITS}
    assert len(names) == len(LIMITS)

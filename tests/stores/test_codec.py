"""Records as bytes: all kinds of limits are read as they were written, also by processes that did not know them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from limits_app.core import engine
from limits_app.core.limits import Blocked, CallLimit, Limit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.record import HourlyUsage, Lease, Record, new_record, schema_of
from limits_app.stores.codecs import Codec
from limits_app.stores.process import ProcessStore
from limits_app.stores.process.records import Records, StoredLeases
from limits_app.stores.process.state_file import Txn
from tests.stores.support import limits_of, used

DAY = 86_400
SCOPE = b"s" * 16
HOLDER = b"processs" + b"number 1"
LIMITS: list[Limit] = [
    RateLimit("k", 10, 60),
    RateLimit("k", 0.5, 60, RateLimitAlgorithm.GCRA, 2.5, soft=True),
    CallLimit(10, 60, RateLimitAlgorithm.SLIDING_WINDOW),
    CallLimit(10, 60, RateLimitAlgorithm.FIXED_WINDOW, soft=True),
    QuotaLimit.per_month("k", 10, "Europe/Berlin"),
    QuotaLimit.per_session("k", 10, 0.5, soft=True),
    ResourceLimit("db", 3, 2.5),
]
SETS: dict[str, tuple[Limit | Blocked, ...]] = {
    "limits": (CallLimit(10, DAY), RateLimit("x", 100, DAY), ResourceLimit("db", 2)),
    "other_order": (ResourceLimit("db", 2), RateLimit("x", 100, DAY), CallLimit(10, DAY)),
    "other_algorithms": (
        CallLimit(10, DAY, RateLimitAlgorithm.SLIDING_WINDOW),
        RateLimit("x", 100, DAY, RateLimitAlgorithm.GCRA),
        ResourceLimit("db", 2),
    ),
    "other_kinds": (QuotaLimit("x", 100, "day"), ResourceLimit("call", 5)),
    "blocked": (Blocked(),),
    "unlimited": (),
    "one": (CallLimit(10, DAY),),
}


@pytest.fixture
def txn(tmp_path: Path) -> Iterator[Txn]:
    """A transaction of a file."""
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
        yield transaction


@pytest.mark.parametrize("counts", [False, True], ids=["not_counting", "counting"])
@pytest.mark.parametrize(
    "limits", [*((limit,) for limit in LIMITS), (Blocked(),), (), (LIMITS[0], LIMITS[2], LIMITS[-1])], ids=repr
)
def test_a_record_is_read_as_it_was_written(limits: tuple[Limit, ...], counts: bool, txn: Txn) -> None:
    codec = Codec(schema_of(limits, counts_usage=counts))
    record = new_record(codec.schema)
    record.states = [
        (*[number + 5 for number in state[:-1]], state[-1]) if rule.has_log else tuple([n + 5 for n in state])
        for rule, state in zip(codec.schema.rules, record.states, strict=True)
    ]
    if counts:
        record.usage = HourlyUsage(3_600_000_000, [7] * len(limits))
    records = Records()
    records.put(txn, SCOPE, record)
    again = read(records, txn)
    assert codec.encode(again) == codec.encode(record)
    assert [len(state) for state in again.states] == [len(state) for state in record.states]
    assert (again.usage is None) is not counts


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
    lease = Lease(2, 30, 40)
    assert leases.pop(("db", HOLDER), None) is None
    leases["db", HOLDER] = lease
    leases["gr\u00f6\u00dfe", HOLDER] = Lease(1, 2, 3)
    assert list(others) == []
    assert sorted(leases) == [("db", HOLDER), ("gr\u00f6\u00dfe", HOLDER)]
    found = leases["db", HOLDER]
    assert (found.amount, found.expires_at, found.ends_at) == (2, 30, 40)
    assert len(leases) == 2
    del leases["gr\u00f6\u00dfe", HOLDER]
    with pytest.raises(KeyError):
        del leases["gr\u00f6\u00dfe", HOLDER]
    assert leases.pop(("db", HOLDER)).amount == 2
    with pytest.raises(KeyError):
        leases.pop(("db", HOLDER))
    assert list(leases) == []


@pytest.mark.parametrize("then", SETS)
@pytest.mark.parametrize("first", SETS)
def test_records_of_earlier_limits_are_read_whatever_the_limits_are_now(
    process_store: ProcessStore, first: str, then: str
) -> None:
    before, after = limits_of(process_store, *SETS[first]), limits_of(process_store, *SETS[then])
    keys = {limit.key for limit in SETS[first]}
    held = before.try_acquire({"x": 3} if "x" in keys else None)
    for limits in (after, before, after):
        limits.get_stats()
        limits.try_acquire({"x": 1} if "x" in {limit.key for limit in limits} else None).release()
    held.release()
    process_store.reset([before.scoped[0].scope.key] if before.scoped else [])
    if "x" in keys:
        assert used(before, "x") == 0


def test_a_limit_that_was_removed_and_added_again_keeps_its_permits(process_store: ProcessStore) -> None:
    with_permits, without = limits_of(process_store, *SETS["limits"]), limits_of(process_store, *SETS["one"])
    held = with_permits.try_acquire({"x": 1, "db": 2})
    assert without.try_acquire()
    assert not with_permits.try_acquire({"x": 1})
    assert without.try_acquire()
    held.release()
    assert with_permits.try_acquire({"x": 1})
    assert engine.restored_at(new_record(schema_of(SETS["one"]))) == 0

"""Records as bytes: the logs of sliding windows, and leases."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limits_app.core.algorithms.window_log import Log
from limits_app.core.record import Lease
from limits_app.stores.database.records import pack_leases, pack_logs, unpack_leases, unpack_log

NUMBERS = st.integers(-(2**63), 2**63 - 1)
ENTRIES = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=9)
LEASES = st.dictionaries(
    st.tuples(st.text("abz_-", min_size=1, max_size=64), st.binary(min_size=8, max_size=8)),
    st.tuples(NUMBERS, NUMBERS, NUMBERS),
    max_size=9,
)
DAY_US = 86_400_000_000


def log(*entries: tuple[int, int]) -> Log:
    return Log(array("q", [time for time, _ in entries]), array("q", [total for _, total in entries]))


@settings(max_examples=60)
@given(st.lists(ENTRIES, max_size=3))
def test_logs_are_read_as_they_were_written(entries: list[list[tuple[int, int]]]) -> None:
    logs = [log(*some) for some in entries]
    packed = pack_logs(logs)
    assert [unpack_log(packed, index) for index in range(len(logs))] == [one.pack() for one in logs]
    assert unpack_log(packed, len(logs)) is None


@pytest.mark.parametrize(("window_us", "amount", "most"), [(100_000_000, 5, 6), (DAY_US, 5, 7), (DAY_US, 40_000, 9)])
def test_a_full_log_takes_less_than_half_of_the_bytes_of_its_numbers(window_us: int, amount: int, most: int) -> None:
    start, step = 1_800_000_000_000_000, window_us // 1024 + 7
    full = log(*[(start + number * step, 1 + number * amount) for number in range(1024)])
    assert len(pack_logs([full])) <= most * 1024 + 64


@settings(max_examples=60)
@given(LEASES)
def test_leases_are_read_as_they_were_written(leases: dict[tuple[str, bytes], tuple[int, int, int]]) -> None:
    packed = pack_leases({name: Lease(*lease) for name, lease in leases.items()})
    read = unpack_leases(packed)
    assert {name: (lease.amount, lease.expires_at, lease.ends_at) for name, lease in read.items()} == leases

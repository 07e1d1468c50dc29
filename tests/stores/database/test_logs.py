"""Logs of sliding windows in the column of a row."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limits_app.core.algorithms.window_log import Log
from limits_app.stores.database.logs import pack, unpack

NUMBERS = st.integers(-(2**63), 2**63 - 1)
ENTRIES = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=9)
DAY_US = 86_400_000_000


def log(*entries: tuple[int, int]) -> Log:
    return Log(array("q", [time for time, _ in entries]), array("q", [total for _, total in entries]))


@settings(max_examples=60)
@given(st.lists(ENTRIES, max_size=3))
def test_logs_are_read_as_they_were_written(entries: list[list[tuple[int, int]]]) -> None:
    logs = [log(*some) for some in entries]
    assert [one.arrays() for one in unpack(pack(logs))] == [one.arrays() for one in logs]


@pytest.mark.parametrize(("window_us", "amount", "most"), [(100_000_000, 5, 6), (DAY_US, 5, 7), (DAY_US, 40_000, 9)])
def test_a_full_log_takes_less_than_half_of_what_its_numbers_take(window_us: int, amount: int, most: int) -> None:
    start, step = 1_800_000_000_000_000, window_us // 1024 + 7
    full = log(*[(start + number * step, 1 + number * amount) for number in range(1024)])
    assert len(pack([full])) <= most * 1024 + 64

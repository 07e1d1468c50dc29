"""Collecting the tests."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tests.collecting import in_turn, without_garbage

MODULES = [Path(f"test_{number}.py") for number in range(8)]


@pytest.mark.parametrize("count", [1, 3, 8, 11])
def test_each_process_imports_all_modules_beginning_with_its_part(count: int) -> None:
    turns = [in_turn(MODULES, number, count) for number in range(count)]
    assert all(sorted(turn) == MODULES for turn in turns)
    assert len({turn[0] for turn in turns}) == min(count, len(MODULES))


def test_garbage_is_looked_for_afterwards() -> None:
    with without_garbage():
        assert not gc.isenabled()
    assert gc.isenabled()

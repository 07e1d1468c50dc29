"""What is left of the counts when processes are killed in the middle of everything."""

from __future__ import annotations

import pytest

from tests.usage.endurance import STORES, endure


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.parametrize("store", STORES)
def test_snapshots_are_exactly_what_was_admitted_however_often_everybody_is_killed(store: str) -> None:
    found = endure(store, acquisitions=3_000, kills=5, roll_every=0.02)
    assert found.acquisitions >= 3_000
    assert found.hour == found.admitted
    assert found.day == found.admitted

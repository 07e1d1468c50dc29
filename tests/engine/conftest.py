"""Fixtures of the tests of the engine."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings

from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock

# A mutant only has to fail: no shrinking, and the same examples for every mutant.
settings.register_profile(
    "mutants", deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock=clock)

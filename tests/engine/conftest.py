"""Fixtures of the tests of the engine."""

from __future__ import annotations

import pytest

from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock=clock)

"""Fixtures of the tests of limit sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from limits_app.engine.runtime import install, installed, present
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.acquiring.sets import ChangeRuntime


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def change_runtime() -> Iterator[ChangeRuntime]:
    """Changes fields of the runtime until the test ends."""
    with installed(present()):
        yield lambda **changes: install(replace(present(), **changes))

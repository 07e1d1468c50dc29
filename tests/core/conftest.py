"""What the tests of the core share."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import fields

import pytest
from hypothesis import Phase, settings

from limits_app.core.modes import HOOKS, Hooks
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock

# A mutant is to be killed, not explained: no shrinking, and the same examples for every one of them.
settings.register_profile(
    "mutants", deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    """The hooks, put back afterwards."""
    before = {field.name: copy(getattr(HOOKS, field.name)) for field in fields(HOOKS)}
    yield HOOKS
    for name, value in before.items():
        setattr(HOOKS, name, value)

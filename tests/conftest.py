"""What every test starts from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from limits_app.usage import denials

# Each run draws other examples, so half as many are enough for every change; before a release it is the usual number.
settings.register_profile("thorough", max_examples=100)
settings.register_profile("quick", max_examples=50)
settings.load_profile("quick")


@pytest.fixture(autouse=True)
def _nothing_denied() -> Iterator[None]:
    """What one test was refused is no other test's."""
    yield
    denials.clear()

"""What every test starts from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from limits_app.usage import denials


@pytest.fixture(autouse=True)
def _nothing_denied() -> Iterator[None]:
    """What one test was refused is no other test's."""
    yield
    denials.clear()

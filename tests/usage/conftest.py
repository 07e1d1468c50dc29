"""A site whose usage nobody has counted yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from limits_app.testing import fresh_limits
from limits_app.usage.denial_counter import denials


@pytest.fixture
def site(transactional_db: None) -> Iterator[None]:
    """Limits that nobody has used yet, and rejections that nobody has noted."""
    with fresh_limits():
        denials.clear()
        yield
        denials.clear()

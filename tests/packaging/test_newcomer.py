"""The README and the tutorial work for somebody who has nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.newcomer import FIVE_MINUTES, first_refusal

pytestmark = [pytest.mark.slow, pytest.mark.release]


def test_a_newcomer_sees_a_first_refusal_within_five_minutes(tmp_path: Path) -> None:
    assert first_refusal(tmp_path, then_the_tutorial=True) < FIVE_MINUTES

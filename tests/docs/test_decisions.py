"""Decisions are few and short, and numbered without gaps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import DOCS

DECISIONS = sorted((DOCS / "decisions").iterdir())
MOST = 14
LONGEST = 60


def test_decisions_are_few_and_numbered_without_gaps() -> None:
    assert len(DECISIONS) <= MOST
    assert [path.name[:5] for path in DECISIONS] == [f"{number:04}-" for number in range(1, len(DECISIONS) + 1)]


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda path: path.name)
def test_a_decision_is_short_and_carries_its_number(decision: Path) -> None:
    lines = decision.read_text().splitlines()
    assert len(lines) <= LONGEST
    assert lines[0].startswith(f"# {decision.name[:4]}: ")

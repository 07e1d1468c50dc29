"""Decisions are short, and numbered in the order in which they were made."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS

DECISIONS = sorted((DOCS / "decisions").iterdir())
LONGEST = 60


def test_decisions_are_numbered_without_gaps() -> None:
    assert [path.name[:5] for path in DECISIONS] == [f"{number:04}-" for number in range(len(DECISIONS))]


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda path: path.name)
def test_a_decision_is_short_and_carries_its_number(decision: Path) -> None:
    lines = decision.read_text().splitlines()
    assert len(lines) <= LONGEST
    assert lines[0].startswith(f"# {decision.name[:4]}: ")
    assert lines[1:4] == ["", lines[2], ""]
    assert re.fullmatch(r"Status: (proposed|accepted|replaced by \d{4})", lines[2])

"""The pages for operators name checks, findings and errors that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, name, rows

PAGE = DOCS / "troubleshooting.md"
SOURCES = "".join(path.read_text() for path in (ROOT / "limits_app").rglob("*.py"))
IDS = re.compile(r"`([DEIW]\d{3})`")
ERRORS = [
    text
    for heading in ("Errors of stores", "Errors in code")
    for cells in rows(PAGE, heading)
    for text in re.findall(r"`([^`]+)`", cells[0])
]


@pytest.mark.parametrize("page", [PAGE, DOCS / "production-checklist.md"], ids=name)
def test_the_ids_are_those_of_checks_and_of_the_doctor(page: Path) -> None:
    known = set(re.findall(r"\"(?:limits_app\.)?([DEIW]\d{3})\"", SOURCES))
    assert set(IDS.findall(page.read_text())) - known == set()


@pytest.mark.parametrize("text", ERRORS)
def test_the_errors_are_those_of_the_code(text: str) -> None:
    assert text.removesuffix(" of tokens") in SOURCES

"""Pages name commands, checks, errors, buttons and fields that exist; decisions are few and short."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, blocks, name, rows

COMMANDS = [
    pytest.param(line.removeprefix("$ "), id=f"{name(page)}: {line}")
    for page in PAGES
    for block in blocks(page, "console")
    for line in block.text.splitlines()
    if line.startswith("$ make")
]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_make_command_is_a_target(command: str) -> None:
    asked = {word for word in shlex.split(command, comments=True)[1:] if "=" not in word}
    assert asked
    assert asked <= TARGETS


def test_the_readme_shows_how_to_try_and_to_test() -> None:
    text = "".join(block.text for block in blocks(ROOT / "README.md", "console"))
    assert {"$ make demo", "$ make run", "$ make test"} <= set(text.splitlines())


DECISIONS = sorted((DOCS / "decisions").iterdir())
MOST = 15
LONGEST = 60


def test_decisions_are_few_and_numbered_without_gaps() -> None:
    assert len(DECISIONS) <= MOST
    assert [path.name[:5] for path in DECISIONS] == [f"{number:04}-" for number in range(1, len(DECISIONS) + 1)]


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda path: path.name)
def test_a_decision_is_short_and_carries_its_number(decision: Path) -> None:
    lines = decision.read_text().splitlines()
    assert len(lines) <= LONGEST
    assert lines[0].startswith(f"# {decision.name[:4]}: ")


PAGE = DOCS / "troubleshooting.md"
SOURCES = "".join(path.read_text() for path in (ROOT / "limits_app").rglob("*.py"))
IDS = re.compile(r"`([DEIW]\d{3})`")
ERRORS = [
    text
    for heading in ("Errors of stores", "Errors in code")
    for cells in rows(PAGE, heading)
    for text in re.findall(r"`([^`]+)`", cells[0])
]


@pytest.mark.parametrize("page", [PAGE, DOCS / "operations.md"], ids=name)
def test_the_ids_are_those_of_checks_and_of_the_doctor(page: Path) -> None:
    known = set(re.findall(r"\"(?:limits_app\.)?([DEIW]\d{3})\"", SOURCES))
    assert set(IDS.findall(page.read_text())) - known == set()


@pytest.mark.parametrize("text", ERRORS)
def test_the_errors_are_those_of_the_code(text: str) -> None:
    assert text.removesuffix(" of tokens") in SOURCES


DJANGO: Final = {"add pool", "by when", "go", "past 7 days"}
"""Labels of Django's admin."""
CODE: Final = re.compile(r"`[^`]*`")
LABEL: Final = re.compile(r"\*{1,2}([^*\n]+)\*{1,2}")
ADMIN: Final = (
    "admin/**/*.py",
    "models/*.py",
    "services/limit_sentences.py",
    "services/limit_form/effects.py",
    "templates/**/*.html",
)


def test_each_label_in_the_guide_is_in_the_admin() -> None:
    sources = [path.read_text().casefold() for pattern in ADMIN for path in (ROOT / "limits_app").glob(pattern)]
    known = " ".join(" ".join(sources).split())
    guide = CODE.sub("", (DOCS / "admin-guide.md").read_text())
    labels = {label.casefold() for label in LABEL.findall(guide)} - DJANGO
    assert len(labels) > 30
    assert sorted(label for label in labels if not re.search(rf"[\"'>] ?{re.escape(label)}", known)) == []


def test_the_pictures_of_the_docs_exist_and_are_small() -> None:
    named = {name for page in DOCS.glob("*.md") for name in re.findall(r"\(images/([^)]+)\)", page.read_text())}
    sizes = {path.name: path.stat().st_size for path in (DOCS / "images").iterdir()}
    assert named == set(sizes)
    assert max(sizes.values()) < 150_000

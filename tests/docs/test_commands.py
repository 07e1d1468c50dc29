"""The commands of the documentation can be given."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.docs.pages import PAGES, ROOT, blocks, name

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

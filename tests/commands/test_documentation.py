"""The commands of the documentation run, and say what stands there."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from limits_app.engine import notation
from limits_app.management.commands.limits import SUBCOMMANDS
from tests.commands.running import run
from tests.docs.pages import DOCS, ROOT, WITH_CODE, blocks, name, rows

PAGE: Final = DOCS / "commands.md"
SECTIONS: Final = {
    PAGE: None,
    DOCS / "limits-as-a-file.md": None,
    DOCS / "prices.md": None,
    DOCS / "howto" / "candidates.md": "Simulation",
    DOCS / "troubleshooting.md": "Doctor",
}
"""Pages whose commands run, and the only section of them that does."""
PROMPT: Final = "$ python manage.py limits "
ECHO: Final = ' || echo "exit code $?"'
FILE: Final = re.compile(
    r"this is `(\w+\.(?:yaml|csv|json))`:\n\n```\w+\n(.*?)^```", re.IGNORECASE | re.MULTILINE | re.DOTALL
)


def steps(page: Path) -> Iterator[tuple[str, str | None]]:
    """Everything on a page that runs, in order: commands with what they say, and Python, which says nothing."""
    for block in blocks(page, "console", *(["python"] if page == PAGE else []), below=SECTIONS[page]):
        if block.language == "python":
            yield block.text, None
            continue
        for part in f"\n{block.text}".split(f"\n{PROMPT}")[1:]:
            command, _, said = part.partition("\n")
            yield command, said.rstrip("\n") + "\n" if said.strip() else ""


@pytest.mark.parametrize("page", SECTIONS, ids=name)
def test_commands_of_a_page_print_the_shown_output(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same = doctest.OutputChecker().check_output
    monkeypatch.chdir(tmp_path)
    for file, text in FILE.findall(page.read_text()):
        (tmp_path / file).write_text(text)
    for step, expected in steps(page):
        if expected is None:
            exec(step, {})  # noqa: S102 - it is our own documentation
            continue
        ran = run(step.removesuffix(ECHO))
        said = ran.shown
        if step.endswith(ECHO):
            assert ran.code, f"{step} did not fail"
            said = f"{said.rstrip()}\nexit code {ran.code}\n"
        else:
            assert not ran.code, f"{step} ended with {ran.code}: {said}"
        assert same(expected, said.rstrip("\n") + "\n" if said else "", doctest.ELLIPSIS), f"{step} says\n{said}"


def test_every_finding_is_on_the_page() -> None:
    source = "".join(path.read_text() for path in (ROOT / "limits_app/services/doctor").glob("*.py"))
    listed = {row[0].strip("`") for row in rows(DOCS / "troubleshooting.md", "Doctor")}
    assert listed == set(re.findall(r"limits_app\.D[0-9]{3}", source))


def test_each_finding_has_one_row_and_one_severity() -> None:
    names = [row[0] for row in rows(DOCS / "troubleshooting.md", "Doctor")]
    assert sorted(set(names)) == sorted(names)


def test_each_subcommand_has_an_example_in_the_documentation() -> None:
    consoles = "".join(block.text for page in WITH_CODE for block in blocks(page, "console"))
    assert not [name for name in SUBCOMMANDS if f"manage.py limits {name}" not in consoles]


def test_the_page_and_the_parser_show_the_same_grammar() -> None:
    [grammar] = [block.text for block in blocks(PAGE, "text")]
    assert grammar in (notation.__doc__ or "")

"""The commands of the pages about files, simulation and the doctor run, and say what stands there."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Final

import pytest

from tests.commands.running import run
from tests.commands.test_documentation import ECHO, PROMPT
from tests.docs.pages import DOCS, blocks, name, rows

PAGES: Final = [DOCS / f"{page}.md" for page in ("limits-as-a-file", "simulate", "doctor")]
FILE: Final = re.compile(
    r"this is `(\w+\.(?:yaml|csv))`:\n\n```\w+\n(.*?)^```", re.IGNORECASE | re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_page_runs_from_top_to_bottom_and_says_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file, text in FILE.findall(page.read_text()):
        (tmp_path / file).write_text(text)
    for block in blocks(page, "console"):
        for part in f"\n{block.text}".split(f"\n{PROMPT}")[1:]:
            command, _, expected = part.rstrip("\n").partition("\n")
            ran = run(command.removesuffix(ECHO))
            said = ran.shown.rstrip("\n") + "\n"
            if command.endswith(ECHO):
                said += f"exit code {ran.code}\n"
            else:
                assert not ran.code, f"{command} ended with {ran.code}: {said}"
            assert doctest.OutputChecker().check_output(expected + "\n", said, doctest.ELLIPSIS), (
                f"{command} says\n{said}"
            )


def test_every_finding_is_on_the_page() -> None:
    source = "".join(path.read_text() for path in (DOCS.parent / "limits_app/services/doctor").glob("*.py"))
    listed = {row[0].strip("`") for row in rows(DOCS / "doctor.md", "Doctor")}
    assert listed == set(re.findall(r"limits_app\.D[0-9]{3}", source))

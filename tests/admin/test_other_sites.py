"""The admin on sites that are set up differently."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("change", "imports"),
    [
        pytest.param("-import_export", "0", id="without_imports_it_is_the_stock_admin"),
        pytest.param("+unfold", "1", id="django_unfold_gives_it_another_look"),
    ],
)
def test_every_page_works_there_too(change: str, imports: str) -> None:
    command = [sys.executable, "-m", "tests.admin.other_site", change]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answers = {what: answer for answer, what in (line.split(" ", 1) for line in done.stdout.splitlines())}
    assert answers.pop("offers imports") == imports
    assert answers.pop("acts") == "302"
    assert [answers.pop(what) for what in ("shows what is used", "is off")] == ["1", "1"]
    assert set(answers.values()) == {"200"}, answers

"""Edits under load: no process decides by a rule that is older than the last commit before it asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EDITS = int(os.environ.get("LIMITS_TEST_EDITS", "100"))
"""A thousand take minutes."""
PROCESSES = 4


def started(folder: Path, verb: str, number: int = 0) -> subprocess.Popen[str]:
    """A process of the site that follows one command."""
    environment = os.environ | {
        "LIMITS_DEMO_DATABASE": str(folder / "site.sqlite3"),
        "LIMITS_DEMO_STATE_DIR": str(folder / "state"),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, str(Path(__file__).with_name("edited_process.py")), verb, str(number)]
    return subprocess.Popen(
        [*command, str(folder / "committed")], stdout=subprocess.PIPE, env=environment, cwd=ROOT, text=True
    )


@pytest.mark.slow
@pytest.mark.release
def test_no_decision_is_older_than_the_last_commit(tmp_path: Path) -> None:
    (tmp_path / "committed").write_bytes(bytes(24))
    assert started(tmp_path, "prepare").communicate(timeout=120)[0] == "done\n"
    loaded = [started(tmp_path, "load", number) for number in range(PROCESSES)]
    try:
        assert started(tmp_path, "edit", EDITS).communicate(timeout=300)[0] == "done\n"
        told = [process.communicate(timeout=60)[0] for process in loaded]
    finally:
        for process in loaded:
            process.kill()
            process.wait(20)
    for line in told:
        decisions, stale, changes = map(int, line.split())
        assert stale == 0
        assert decisions > changes > 2

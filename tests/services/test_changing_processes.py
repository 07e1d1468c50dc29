"""Edits, the emergency switch, candidates with their counts, and plans over several processes of a site."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROCESSES = 4
REQUESTS = 120
EDITS = int(os.environ.get("LIMITS_TEST_EDITS", "50"))
"""A thousand take minutes."""


def started(folder: Path, *command: str) -> subprocess.Popen[str]:
    """A process of the site."""
    environment = os.environ | {
        "LIMITS_DEMO_DATABASE": str(folder / "site.sqlite3"),
        "LIMITS_DEMO_STATE_DIR": str(folder / "state"),
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, env=environment, cwd=ROOT, text=True)


def follow(folder: Path, verb: str, number: int = 0) -> subprocess.Popen[str]:
    script = str(Path(__file__).with_name("changing_process.py"))
    return started(folder, script, verb, str(number), str(folder / "committed"))


def told(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return out.strip()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site without changes; all processes map the file with the number of the last one."""
    (tmp_path / "committed").write_bytes(bytes(2))
    assert told(follow(tmp_path, "prepare")) == "done"
    return tmp_path


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.parametrize(
    ("verb", "number"), [("edit", EDITS), ("member", EDITS), ("plan", 200), ("candidate", 200), ("switch", 200)]
)
def test_each_change_counts_on_the_next_acquire_of_all_processes(verb: str, number: int, site: Path) -> None:
    loaded = [follow(site, "load") for _ in range(PROCESSES)]
    try:
        assert [process.stdout.readline() for process in loaded if process.stdout] == ["ready\n"] * PROCESSES
        assert told(follow(site, verb, number)) == "done"
        for line in map(told, loaded):
            decisions, changes, stale = json.loads(line)
            assert decisions > changes > 2
            assert stale == []
    finally:
        for process in loaded:
            process.kill()
            process.communicate(timeout=20)  # which also closes the pipe


@pytest.mark.slow
@pytest.mark.release
def test_counts_of_all_processes_are_exact(site: Path) -> None:
    for process in [follow(site, "traffic", REQUESTS) for _ in range(PROCESSES)]:
        assert told(process) == "done"
    listed = json.loads(told(started(site, "manage.py", "limits", "candidates", "list", "--format", "json")))
    [report] = [one for one in listed if one["state"] == "testing"]
    total = PROCESSES * REQUESTS
    # A replay of the same traffic: a bucket of 300 that does not refill within the test rejects all after the 300th.
    assert (report["evaluated"], report["rejected"]) == (total, total - 300)

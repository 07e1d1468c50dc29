"""The emergency switch, candidates with their counts, and plans over several processes of a site."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHANGES = 24
"""Of each kind; an even number, so that limits are enforced at the end."""
PROCESSES = 4
REQUESTS = 120


def started(folder: Path, *command: str) -> subprocess.Popen[str]:
    """A process of the site."""
    environment = os.environ | {
        "LIMITS_DEMO_DATABASE": str(folder / "site.sqlite3"),
        "LIMITS_DEMO_STATE_DIR": str(folder / "state"),
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, env=environment, cwd=ROOT, text=True)


def follow(folder: Path, verb: str, number: int = 0) -> subprocess.Popen[str]:
    script = str(Path(__file__).with_name("switching_process.py"))
    return started(folder, script, verb, str(number), str(folder / "committed"))


def told(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return out.strip()


def each_change_counts_at_once(tmp_path: Path, verb: str, number: int) -> None:
    """All processes acquire while one of them makes changes."""
    (tmp_path / "committed").write_bytes(bytes(16))
    assert told(follow(tmp_path, "prepare")) == "done"
    loaded = [follow(tmp_path, "load") for _ in range(PROCESSES)]
    try:
        assert [process.stdout.readline() for process in loaded if process.stdout] == ["ready\n"] * PROCESSES
        assert told(follow(tmp_path, verb, number)) == "done"
        for line in map(told, loaded):
            decisions, stale = map(int, line.split())
            assert decisions > 0
            assert stale == 0
    finally:
        for process in loaded:
            process.kill()
            process.wait(20)


@pytest.mark.release
@pytest.mark.parametrize("verb", ["change_plan", "change"])
def test_each_of_200_changes_counts_on_the_next_acquire(verb: str, tmp_path: Path) -> None:
    each_change_counts_at_once(tmp_path, verb, 200)


@pytest.mark.slow
@pytest.mark.release
def test_a_change_counts_on_the_next_acquire_and_counts_of_all_processes_are_exact(tmp_path: Path) -> None:
    each_change_counts_at_once(tmp_path, "change", CHANGES)
    for process in [follow(tmp_path, "traffic", REQUESTS) for _ in range(PROCESSES)]:
        assert told(process) == "done"
    listed = json.loads(told(started(tmp_path, "manage.py", "limits", "candidates", "list", "--format", "json")))
    [report] = [one for one in listed if one["state"] == "testing"]
    total = PROCESSES * REQUESTS
    # A replay of the same traffic: a bucket of 300 that does not refill within the test rejects all after the 300th.
    assert (report["evaluated"], report["rejected"]) == (total, total - 300)

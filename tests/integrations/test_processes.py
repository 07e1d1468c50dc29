"""Several processes of one site: a limit is theirs together, and a change counts in each on its next request."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PING = "/api/ping/"


class Process:
    """A process of the site that answers one line at a time."""

    def __init__(self, folder: Path) -> None:
        environment = os.environ | {
            "LIMITS_DEMO_DATABASE": str(folder / "site.sqlite3"),
            "LIMITS_DEMO_STATE_DIR": str(folder / "state"),
            "PYTHONPATH": str(ROOT),
        }
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("one_process.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=ROOT,
            text=True,
        )

    def __call__(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def stop(self) -> None:
        """Let it end, which takes a while."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self) -> None:
        assert self._process.stdout is not None
        self._process.wait(20)
        self._process.stdout.close()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[list[Process]]:
    """Three processes of a site that limits one address."""
    started = [Process(tmp_path) for _ in range(3)]
    for line in ("migrate -", "allow 1", f"limit {PING}"):
        started[0](line)
    yield started
    for process in started:
        process.stop()
    for process in started:
        process.wait()


def test_processes_share_a_limit_and_every_change_counts_immediately_in_each(processes: list[Process]) -> None:
    admin, *servers = processes
    admin("allow 10")
    answers = [server(f"get {PING}") for _ in range(10) for server in servers]
    assert answers == ["200"] * 10 + ["429"] * 10
    wrong = []
    for change in range(40):
        on = change % 2
        admin(f"enable {on}")
        expected = "429" if on else "200"
        wrong += [(change, answer) for server in servers if (answer := server(f"get {PING}")) != expected]
    assert wrong == []
    for more in (11, 12, 13):
        admin(f"allow {more}")
        assert sorted(server(f"get {PING}") for server in servers) == ["200", "429"]

"""Edits, the emergency switch, candidates with their counts, and plans over several processes of a site."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.postgres import postgres_server
from tests.servers.redis import redis_server

ROOT = Path(__file__).parents[2]
PROCESSES = 4
REQUESTS = 120
EDITS = int(os.environ.get("LIMITS_TEST_EDITS", "50"))
"""A thousand take minutes."""


Environment = dict[str, str]


def started(folder: Path, *command: str, environment: Environment | None = None) -> subprocess.Popen[str]:
    """A process of the site."""
    environment = (
        os.environ
        | {
            "LIMITS_DEMO_DATABASE": str(folder / "site.sqlite3"),
            "LIMITS_DEMO_STATE_DIR": str(folder / "state"),
            "PYTHONPATH": str(ROOT),
        }
        | (environment or {})
    )
    return subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, env=environment, cwd=ROOT, text=True)


def follow(folder: Path, verb: str, number: int = 0, environment: Environment | None = None) -> subprocess.Popen[str]:
    script = str(Path(__file__).with_name("changing_process.py"))
    return started(folder, script, verb, str(number), str(folder / "committed"), environment=environment)


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


def check_changes(verb: str, number: int, folder: Path, environment: Environment | None = None) -> None:
    """Make changes while processes acquire, and check that none decided by limits that were replaced."""
    loaded = [follow(folder, "load", environment=environment) for _ in range(PROCESSES)]
    try:
        assert [process.stdout.readline() for process in loaded if process.stdout] == ["ready\n"] * PROCESSES
        assert told(follow(folder, verb, number, environment)) == "done"
        for line in map(told, loaded):
            decisions, changes, stale = json.loads(line)
            assert decisions > changes > 2
            assert stale == []
    finally:
        for process in loaded:
            process.kill()
            process.communicate(timeout=20)  # which also closes the pipe


VERBS = ("client", "group", "pattern", "system", "plan", "candidate", "switch")


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.parametrize(("verb", "number"), [("edit", EDITS), ("member", EDITS), *[(verb, 200) for verb in VERBS]])
def test_each_change_counts_on_the_next_acquire_of_all_processes(verb: str, number: int, site: Path) -> None:
    check_changes(verb, number, site)


@pytest.fixture
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Environment]:
    """The variables of a site whose limits, or whose limits and rows, are on a server."""
    if request.param == "redis":
        with redis_server() as server:
            yield {"LIMITS_TEST_STORES": json.dumps({"default": {"KIND": "redis", "URL": server.url}})}
    else:
        with postgres_server() as postgres:
            yield {
                "LIMITS_TEST_STORES": json.dumps({"default": {"KIND": "database"}}),
                "LIMITS_TEST_DATABASE": json.dumps({key: str(value) for key, value in postgres.settings.items()}),
            }


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.parametrize("servers", ["redis", "postgres"], indirect=True)
@pytest.mark.parametrize("verb", ["edit", *VERBS])
def test_each_change_counts_on_the_next_acquire_on_servers(verb: str, tmp_path: Path, servers: Environment) -> None:
    (tmp_path / "committed").write_bytes(bytes(2))
    assert told(follow(tmp_path, "prepare", environment=servers)) == "done"
    check_changes(verb, EDITS, tmp_path, servers)


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

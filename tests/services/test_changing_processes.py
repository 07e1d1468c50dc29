"""Edits, the emergency switch, candidates with their counts, and plans over several processes of a site."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.servers.postgres import postgres_server
from tests.servers.redis import redis_server

ROOT = Path(__file__).parents[2]
PROCESSES = 4
REQUESTS = 120
EDITS = int(os.environ.get("LIMITS_TEST_EDITS", "50"))
"""How many changes of each kind are made; 200 take minutes."""
LATE_EDITS = 5
PATIENCE_SECONDS = 10
TTL_SECONDS = 1
SLICE_SECONDS = 1
BUSY_SECONDS = 0.5
"""How long a thread that has just read something may wait for the processor before it notes when that was."""
OF_CLIENTS = frozenset({"client", "group", "plan"})
"""Changes of a single client, after which others make no query."""
VERBS = ("client", "group", "plan", "pattern", "edit", "member", "system", "candidate", "switch")

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


def follow(folder: Path, *command: object, environment: Environment | None = None) -> subprocess.Popen[str]:
    script = str(Path(__file__).with_name("changing_process.py"))
    return started(folder, script, *map(str, command), str(folder / "shared"), environment=environment)


def output_of(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    return out.strip()


def prepare(folder: Path, environment: Environment | None = None) -> None:
    """Make a site without changes."""
    (folder / "shared").write_bytes(bytes(32))
    assert output_of(follow(folder, "prepare", environment=environment)) == "done"


class Seen(NamedTuple):
    """What a process has seen of changes; see `load` in the script."""

    decisions: int
    changes: int
    stale: list[list[object]]
    longest_stale: float
    queries: int


def seen_by_each(
    folder: Path, verb: str, number: int, environment: Environment | None = None, *, command: str = "change"
) -> list[Seen]:
    """Make changes while processes acquire; each is made once all of them have decided by the one before."""
    processes = [follow(folder, "load", place, environment=environment) for place in range(PROCESSES)]
    try:
        assert [process.stdout.readline() for process in processes if process.stdout] == ["ready\n"] * PROCESSES
        assert output_of(follow(folder, command, verb, number, PROCESSES, environment=environment)) == "done"
        seen = [Seen(*json.loads(output_of(process))) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=20)  # which also closes the pipe
    changes, queries = {one.changes for one in seen}, max(one.queries for one in seen)
    stale, longest = sum(len(one.stale) for one in seen), max(one.longest_stale for one in seen)
    decisions = sum(one.decisions for one in seen)
    counts = f"{decisions} decisions, {stale} stale, {longest:.2f} s, {queries} queries of others"
    sys.stdout.write(f"{verb}: {changes} of {number} seen, {counts}\n")
    return seen


def check_changes(verb: str, folder: Path, environment: Environment | None = None) -> None:
    """Check that each process decides by each change from its next acquire on, and that others query what they must."""
    for seen in seen_by_each(folder, verb, EDITS, environment):
        assert (seen.changes, seen.stale) == (EDITS, [])
        assert seen.queries <= (0 if verb in OF_CLIENTS else 1)


def check_late(verb: str, folder: Path, environment: Environment, *, seconds: float, command: str = "change") -> None:
    """Check that each process decides by each change after some time at the latest."""
    for seen in seen_by_each(folder, verb, LATE_EDITS, environment, command=command):
        assert seen.changes == LATE_EDITS
        assert seen.longest_stale <= seconds


def on_redis(url: str) -> dict[str, dict[str, object]]:
    """The stores of a site on a server, which may be slow on a busy machine."""
    timeouts = {"CONNECT_TIMEOUT_SECONDS": PATIENCE_SECONDS, "REPLY_TIMEOUT_SECONDS": PATIENCE_SECONDS}
    return {"default": {"KIND": "redis", "URL": url, **timeouts}}


def limits_of(**settings: object) -> Environment:
    """Other settings than those of the site."""
    return {"LIMITS_TEST_LIMITS": json.dumps(settings)}


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.parametrize("verb", VERBS)
def test_each_change_counts_on_the_next_acquire_of_all_processes(verb: str, tmp_path: Path) -> None:
    prepare(tmp_path)
    check_changes(verb, tmp_path)


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> Iterator[Environment]:
    """The variables of a site whose limits, or whose limits and rows, are on a server."""
    if request.param == "redis":
        with redis_server() as server:
            yield limits_of(STORES=on_redis(server.url))
    else:
        with postgres_server() as postgres:
            database = {key: str(value) for key, value in postgres.settings.items()}
            stores = limits_of(STORES={"default": {"KIND": "database", "LOCK_TIMEOUT_SECONDS": PATIENCE_SECONDS}})
            yield stores | {"LIMITS_TEST_DATABASE": json.dumps(database)}


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.parametrize("servers", ["redis", "postgres"], indirect=True)
@pytest.mark.parametrize("verb", VERBS)
def test_each_change_counts_on_the_next_acquire_on_servers(verb: str, tmp_path: Path, servers: Environment) -> None:
    prepare(tmp_path, servers)
    check_changes(verb, tmp_path, servers)


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.parametrize("verb", ["edit", "switch"])
def test_change_counts_within_the_seconds_of_a_slice(verb: str, tmp_path: Path) -> None:
    with redis_server() as server:
        environment = limits_of(STORES=on_redis(server.url))
        environment["LIMITS_TEST_SLICE_SECONDS"] = str(SLICE_SECONDS)
        prepare(tmp_path, environment)
        check_late(verb, tmp_path, environment, seconds=SLICE_SECONDS)


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.parametrize("verb", ["client", "plan", "pattern", "edit", "switch"])
def test_change_counts_within_the_lifetime_of_limits_where_no_store_is_shared(verb: str, tmp_path: Path) -> None:
    environment = limits_of(STORES={"default": {"KIND": "memory"}}, RESOLVER_TTL_SECONDS=TTL_SECONDS)
    prepare(tmp_path, environment)
    check_late(verb, tmp_path, environment, seconds=TTL_SECONDS + BUSY_SECONDS)


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.parametrize("verb", ["client", "plan", "pattern", "edit", "switch"])
def test_change_counts_within_the_lifetime_of_limits_after_its_process_was_killed(verb: str, tmp_path: Path) -> None:
    environment = limits_of(RESOLVER_TTL_SECONDS=TTL_SECONDS)
    prepare(tmp_path, environment)
    check_late(verb, tmp_path, environment, seconds=TTL_SECONDS + BUSY_SECONDS, command="change-unannounced")


@pytest.mark.slow
@pytest.mark.release
def test_counts_of_all_processes_are_exact(tmp_path: Path) -> None:
    prepare(tmp_path)
    for process in [follow(tmp_path, "traffic", REQUESTS) for _ in range(PROCESSES)]:
        assert output_of(process) == "done"
    listed = json.loads(output_of(started(tmp_path, "manage.py", "limits", "candidates", "list", "--format", "json")))
    [report] = [one for one in listed if one["state"] == "testing"]
    total = PROCESSES * REQUESTS
    # A replay of the same traffic: a bucket of 300 that does not refill within the test rejects all after the 300th.
    assert (report["evaluated"], report["rejected"]) == (total, total - 300)

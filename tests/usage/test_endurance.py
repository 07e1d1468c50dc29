"""What is left of the counts when processes are killed in the middle of everything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.servers.mariadb import mariadb_server
from tests.servers.postgres import postgres_server
from tests.servers.redis import redis_server

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def site(store: str, directory: Path) -> Iterator[dict[str, str]]:
    """The environment of a site with a store."""
    sqlite = {"LIMITS_DEMO_DATABASE": str(directory / "db.sqlite3")}
    if store == "process":
        yield given({"KIND": "process", "STATE_DIR": str(directory), "MAP_MEGABYTES": 8}) | sqlite
    elif store == "redis":
        with redis_server() as redis:
            # A busy machine may take longer than the default, and usage lacks the debt of unanswered releases.
            yield given({"KIND": "redis", "URL": redis.url, "REPLY_TIMEOUT_SECONDS": 10}) | sqlite
    else:
        with postgres_server() if store == "postgresql" else mariadb_server() as server:
            patient = {"LOCK_TIMEOUT_SECONDS": 10, "CONNECT_TIMEOUT_SECONDS": 10}
            yield given({"KIND": "database", **patient}, DATABASE=server.settings)


def given(store: dict[str, Any], **more: Any) -> dict[str, str]:
    return {"LIMITS_TEST_SITE": json.dumps({"LIMITS": {"STORES": {"default": store}}, **more})}


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.parametrize("store", ["process", "redis", "postgresql", "mariadb"])
def test_snapshots_are_exact_when_processes_are_killed(store: str, tmp_path: Path) -> None:
    with site(store, tmp_path) as of_site:
        environment = os.environ | {"DJANGO_SETTINGS_MODULE": "tests.usage.settings", **of_site}
        # 3,000 acquisitions by 4 processes, which are killed 5 times, with a roll-up every 0.02 seconds.
        command = [sys.executable, "-m", "tests.usage.endured", "3000", "4", "5", "0.02"]
        done = subprocess.run(command, env=environment, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert sum(milli for name, milli in found["admitted"].items() if name.endswith("call_count")) >= 3_000_000
    assert found["hour"] == found["day"] == found["admitted"]

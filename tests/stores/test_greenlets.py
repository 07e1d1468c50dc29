"""Under gevent, waiting is cooperative on every store: the conformance suite's waits and more run in such a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.product

ROOT = Path(__file__).parents[2]
SECONDS = 300
PATCHED = "from gevent import monkey; monkey.patch_all(); import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
WAITS = "waiter or threads_are_admitted or threads_never_hold"


def run_patched(*arguments: str) -> None:
    """Run tests in a process that gevent has patched."""
    options = ["-q", "--no-cov", "-p", "no:randomly", "-p", "no:cacheprovider", f"--timeout={SECONDS}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-c", PATCHED, *options, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "suite"),
    [
        ("test_conformance.py", "TestMemoryStore"),
        pytest.param("test_conformance.py", "TestProcessStore", marks=pytest.mark.release),
        pytest.param("test_server_conformance.py", "TestSQLite", marks=pytest.mark.release),
        pytest.param("test_server_conformance.py", "TestPostgreSQL", marks=pytest.mark.release),
        ("test_server_conformance.py", "TestRedisStore"),
    ],
)
def test_the_waits_of_the_conformance_suite_pass_under_gevent(module: str, suite: str) -> None:
    run_patched(f"tests/stores/{module}", "-k", f"{suite} and ({WAITS})")


def test_a_waiting_greenlet_lets_others_run() -> None:
    run_patched("tests/stores/in_greenlets.py")

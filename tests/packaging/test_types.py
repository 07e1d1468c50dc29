"""What a type checker reports to users of the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

pytestmark = pytest.mark.slow

USES = """
from limits_app import CallLimit, LimitedRequest, RateLimit, RateLimitAlgorithm, Share, limits
from limits_app import CallLimt  # wrong
from limits_app.integrations.ratelimit import ratelimit

CallLimit.per_minute(5, algorithm=RateLimitAlgorithm.GCRA, burst=7)
CallLimit.per_minute(5, algoritm="x")  # wrong
RateLimit.per_hour("tokens", 5, brust=7)  # wrong
RateLimit.parse("5/h", "tokens", soft="yes")  # wrong
limits.set_resource_limits("api", [CallLimit.per_hour(5)], reason="the contract")
limits.set_resource_limits("api", [CallLimit.per_hour(5)], reson="the contract")  # wrong


def view(request: LimitedRequest) -> float:
    request.limits.acquire("api", requested={"tokens": 5}, timeout=2)
    request.limits.acquire("api", requsted={"tokens": 5})  # wrong
    request.limits.try_acquire("api", timeout=2)  # wrong
    return request.limits.check("api").retry_after or 0


@ratelimit(key="ip", rate="5/m", block=False)
def search(request: LimitedRequest) -> str:
    request.limitd  # wrong
    return "later" if request.limited else "found"


Share("api", "user:7", {"tokens": 5}, [CallLimit.per_minute(5), RateLimit.per_hour("tokens", 7)])
Share("api", "user:7", default_limits=5)  # wrong
limits.try_acquire("api", default_limits=[CallLimit.per_minute(5)]).outcome.passed[0].keys  # wrong
used: int | float = limits.status("api").limits["calls"]["used"]
used = limits.status("api").limits["calls"]["usd"]  # wrong
"""
WRONG = {number for number, line in enumerate(USES.splitlines(), 1) if line.endswith("# wrong")}


def test_wrong_options_are_errors_of_types(tmp_path: Path) -> None:
    (tmp_path / "uses.py").write_text(USES)
    cache = ("--cache-dir", str(ROOT / ".mypy_cache" / "users"))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", *cache, "uses.py"],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
    )
    reported = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error: " in line}
    assert reported == WRONG, done.stdout + done.stderr


@pytest.mark.product
def test_pyright_reports_the_same(tmp_path: Path) -> None:
    (tmp_path / "uses.py").write_text(USES)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    found = [one for one in json.loads(done.stdout)["generalDiagnostics"] if one["severity"] == "error"]
    assert {one["range"]["start"]["line"] + 1 for one in found} == WRONG, found

"""What a type checker reports to users of the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

pytestmark = pytest.mark.slow

USES = """
from limits_app import CallLimit, LimitedRequest, RateLimit, RateLimitAlgorithm, limits

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
"""


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
    wrong = {number for number, line in enumerate(USES.splitlines(), 1) if line.endswith("# wrong")}
    assert reported == wrong, done.stdout + done.stderr

"""Several processes share a roll-up: each count is added once, and what a killed one has left is taken over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.usage.test_endurance import ROOT, site


def test_killed_helpers_lose_no_count_and_count_nothing_twice(tmp_path: Path) -> None:
    with site("redis", tmp_path) as of_site:
        environment = os.environ | {"DJANGO_SETTINGS_MODULE": "tests.usage.settings", **of_site}
        command = [sys.executable, "-m", "tests.usage.shared_roll_up", "2200"]
        done = subprocess.run(command, env=environment, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    killed = {"_die_before_adding": -9, "_die_before_forgetting": -9, "_help": 0}
    assert figures["codes"] == {"lease": 0, **killed, "roll up": 0}
    assert (figures["clients"], figures["milli"]) == (2_200, 2_200_000)
    assert figures["batches"] == 5, "three helpers took a batch each, and two were left"
    assert figures["leases"] == ["roll_up", "roll_up:1", "roll_up:2", "roll_up:3"], "each had its own part"

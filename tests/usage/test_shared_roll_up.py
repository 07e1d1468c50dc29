"""Several processes share a roll-up: each count is added once, and what a killed one has left is taken over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.usage.test_endurance import ROOT, site

STORES = {"redis": 2_200, "postgresql": 4_400, "mariadb": 4_400}
"""With so many clients that fill five batches."""


def rolled_up(how: str, store: str, clients: int, directory: Path) -> dict[str, Any]:
    """What processes have added, by `shared_roll_up`."""
    with site(store, directory) as of_site:
        environment = os.environ | {"DJANGO_SETTINGS_MODULE": "tests.usage.settings", **of_site}
        command = [sys.executable, "-m", "tests.usage.shared_roll_up", how, str(clients)]
        done = subprocess.run(command, env=environment, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (figures["clients"], figures["milli"]) == (clients, 1000 * clients)
    return figures


@pytest.mark.parametrize(("store", "clients"), STORES.items())
def test_killed_helpers_lose_no_count_and_count_nothing_twice(store: str, clients: int, tmp_path: Path) -> None:
    figures = rolled_up("in_turn", store, clients, tmp_path)
    killed = {"_die_before_adding": -9, "_die_before_forgetting": -9, "_help": 0}
    assert figures["codes"] == {"lease": 0, **killed, "roll up": 0}
    assert figures["batches"] == 5, "three helpers took a batch each, and two were left"
    assert figures["leases"] == ["roll_up", "roll_up:1", "roll_up:2", "roll_up:3"], "each had its own part"


@pytest.mark.parametrize("store", ["postgresql", "mariadb"])
def test_a_helper_that_is_killed_with_locked_rows_leaves_them_to_the_others(store: str, tmp_path: Path) -> None:
    figures = rolled_up("together", store, 6_000, tmp_path)
    assert figures["codes"] == [0, 0, 0, -9]
    assert all(figures["shares"]), "each had batches of its own"
    assert sum(figures["shares"]) < 6_000, "the one that was killed had one too"

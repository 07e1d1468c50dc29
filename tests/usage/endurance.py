"""Four processes acquire, and are killed and started again five times while the usage is rolled up all the time.

`python -m tests.usage.endurance --store process` (or `redis`, `postgresql`) prints what it found, and ends with 1
unless the snapshots are exactly what was admitted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Final

from tests.servers.postgres import postgres_server
from tests.servers.redis import redis_server

ROOT: Final = Path(__file__).resolve().parents[2]
STORES: Final = ("process", "redis", "postgresql")


@dataclass(frozen=True, slots=True)
class Endured:
    """What came of a run: thousandths by entity and key, as admitted and as the snapshots of hours and days say."""

    admitted: dict[str, int]
    hour: dict[str, int]
    day: dict[str, int]

    @property
    def acquisitions(self) -> int:
        """How many there were."""
        return sum(milli for name, milli in self.admitted.items() if name.endswith("call_count")) // 1000

    @property
    def exact(self) -> bool:
        """Whether nothing was lost and nothing counted twice."""
        return self.admitted == self.hour == self.day


def endure(store: str, *, acquisitions: int, processes: int = 4, kills: int = 5, roll_every: float = 1.0) -> Endured:
    """Have a site of its own acquire at least so often in all, with its snapshots in a database of its own."""
    with _site(store) as given:
        environment = os.environ | {"DJANGO_SETTINGS_MODULE": "tests.usage.settings", **given}
        command = [sys.executable, "-m", "tests.usage.endured", *map(str, (acquisitions, processes, kills, roll_every))]
        done = subprocess.run(command, env=environment, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Endured(**json.loads(done.stdout.splitlines()[-1]))


@contextmanager
def _site(store: str) -> Iterator[dict[str, str]]:
    """The environment of a site with a store."""
    with TemporaryDirectory() as directory:
        sqlite = {"LIMITS_DEMO_DATABASE": str(Path(directory, "db.sqlite3"))}
        if store == "process":
            yield _given({"KIND": "process", "STATE_DIR": directory, "MAP_MEGABYTES": 8}) | sqlite
        elif store == "redis":
            with redis_server() as redis:
                yield _given({"KIND": "redis", "URL": redis.url}) | sqlite
        else:
            with postgres_server() as postgres:
                yield _given({"KIND": "database"}, DATABASE=postgres.settings)


def _given(store: dict[str, Any], **more: Any) -> dict[str, str]:
    return {"LIMITS_TEST_SITE": json.dumps({"LIMITS": {"STORES": {"default": store}}, **more})}


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=STORES, default="process")
    parser.add_argument("--acquisitions", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--roll-every", type=float, default=1.0, help="seconds between two roll-ups")
    chosen = parser.parse_args()
    started = monotonic()
    found = endure(chosen.store, acquisitions=chosen.acquisitions, kills=chosen.kills, roll_every=chosen.roll_every)
    seconds = monotonic() - started
    verdict = "exact" if found.exact else "NOT EXACT"
    print(f"{chosen.store}: {found.acquisitions:,} acquisitions, {chosen.kills} kills, {seconds:.0f} s: {verdict}")  # noqa: T201 - a command
    if not found.exact:
        print(json.dumps([found.admitted, found.hour, found.day], indent=1))  # noqa: T201 - a command
    return not found.exact


if __name__ == "__main__":
    sys.exit(main())

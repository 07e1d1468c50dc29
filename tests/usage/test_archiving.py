"""What is deleted can be read in the archive, also where writing it failed or was killed half-way."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from limits_app.usage.pruning import Archive

ROOT = Path(__file__).resolve().parents[2]


def pruned(tmp_path: Path, how: str) -> list[dict[str, object]]:
    """What was found after pruning that ended early, and after pruning again."""
    name = ":memory:" if how == "full" else str(tmp_path / "db.sqlite3")
    site = {"LIMITS": {}, "DATABASE": {"ENGINE": "django.db.backends.sqlite3", "NAME": name}}
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "tests.usage.settings", "LIMITS_TEST_SITE": json.dumps(site)}
    command = [sys.executable, "-m", "tests.usage.archived", str(tmp_path / "archive"), how]
    done = subprocess.run(command, env=environment, cwd=ROOT, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_full_disk_loses_nothing_and_leaves_the_archive_readable(tmp_path: Path) -> None:
    early, late = pruned(tmp_path, "full")
    assert early == {"ended": "File too large", "left": 2_500, "lost": 0}
    assert late == {"left": 0, "lost": 0, "files": 2}


@pytest.mark.release
@pytest.mark.parametrize(("how", "ended"), [("torn", "SIGXFSZ"), ("killed", "SIGKILL")])
def test_torn_archive_of_a_killed_run_hides_no_deleted_row(how: str, ended: str, tmp_path: Path) -> None:
    early, late = pruned(tmp_path, how)
    assert (early["ended"], early["lost"]) == (ended, 0)
    assert late == {"left": 0, "lost": 0, "files": 2}


def test_a_moment_is_archived_to_the_microsecond(tmp_path: Path) -> None:
    when = datetime(2026, 1, 31, 12, 0, 0, 123_456, tzinfo=UTC)
    Archive(tmp_path, "usage").add([{"when": when, "day": when.date(), "amount": Decimal("1.50")}])
    line = gzip.decompress((tmp_path / "usage.jsonl.gz").read_bytes())
    assert json.loads(line) == {"when": "2026-01-31T12:00:00.123456+00:00", "day": "2026-01-31", "amount": "1.50"}

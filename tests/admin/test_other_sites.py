"""The admin on sites that are set up differently."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.running import migrated_database

pytestmark = pytest.mark.product


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("change", ["-import_export", "+unfold"])
def test_the_admin_works_without_imports_and_with_another_look(change: str, tmp_path: Path) -> None:
    database = migrated_database(tmp_path / "other.sqlite3")
    command = [sys.executable, "-m", "tests.admin.other_site", str(database), change]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

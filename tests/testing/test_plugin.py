"""The pytest plugin, in sessions of its own: a site's, one without Django, and one on several workers."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.nested import WITHOUT_OTHERS

ROOT: Final = Path(__file__).resolve().parents[2]
PLUGIN: Final = "limits_app.testing.plugin"
TAKES_ONE: Final = """
import pytest
from limits_app import CallLimit, limits
from limits_app.testing import override_limits

@pytest.mark.parametrize("number", range(6))
def test_each_has_its_own(number):
    with override_limits("reports", CallLimit(1, 60)):
        assert limits.try_acquire("reports")
        assert not limits.try_acquire("reports")

def test_time_is_moved(limits_clock):
    with override_limits("reports", CallLimit(1, 60)):
        assert limits.try_acquire("reports")
        limits_clock.advance(60)
        assert limits.try_acquire("reports")
"""
KEEPS: Final = """
import pytest
from limits_app.stores import registry
from limits_app.testing import FakeClock

FOUND = []

@pytest.mark.limits_stores
@pytest.mark.parametrize("number", range(2))
def test_the_stores_of_the_site_are_used(number):
    FOUND.append(registry.store())
    assert FOUND[0] is FOUND[-1]
"""


def run(folder: Path, test: str, *options: str, site: bool = True) -> str:
    """Run a test module with the plugin as a user has it, and give what it printed."""
    (folder / "test_it.py").write_text(test)
    kept = {
        name: value for name, value in os.environ.items() if name not in {"DJANGO_SETTINGS_MODULE", "PYTEST_ADDOPTS"}
    }
    environment = kept | {"PYTHONPATH": str(ROOT)} | ({"DJANGO_SETTINGS_MODULE": "project.settings"} if site else {})
    command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider", "-W", "error"]
    command += [*WITHOUT_OTHERS, *options]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_test_begins_with_unused_limits(tmp_path: Path) -> None:
    assert "7 passed" in run(tmp_path, TAKES_ONE, "-p", "no:randomly")


@pytest.mark.release
def test_so_it_is_on_several_workers(tmp_path: Path) -> None:
    assert "7 passed" in run(tmp_path, TAKES_ONE, "-n", "2")


def test_a_test_may_use_the_stores_of_the_site(tmp_path: Path) -> None:
    options = ["--strict-markers", "-p", "no:randomly"]
    assert "2 passed" in run(tmp_path, KEEPS, *options)
    assert "2 passed" in run(
        tmp_path, KEEPS.replace("@pytest.mark.limits_stores", ""), *options, "-o", "limits_isolated=no"
    )


def test_it_is_harmless_where_django_is_not_configured(tmp_path: Path) -> None:
    code = "import sys\n\ndef test_nothing():\n    assert 'limits_app.engine' not in sys.modules\n"
    assert "1 passed" in run(tmp_path, code, "-p", "no:django", "-p", "no:randomly", site=False)


def test_it_is_installed_with_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"limits_app": PLUGIN}


@pytest.mark.parametrize("name", ["fresh_limits", "LimitsMixin", "FakeClock"])
def test_names_are_found_when_they_are_asked_for(name: str) -> None:
    import limits_app.testing

    assert getattr(limits_app.testing, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        limits_app.testing.nothing  # noqa: B018 - asking is the test

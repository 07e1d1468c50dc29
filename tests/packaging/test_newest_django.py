"""The admin's pages on the newest Django that the package declares, in an environment with it."""

from __future__ import annotations

import subprocess

import pytest

from tests.docs.pages import ROOT
from tests.packaging.matrix import DJANGOS, IGNORED, PYTHONS, environment, fits, interpreter, version_of

pytestmark = [pytest.mark.slow, pytest.mark.release, pytest.mark.product]

TESTS = ["tests/admin/pages", "tests/admin/test_lists.py", "tests/admin/test_menu.py"]
IN_A_BROWSER = ["tests/browser/test_pages.py", "-k", "breadcrumbs or a_page_can_be_used"]


@pytest.fixture(scope="module")
def newest() -> str:
    """An interpreter with the newest Django, on the newest Python that is here."""
    pythons = [python for name in reversed(PYTHONS) if fits(name, DJANGOS[-1]) and (python := interpreter(name))]
    assert pythons, f"there is no Python for Django {DJANGOS[-1]}: install one of {', '.join(PYTHONS)}"
    version = version_of(pythons[0])
    assert version is not None
    return environment(pythons[0], version, DJANGOS[-1])


@pytest.mark.parametrize("tests", [TESTS, IN_A_BROWSER])
def test_the_pages_work_on_the_newest_django(newest: str, tests: list[str]) -> None:
    version = subprocess.run([newest, "-m", "django", "--version"], check=True, capture_output=True, text=True)
    assert version.stdout.startswith(DJANGOS[-1])
    chosen = [] if tests == IN_A_BROWSER else ["-mnot release"]
    command = [newest, "-m", "pytest", "-q", "--no-cov", "-pno:cacheprovider", "-m", "", *chosen]
    command += [f"-W{warning}" for warning in IGNORED]
    done = subprocess.run([*command, *tests], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

"""`python -m tests.packaging.compiled`: runs the tests of the engine and of its stores with the compiled wheel.

The wheel is the one in `dist/`, as `make wheels` has built it. Arguments are passed to pytest.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

from tests.docs.pages import ROOT
from tests.packaging.matrix import IGNORED

__all__ = ["LEFT_OUT", "TESTS"]

PLACE: Final = ROOT / "build" / "compiled"
NEEDED: Final = ("docs", "project", "tests", "CHANGELOG.md", "README.md", "manage.py", "pyproject.toml")
TESTS: Final = (
    "tests/acquiring",
    "tests/engine",
    "tests/stores/test_concurrency.py",
    "tests/stores/test_conformance.py",
    "tests/stores/test_conformance_suite.py",
    "tests/stores/test_forking.py",
    "tests/stores/test_memory_store.py",
    "tests/stores/test_process_store.py",
    "tests/stores/test_reentrance.py",
    "tests/stores/test_sharing.py",
)
LEFT_OUT: Final = (
    # Compiled modules have no docstrings.
    "tests/acquiring/test_imports.py::test_every_name_in_all_exists",
    # It counts the calls of Python functions, of which compiled code makes few.
    "tests/acquiring/test_extension.py::test_release_after_an_interruption_returns_everything",
    # It inherits from an algorithm, which compiled classes do not allow.
    "tests/engine/algorithms/test_carry.py::test_state_of_a_subclass_is_converted",
    # It inherits from a record, and it replaces a function that compiled code calls directly.
    "tests/engine/test_engine.py::test_an_interrupted_reset_refunds_nothing_that_others_have_used",
    "tests/stores/test_reentrance.py::TestInterruptedTransactions"
    "::test_a_claim_whose_step_was_interrupted_is_not_admitted[memory]",
    # It replaces a method of a store, which compiled objects do not allow.
    "tests/stores/test_reentrance.py::test_an_interrupted_first_step_of_a_scope_affects_no_other",
)


def main() -> int:
    """Unpack the wheel beside a copy of the tests, and run them there; returns the exit code of pytest."""
    wheels = [path for path in (ROOT / "dist").glob("*.whl") if not path.stem.endswith("-any")]
    if len(wheels) != 1:
        raise SystemExit(f"dist/ has {len(wheels)} compiled wheels, and must have one: run `make clean wheels`")
    shutil.rmtree(PLACE, ignore_errors=True)
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(PLACE)
    for name in NEEDED:
        copy(ROOT / name, PLACE / name)
    check = "from limits_app.engine import COMPILED; raise SystemExit(not COMPILED)"
    subprocess.run([sys.executable, "-c", check], cwd=PLACE, check=True)
    left_out = [f"--deselect={name}" for name in LEFT_OUT]
    command = [sys.executable, "-m", "pytest", "-n2", "--no-cov", "-q", "-m", "not release", *TESTS, *left_out]
    command += [f"-W{warning}" for warning in IGNORED]
    return subprocess.run([*command, *sys.argv[1:]], cwd=PLACE, check=False).returncode


def copy(source: Path, target: Path) -> None:
    """Copy a file, or a folder with what is in it."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


if __name__ == "__main__":
    sys.exit(main())

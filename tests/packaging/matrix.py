"""`python -m tests.packaging.matrix`: runs tests with each Python that is here, with each supported Django.

Takes a while, needs a package index, and is no test.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.docs.pages import ROOT

PYTHONS: Final = ("python3.11", "python3.12", "python3.13", "python3.14")
DJANGOS: Final = ("Django~=5.2.0", "Django<6.1", "Django")
"""Requirements for 5.2, 6.0 and the newest release; an interpreter may be too old for some of them."""
ROOMS: Final = ("core", "configuration", "services", "integrations", "commands", "admin", "api", "usage", "testing")
PLACE: Final = ROOT / "build" / "matrix"
LENIENT: Final = ("-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning")
"""Since 3.13 Python tells of SQLite connections that nobody closed, and Django never closes those of the tests."""


def main() -> int:
    """Tell for each pair how the tests went; 1 if they failed anywhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="interpreters, by name or path")
    parser.add_argument("--tests", nargs="+", default=[f"tests/{room}" for room in ROOMS], help="what pytest is given")
    options = parser.parse_args()
    failed = False
    for python in options.python:
        if not runs(python):
            tell(f"{python}: not here")
            continue
        for version, interpreter in environments(python):
            done = subprocess.run(
                [interpreter, "-m", "pytest", "-n2", "--no-cov", "-q", "-pno:cacheprovider", *LENIENT, *options.tests],
                cwd=ROOT,
                check=False,
                capture_output=True,
                text=True,
            )
            failed |= bool(done.returncode)
            tell(f"{python}, Django {version}: {done.stdout.strip().rpartition(chr(10))[2]}")
            if done.returncode:
                tell(done.stdout + done.stderr)
    return int(failed)


def runs(python: str) -> bool:
    """Whether an interpreter is there, and is no name that leads nowhere."""
    found = shutil.which(python)
    return found is not None and subprocess.run([found, "-c", ""], check=False, capture_output=True).returncode == 0


def environments(python: str) -> Iterator[tuple[str, str]]:
    """An environment for each version of Django that differs from the one before."""
    seen = set()
    for number, django in enumerate(DJANGOS):
        place = PLACE / f"{Path(python).resolve().parent.parent.name if '/' in python else python}-{number}"
        interpreter = str(place / "bin" / "python")
        run([python, "-m", "venv", str(place)])
        run([interpreter, "-m", "pip", "install", "--quiet", "-r", str(ROOT / "requirements-dev.txt")])
        run([interpreter, "-m", "pip", "install", "--quiet", "--upgrade", django])
        version = run([interpreter, "-m", "django", "--version"])
        if version not in seen:
            seen.add(version)
            yield version, interpreter


def run(command: Sequence[str]) -> str:
    """What a command says; an error where it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def tell(line: str) -> None:
    """Say something to the person who waits."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

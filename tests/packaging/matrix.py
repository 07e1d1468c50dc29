"""`python -m tests.packaging.matrix`: runs tests with each declared Python that is here, with each declared Django.

Takes a while, needs a package index, and is no test.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.docs.pages import ROOT
from tests.packaging.extras import PROJECT

__all__ = ["DJANGOS", "IGNORED", "PYTHONS", "fits", "interpreter"]


def declared(pattern: str) -> list[str]:
    """Return the versions in the classifiers of the package that match a pattern."""
    return [match[1] for text in PROJECT["classifiers"] if (match := re.fullmatch(pattern, text))]


PYTHONS: Final = declared(r"Programming Language :: Python :: (3\.\d+)")
DJANGOS: Final = declared(r"Framework :: Django :: (\d\.\d)")
ROOMS: Final = (
    "engine",
    "acquiring",
    "configuration",
    "policies",
    "services",
    "stores",
    "integrations",
    "commands",
    "admin",
    "api",
    "usage",
    "testing",
    "workers",
)
PLACE: Final = ROOT / "build" / "matrix"
IGNORED: Final = (
    # Since 3.13 Python reports SQLite connections that are not closed, and Django never closes those of the tests.
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    # Django 6.1 has another API for e-mail, which 5.2 and 6.0 do not have.
    "ignore:get_connection() is deprecated",
    "ignore:Django 2028 will not have a default mailer",
    "ignore:The 'connection' argument is deprecated",
    "ignore:The EMAIL_BACKEND setting is deprecated",
)


def fits(python: str, django: str) -> bool:
    """Whether a version of Django supports a version of Python: 6.0 and later need 3.12."""
    return django < "6" or python != "3.11"


def main() -> int:
    """Report how the tests went for each pair; 1 if they failed anywhere, or nothing ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="versions, as 3.12, or interpreters")
    parser.add_argument("--django", nargs="+", default=DJANGOS, help="versions of Django, as 5.2")
    parser.add_argument("--tests", nargs="+", default=[f"tests/{room}" for room in ROOMS], help="arguments for pytest")
    options = parser.parse_args()
    results: list[bool] = []
    for name in options.python:
        python = interpreter(name)
        version = python and version_of(python)
        if python is None or version is None:
            report(f"Python {name}: not here")
            continue
        suitable = [django for django in options.django if fits(version, django)]
        results += [passes(environment(python, version, django), options.tests) for django in suitable]
    return int(not results or not all(results))


def interpreter(name: str) -> str | None:
    """Return an interpreter that runs, on the path or of pyenv, by its version or name; None if it is not here."""
    installed = (Path.home() / ".pyenv" / "versions").glob(f"{name}.*/bin/python")
    found = [shutil.which(name), shutil.which(f"python{name}"), *map(str, installed)]
    return next((python for python in found if python and version_of(python)), None)


def version_of(python: str) -> str | None:
    """Return the version of an interpreter, as 3.12; None if its name leads nowhere."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], check=False, capture_output=True, text=True)
    return None if done.returncode else done.stdout.strip()


def environment(python: str, version: str, django: str) -> str:
    """Create a virtual environment, and return its interpreter."""
    place = PLACE / f"python{version}-django{django}"
    interpreter = str(place / "bin" / "python")
    run([python, "-m", "venv", str(place)])
    run([interpreter, "-m", "pip", "install", "--quiet", "-r", str(ROOT / "requirements-dev.txt")])
    run([interpreter, "-m", "pip", "install", "--quiet", "--upgrade", f"Django~={django}.0"])
    return interpreter


def passes(interpreter: str, tests: Sequence[str]) -> bool:
    """Run tests, and report how they went."""
    command = [interpreter, "-m", "pytest", "-n2", "--no-cov", "-q", "-m", "not release", "-pno:cacheprovider"]
    command += [f"-W{warning}" for warning in IGNORED]
    done = subprocess.run([*command, *tests], cwd=ROOT, check=False, capture_output=True, text=True)
    report(f"{Path(interpreter).parent.parent.name}: {done.stdout.strip().rpartition(chr(10))[2]}")
    if done.returncode:
        report(done.stdout + done.stderr)
    return not done.returncode


def run(command: Sequence[str]) -> None:
    """Run a command; exit with its output where it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def report(line: str) -> None:
    """Print a line immediately."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

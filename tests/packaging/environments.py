"""Virtual environments of their own, in which the package is installed as users install it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.docs.pages import ROOT

__all__ = ["build_sdist", "build_wheel", "clean_environment", "install", "new_environment", "run"]

_LONGEST_SECONDS: Final = 300
"""Longer than any step may take, downloads included."""

_OURS: Final = re.compile(r"COV|DJANGO|LIMITS|PYTHON|VIRTUAL_ENV")
"""Environment variables of these tests, which a new project does not have."""


def clean_environment(folder: Path) -> dict[str, str]:
    """Return environment variables without those of these tests; files and the state of stores are in `folder`."""
    kept = {name: value for name, value in os.environ.items() if not _OURS.match(name)}
    return kept | {"TMPDIR": str(folder), "XDG_STATE_HOME": str(folder), "PYTHONUNBUFFERED": "1"}


def run(*command: object, folder: Path, **variables: str) -> str:
    """Run a command in a folder and return what it printed; AssertionError when it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=clean_environment(folder) | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LONGEST_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}"
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """Build the wheel from this checkout into a new folder inside `folder`."""
    return _built("wheel", folder)


def build_sdist(folder: Path) -> Path:
    """Build the archive of sources from this checkout into a new folder inside `folder`."""
    return _built("sdist", folder)


def _built(kind: str, folder: Path) -> Path:
    target = folder / kind
    run(sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", target, ROOT, folder=folder)
    (file,) = target.iterdir()
    return file


def new_environment(folder: Path, *requirements: object, python: str = sys.executable) -> Path:
    """Create an environment with the requirements and nothing else; return its interpreter."""
    folder.mkdir(exist_ok=True)
    run(python, "-m", "venv", "--without-pip", folder / "venv", folder=folder)
    interpreter = folder / "venv" / "bin" / "python"
    install(interpreter, *requirements, folder=folder)
    return interpreter


def install(interpreter: Path, *requirements: object, folder: Path) -> None:
    """Install requirements into an environment, with the pip of this one."""
    pip = (sys.executable, "-m", "pip", "--python", interpreter, "--quiet", "--disable-pip-version-check")
    run(*pip, "install", *requirements, folder=folder)

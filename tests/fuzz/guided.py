"""`python -m tests.fuzz.guided [SECONDS]`: the tests of this folder, with input that `atheris` makes of what it covers.

Each of them gets so many seconds (30) in a process of its own, which ends with an error and the input where one fails.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import django

__all__ = ["targets"]

_LONGEST: Final = 4096
_SECONDS: Final = "30"


def targets() -> dict[str, Callable[[bytes], object]]:
    """The tests that take nothing but input, by name: each as a function of the bytes that its input is made of."""
    found = {}
    for file in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"tests.fuzz.{file.stem}")
        for name, test in vars(module).items():
            if name.startswith("test_") and hasattr(test, "hypothesis"):
                found[name] = test.hypothesis.fuzz_one_input
    return found


def guide(name: str, seconds: str) -> None:
    """Let atheris look for an input on which a test fails; it ends the process."""
    import atheris

    with atheris.instrument_imports(include=["limits_app"]):
        django.setup()
        target = targets()[name]
    atheris.Setup(
        [sys.argv[0], f"-max_total_time={seconds}", f"-max_len={_LONGEST}", "-len_control=0", "-verbosity=0"], target
    )
    atheris.Fuzz()


def main(seconds: str = _SECONDS, name: str = "") -> int:
    """Guide one test, or each in its turn; 1 if one failed."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    if name:
        guide(name, seconds)
    django.setup()
    failed = []
    for one in targets():
        sys.stdout.write(f"{one}\n")
        sys.stdout.flush()
        command = [sys.executable, "-m", "tests.fuzz.guided", seconds, one]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            failed.append(one)
            sys.stdout.write(done.stdout + done.stderr)
    sys.stdout.write(f"failed: {', '.join(failed) or 'none'}\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

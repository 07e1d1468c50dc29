"""`python -m tests.packaging.newcomer`: follows the README in an empty folder, and says how long it took."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.docs.pages import DOCS, ROOT
from tests.packaging.walk import clone, follow, shell

__all__ = ["FIVE_MINUTES", "SECTION", "first_refusal"]

SECTION: Final = "Quickstart"
FIVE_MINUTES: Final = 300.0


def first_refusal(folder: Path, *, then_the_tutorial: bool = False) -> float:
    """Go from a clone in an empty folder to a first refused request; gives the seconds from the clone on."""
    clone(folder)
    begun = time.monotonic()
    with shell(folder) as typist:
        follow(ROOT / "README.md", typist, folder, below=SECTION)
        took = time.monotonic() - begun
        if then_the_tutorial:
            follow(DOCS / "tutorial.md", typist, folder)
    return took


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as empty:
        seconds = first_refusal(Path(empty), then_the_tutorial=True)
    sys.stdout.write(f"From the clone to the first refused request: {seconds:.0f} seconds.\n")
    sys.exit(seconds > FIVE_MINUTES)

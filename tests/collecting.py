"""Collecting the tests: what each of the processes that share them does for itself, and may do sooner."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import chain
from pathlib import Path

__all__ = ["import_in_turn", "in_turn", "without_garbage"]

_WORKER = "PYTEST_XDIST_WORKER"


@contextmanager
def without_garbage() -> Iterator[None]:
    """Look for no garbage in the block, which makes many objects, and at none of these later: they stay to the end."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def import_in_turn(root: Path, places: Sequence[str]) -> None:
    """Import the modules of tests at places, each process beginning with others: none compiles what another has."""
    if _WORKER in os.environ:
        number, count = int(os.environ[_WORKER].removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        directories = [root / place for place in places if (root / place).is_dir()]
        modules = sorted({path.relative_to(root) for path in chain(*[at.rglob("test_*.py") for at in directories])})
        for path in in_turn(modules, number, count):
            with suppress(Exception):  # pytest imports it again, and says what is wrong
                import_module(".".join(path.with_suffix("").parts))


def in_turn(modules: Sequence[Path], number: int, count: int) -> Sequence[Path]:
    """All modules, from the first one of a part of them on."""
    first = len(modules) * number // count
    return [*modules[first:], *modules[:first]]

"""Servers that stand still: alive, connected, and without an answer."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["frozen"]


@contextmanager
def frozen(process: int) -> Iterator[None]:
    """Stop a process and its children for a while, in the middle of whatever they do."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    processes = [process, *map(int, children)]
    try:
        for one in processes:
            os.kill(one, signal.SIGSTOP)
        yield
    finally:
        for one in processes:
            os.kill(one, signal.SIGCONT)

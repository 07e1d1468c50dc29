"""A system that gives no more threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

__all__ = ["no_more_threads"]


@contextmanager
def no_more_threads() -> Iterator[None]:
    """In the block, threads that limits_app starts for itself cannot be had; others can."""
    start = Thread.start

    def refuse(thread: Thread) -> None:
        if thread.name.startswith("limits-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Thread, "start", refuse)
        yield

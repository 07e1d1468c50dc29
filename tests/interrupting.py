"""Interruptions at a chosen point, as by the handler of a signal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupted", "interrupted_at_event"]


class Interrupted(BaseException):
    """Raised as by the handler of a signal."""


@contextmanager
def interrupted_at_event(number: int, counts: Callable[[FrameType, str], bool]) -> Iterator[None]:
    """In the block, raise at the event of the profiler of this number, of those that count."""
    left = number

    def profile(frame: FrameType, event: str, function: object) -> None:
        nonlocal left
        if counts(frame, event):
            left -= 1
            if left == 0:
                # The traceback keeps this frame, and no transaction may outlive its block for a method in it.
                del function
                raise Interrupted

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)

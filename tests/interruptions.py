"""Signals that arrive anywhere: a test runs its steps while an alarm whose handler raises goes off at random."""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["interrupt_anywhere", "without_logging"]


class _Interrupted(BaseException):
    """What the handler raises."""


def _interrupt(*_: object) -> None:
    raise _Interrupted


@contextmanager
def without_logging() -> Iterator[None]:
    """Log nothing: an exception in a handler of `logging` leaves its lock held, and other threads wait for it."""
    logger = logging.getLogger("limits_app")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def interrupt_anywhere(steps: Callable[[], object], *, times: int = 2_000, within_us: int = 97) -> int:
    """Run steps so many times, each interrupted at another moment if it lasts so long; returns how many were.

    Coverage is off meanwhile, because it holds a lock of its own that an interruption does not free.
    """
    trace, before = sys.gettrace(), signal.signal(signal.SIGALRM, _interrupt)
    # Objects that other tests have left are not finalized meanwhile: an exception in a finalizer is a warning.
    gc.collect()
    gc.disable()
    sys.settrace(None)
    try:
        with without_logging():
            interrupted = _interrupted(steps, times, within_us)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
        sys.settrace(trace)
    return interrupted


def _interrupted(steps: Callable[[], object], times: int, within_us: int) -> int:
    interrupted = 0
    try:
        for number in range(times):
            try:
                signal.setitimer(signal.ITIMER_REAL, (number % within_us + 1) / 1e6)
                steps()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except _Interrupted:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return interrupted

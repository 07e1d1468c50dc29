"""Signals that arrive anywhere: a test runs its steps while an alarm whose handler raises goes off at random."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable

__all__ = ["interrupt_anywhere"]


class _Interrupted(Exception):
    """What the handler raises."""


def _interrupt(*_: object) -> None:
    raise _Interrupted


def interrupt_anywhere(steps: Callable[[], object], *, times: int = 2_000, within_us: int = 97) -> int:
    """Run steps so many times, each interrupted at another moment if it lasts so long; returns how many were.

    Coverage is off meanwhile, because it holds a lock of its own that an interruption does not free.
    """
    trace, before, interrupted = sys.gettrace(), signal.signal(signal.SIGALRM, _interrupt), 0
    callbacks = gc.callbacks.copy()
    gc.callbacks.clear()  # those of test libraries, in which an exception is a warning
    sys.settrace(None)
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
        signal.signal(signal.SIGALRM, before)
        gc.callbacks.extend(callbacks)
        sys.settrace(trace)
    return interrupted

"""What a forked child finds, in tests whose process has other threads."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable

__all__ = ["exit_code_of_child"]

_SECONDS = 30


def exit_code_of_child(act: Callable[[], int]) -> int:
    """Fork, call a function in the child, and return what it returned there, from 0 to 254; 255 after an error.

    A child that hangs ends after 30 seconds, prints the stacks of its threads, and has exit code 1.
    """
    child = os.fork()
    if child == 0:
        code = 255
        try:
            faulthandler.dump_traceback_later(_SECONDS, exit=True)
            code = act()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

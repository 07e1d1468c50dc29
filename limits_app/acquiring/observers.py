"""Who is notified of calls of workers; apart from the workers, so that metrics record them without loading them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

CallObserver = Callable[[str, str, float], object]
CALL_OBSERVERS: Final[list[CallObserver]] = []
"""Called when a call has ended, with the worker class, the result (done, failed or cancelled) and the seconds."""

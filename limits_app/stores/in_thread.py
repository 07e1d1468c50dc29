"""What a task leaves to a thread, and what becomes of it when the task is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

__all__ = ["in_thread"]

logger = logging.getLogger("limits_app")

R = TypeVar("R")


async def in_thread(work: Callable[[], R], abandoned: Callable[[R], object]) -> R:
    """Have something done in a thread; when the task is cancelled meanwhile, `abandoned` is told the result, there.

    Whoever cancels is not kept waiting; what has not begun by then is never done.
    """
    job = _Job(work, abandoned)
    try:
        return await asyncio.to_thread(job.run)
    except asyncio.CancelledError:
        if job.leave():
            asyncio.get_running_loop().run_in_executor(None, job.tidy)
        raise


class _Job(Generic[R]):
    """Something that is done once, whose result somebody takes or nobody."""

    def __init__(self, work: Callable[[], R], abandoned: Callable[[R], object]) -> None:
        self._work = work
        self._abandoned = abandoned
        self._lock = Lock()
        self._left = False
        self._results: list[R] = []

    def run(self) -> R:
        """Do it, and tidy up when nobody waits for it any more."""
        result = self._work()
        with self._lock:
            self._results.append(result)
            left = self._left
        if left:
            self.tidy()
        return result

    def leave(self) -> bool:
        """Nobody waits for it any more; says whether it is done, so that somebody else has to tidy up."""
        with self._lock:
            self._left = True
            return bool(self._results)

    def tidy(self) -> None:
        """Tell what nobody has heard."""
        try:
            self._abandoned(self._results[0])
        except Exception:
            logger.warning("what a cancelled task was given could not be given back", exc_info=True)

"""On-demand workers: a new one for every call."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from threading import Lock

from limits_app.workers.back_ends import BackEnd
from limits_app.workers.task import Task

__all__ = ["OnDemand"]


class OnDemand:
    """A back end of back ends: each task gets a worker that is made for it, and ends with it."""

    def __init__(self, start: Callable[[int], BackEnd]) -> None:
        self._start = start
        self._numbers = count()
        self._lock = Lock()
        self._working: set[BackEnd] = set()

    def stand(self) -> None:
        """Nobody stands before there is something to do."""

    def run(self, task: Task) -> None:
        """See `BackEnd.run`."""
        worker = self._start(next(self._numbers))
        with self._lock:
            self._working.add(worker)
        task.future.add_done_callback(lambda _: self._leave(worker))
        worker.run(task)

    def close(self, *, wait: bool) -> None:
        """Each ends by itself."""

    def interrupt(self) -> None:
        """See `BackEnd.interrupt`."""
        with self._lock:
            working = list(self._working)
        for worker in working:
            worker.interrupt()

    def _leave(self, worker: BackEnd) -> None:
        with self._lock:
            self._working.discard(worker)
        worker.close(wait=False)

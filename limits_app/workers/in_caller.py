"""Mode `sync`: calls run where they are made."""

from __future__ import annotations

from limits_app.workers.resident import Recipe, Resident
from limits_app.workers.task import Task

__all__ = ["InCaller"]


class InCaller:
    """A worker in the thread of whoever calls it; the future is done when the call returns."""

    def __init__(self, recipe: Recipe) -> None:
        self._resident = Resident(recipe)

    def stand(self) -> None:
        """See `BackEnd.stand`."""
        _ = self._resident.worker

    def run(self, task: Task) -> None:
        """See `BackEnd.run`."""
        interruption = task.perform(self._resident.perform)
        if interruption is not None:
            raise interruption

    def close(self, *, wait: bool) -> None:
        """Nothing runs but what callers wait for."""

    def interrupt(self) -> None:
        """See `BackEnd.interrupt`."""
        self._resident.pauses.end()

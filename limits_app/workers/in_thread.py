"""Mode `thread`: a worker in a thread of its own."""

from __future__ import annotations

from limits_app.workers.lane import Lane
from limits_app.workers.resident import Recipe, Resident
from limits_app.workers.task import Task

__all__ = ["InThread"]


class InThread:
    """A worker in a thread, which also makes it and performs one call after the other."""

    def __init__(self, recipe: Recipe) -> None:
        self._resident = Resident(recipe)
        self._lane = Lane(recipe.name, self._resident.perform)
        self._standing = self._lane.first(lambda: self._resident.worker)

    def stand(self) -> None:
        """See `BackEnd.stand`."""
        self._standing.result()

    def run(self, task: Task) -> None:
        """See `BackEnd.run`."""
        self._lane.run(task)

    def close(self, *, wait: bool) -> None:
        """See `BackEnd.close`."""
        self._lane.close(wait=wait)

    def interrupt(self) -> None:
        """A thread cannot be stopped: only its pauses are."""
        self._resident.pauses.end()

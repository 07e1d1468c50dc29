"""Mode `ray`: a worker in an actor of a Ray cluster."""

from __future__ import annotations

import pickle
from concurrent.futures import Future
from functools import partial
from typing import Any

import ray

from limits_app.workers.resident import Recipe, Resident
from limits_app.workers.task import Call, Task

__all__ = ["InRay"]


class InRay:
    """A worker in an actor, which performs one call after the other in their order.

    Ray must have been initialized (`ray.init`), or is so with what it finds.
    A call fails with an error of Ray's when its actor dies.
    """

    def __init__(self, recipe: Recipe) -> None:
        try:
            pickle.dumps(recipe)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ValueError(f"mode 'ray' cannot send the worker to another process: {error}") from error
        self._actor: Any = ray.remote(_Actor).remote(recipe)

    def stand(self) -> None:
        """See `BackEnd.stand`."""
        _raise(ray.get(self._actor.stand.remote()))

    def run(self, task: Task) -> None:
        """See `BackEnd.run`."""
        if task.begin():
            handed: Future[tuple[object, Exception | None]] = self._actor.perform.remote(task.call).future()
            handed.add_done_callback(partial(_settle, task))

    def close(self, *, wait: bool) -> None:  # noqa: ARG002 - whoever waited has all results by now
        """The actor ends with its last call, when nobody refers to it."""
        del self._actor

    def interrupt(self) -> None:
        """End the actor."""
        ray.kill(self._actor)


def _settle(task: Task, handed: Future[tuple[object, Exception | None]]) -> None:
    lost = handed.exception()
    result, error = (None, lost) if lost is not None else handed.result()
    if error is None:
        task.succeed(result)
    else:
        task.fail(error)


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


class _Actor:
    """The worker where it lives; errors travel as results, since Ray would wrap them in its own."""

    def __init__(self, recipe: Recipe) -> None:
        self._resident = Resident(recipe)

    def stand(self) -> Exception | None:
        """Make the worker."""
        try:
            _ = self._resident.worker
        except Exception as error:  # noqa: BLE001 - `stand` of the back end raises it
            return error
        return None

    def perform(self, call: Call) -> tuple[object, Exception | None]:
        """Make a call; gives its result and its error, one of them None."""
        try:
            return self._resident.perform(call), None
        except Exception as error:  # noqa: BLE001 - whoever waits for the future gets it
            return None, error

"""Mode `ray`: a worker in an actor of a Ray cluster."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import Any

import ray

from limits_app.workers.futures import Call, Task
from limits_app.workers.host import Host, WorkerSpec


class InRay:
    """A worker in an actor, which makes one call after the other.

    Call `ray.init` before; without it Ray initializes itself with its defaults.
    A call raises an error of Ray when its actor dies.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        spec.pickled("ray")
        self._actor: Any = ray.remote(_Actor).options(**spec.actor_options).remote(spec)

    def wait_until_ready(self) -> None:
        """See `BackEnd.wait_until_ready`."""
        error: Exception | None = ray.get(self._actor.make.remote())
        if error is not None:
            raise error

    def run(self, task: Task) -> None:
        """See `BackEnd.run`."""
        if task.begin():
            handed: Future[tuple[object, Exception | None]] = self._actor.perform.remote(task.call).future()
            handed.add_done_callback(partial(_settle, task))

    def close(self, *, wait: bool) -> None:  # noqa: ARG002 - all results have arrived when it is True
        """The actor ends after its last call, when it is no longer referenced."""
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


class _Actor:
    """The worker in the actor. Exceptions are returned, since Ray would wrap an exception that is raised."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._host = Host(spec)

    def make(self) -> Exception | None:
        """Make the worker; returns what its `__init__` raises."""
        try:
            _ = self._host.worker
        except Exception as error:  # noqa: BLE001 - `wait_until_ready` of the back end raises it
            return error
        return None

    def perform(self, call: Call) -> tuple[object, Exception | None]:
        """Make a call; returns its result and its exception, one of them None."""
        try:
            return self._host.perform(call), None
        except Exception as error:  # noqa: BLE001 - the future raises it
            return None, error

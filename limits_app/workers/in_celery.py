"""Mode `celery`: workers in the processes of Celery workers, wherever those are."""

from __future__ import annotations

import pickle
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import lru_cache, partial
from threading import Lock
from typing import Any, Final, cast

from celery import Celery, current_app, shared_task
from celery.exceptions import TimeoutError as NotYet

from limits_app.workers.resident import Recipe, Resident, travelling
from limits_app.workers.sealing import opened, sealed
from limits_app.workers.task import Call, Task

__all__ = ["InCelery", "perform_call"]

_MOST_AT_ONCE: Final = 64
"""How many calls of one worker are waited for at the same time, each by a thread; others wait in order."""
_LOOK_SECONDS: Final = 0.5
_KEPT: Final = 64


class InCelery:
    """A worker of which every process of Celery's workers makes one, when the first call comes to it."""

    def __init__(self, recipe: Recipe) -> None:
        self._app: Celery = current_app._get_current_object()
        try:
            self._recipe = sealed(recipe)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ValueError(f"mode 'celery' cannot send the worker to another process: {error}") from error
        self._executor = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix=recipe.name)
        self._lock = Lock()
        self._sent: dict[Task, Any] = {}
        self._interrupted = False

    def stand(self) -> None:
        """Nobody knows where the first call will go, so what `__init__` raises is an error of the calls."""

    def run(self, task: Task) -> None:
        """See `BackEnd.run`."""
        self._executor.submit(task.perform, partial(self._perform, task))

    def close(self, *, wait: bool) -> None:
        """See `BackEnd.close`."""
        self._executor.shutdown(wait=wait)

    def interrupt(self) -> None:
        """Revoke what was sent; where it runs, its process is terminated."""
        with self._lock:
            self._interrupted = True
            sent = [result.id for result in self._sent.values()]
        self._revoke(sent)

    def _perform(self, task: Task, call: Call) -> object:
        """Send a call and wait for its result; each thread has a connection of its own for that."""
        if self._interrupted:
            raise CancelledError
        sent = self._app.send_task(perform_call.name, (self._recipe, sealed(call)))
        with self._lock:
            self._sent[task] = sent
            is_late = self._interrupted
        if is_late:
            self._revoke([sent.id])
        try:
            result, error = cast("tuple[object, Exception | None]", opened(self._answer(sent)))
        finally:
            with self._lock:
                del self._sent[task]
            sent.forget()
        if error is not None:
            raise error
        return result

    def _revoke(self, sent: list[str]) -> None:
        if sent:
            self._app.control.revoke(sent, terminate=True)

    def _answer(self, sent: Any) -> str:
        while not self._interrupted:
            try:
                return str(sent.get(timeout=_LOOK_SECONDS))
            except NotYet:
                continue
        raise CancelledError


# ------------------------------------------------------------------------------------ in the process of Celery's worker


@shared_task(name="limits_app.workers.perform_call", ignore_result=False)  # type: ignore[untyped-decorator]  # no types
def perform_call(recipe: str, call: str) -> str:
    """Make a call on the worker that this process has of a recipe; gives its result and its error, one of them None."""
    try:
        return sealed((_resident(recipe).perform(cast("Call", opened(call))), None))
    except Exception as error:  # noqa: BLE001 - whoever waits for the future gets it
        return sealed((None, travelling(error)))


@lru_cache(maxsize=_KEPT)
def _resident(recipe: str) -> Resident:
    return Resident(cast("Recipe", opened(recipe)))

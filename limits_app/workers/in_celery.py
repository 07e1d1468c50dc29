"""Mode `celery`: workers in the processes of Celery workers, wherever those are."""

from __future__ import annotations

import base64
import pickle
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, Final, cast

from celery import Celery, shared_task
from celery.app import app_or_default
from celery.exceptions import TimeoutError as NotYet
from django.core.signing import Signer

from limits_app.engine.locks import RLock
from limits_app.workers.futures import Call, Task
from limits_app.workers.host import Host, WorkerSpec, picklable

_MAX_THREADS: Final = 64
"""For how many results of one worker threads wait at the same time; further calls wait in order."""
_POLL_SECONDS: Final = 0.5
_MAX_HOSTS: Final = 64
_SALT: Final = "limits_app.workers"


class InCelery:
    """A worker that each process of Celery's workers makes for itself, when it receives the first call."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._app: Celery = app_or_default()
        self._spec = signed(spec.pickled("celery"))
        self._executor = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix=spec.name)
        self._lock = RLock()
        self._sent: dict[Task, Any] = {}
        self._interrupted = False

    def wait_until_ready(self) -> None:
        """Nothing to wait for: what `__init__` raises is raised by the calls."""

    def run(self, task: Task) -> None:
        """See `BackEnd.run`."""
        self._executor.submit(task.perform, partial(self._perform, task))

    def close(self, *, wait: bool) -> None:
        """See `BackEnd.close`."""
        self._executor.shutdown(wait=wait)

    def interrupt(self) -> None:
        """Revoke the calls that were sent; a process that runs one is terminated."""
        with self._lock:
            self._interrupted = True
            sent = [result.id for result in self._sent.values()]
        self._revoke(sent)

    def _perform(self, task: Task, call: Call) -> object:
        """Send a call and wait for its result."""
        if self._interrupted:
            raise CancelledError
        sent = self._app.send_task(perform_call.name, (self._spec, signed(pickle.dumps(call))))
        with self._lock:
            self._sent[task] = sent
            is_late = self._interrupted
        if is_late:
            self._revoke([sent.id])
        try:
            result, error = cast("tuple[object, Exception | None]", unsigned(self._answer(sent)))
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
                return str(sent.get(timeout=_POLL_SECONDS))
            except NotYet:
                continue
        raise CancelledError


# ------------------------------------------------------------------------------------ in the process of Celery's worker


@shared_task(name="limits_app.workers.perform_call", ignore_result=False)  # type: ignore[untyped-decorator]  # no types
def perform_call(spec: str, call: str) -> str:
    """Make a call on the worker of this process; returns its result and its exception, one of them None."""
    try:
        return signed(pickle.dumps((_host(spec).perform(cast("Call", unsigned(call))), None)))
    except Exception as error:  # noqa: BLE001 - the future raises it
        return signed(pickle.dumps((None, picklable(error))))


@lru_cache(maxsize=_MAX_HOSTS)
def _host(spec: str) -> Host:
    return Host(cast("WorkerSpec", unsigned(spec)))


# ------------------------------------------------------------------------------------ pickles, signed


def signed(pickled: bytes) -> str:
    """Return a pickle as text, signed with the secret key of the site, since unpickling runs what the text says."""
    return Signer(salt=_SALT).sign(base64.b64encode(pickled).decode())


def unsigned(text: str) -> object:
    """Return the pickled object; raises BadSignature for text that was not signed by this site."""
    return pickle.loads(base64.b64decode(Signer(salt=_SALT).unsign(text)))  # noqa: S301 - the signature was checked

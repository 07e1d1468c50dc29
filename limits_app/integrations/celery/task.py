"""`LimitedTask` and `@limited_task`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import isasyncgenfunction, isgeneratorfunction
from time import sleep
from typing import Any, Final

from asgiref.sync import iscoroutinefunction
from celery import shared_task, states
from celery.contrib.django.task import DjangoTask
from celery.exceptions import Ignore, Reject, Retry
from kombu.exceptions import OperationalError

from limits_app import services
from limits_app.engine.errors import LimitExceeded, LimitsError, NeverAdmissible, StoreUnavailable
from limits_app.engine.outcome import Outcome
from limits_app.integrations.celery.demand import AmountOfTask, Demand, Payer, Priority
from limits_app.integrations.celery.task_limits import OUTSIDE_TASK, TaskLimits, current_limits, entered
from limits_app.services import Share
from limits_app.services.integration import Acquisition, GivenAmount
from limits_app.services.several import foresee
from limits_app.services.task_waiting import Waiting, a_little_later

REQUEUED: Final = "limits_requeued"
"""The message header that counts how often a task was queued again."""
PLACES: Final = "limits_places"
"""The message header with the places of a task in the lines of its limits."""
_DEFAULT_VISIBILITY_SECONDS: Final = 1800.0
"""The time after which brokers deliver an unacknowledged message again, where `visibility_timeout` is not set."""
_DEFAULT_RETRY_SECONDS: Final = 1.0


class TaskRefused(LimitsError):
    """Waiting does not help: the task requests more than a limit can ever admit, or its entity is blocked."""


class LimitedTask(DjangoTask):  # type: ignore[misc]  # Celery ships no types
    """A task that runs when its limits (`limited`) admit it; `self.limits` is what it holds.

    A rejected task is queued again, as the same task, for the time at which capacity is expected. That uses up no
    retry, and occupies no worker for longer than half a second. The delay never exceeds half of the broker's visibility
    timeout, after which the broker would deliver the message twice; a task that is still rejected then is queued once
    more.
    What a task holds is settled when it ends, however it ends, so nothing is held between retries.
    A LimitExceeded or StoreUnavailable that leaves the body queues the task again too, also with `autoretry_for`.
    Fails with TaskRefused where waiting does not help; Celery logs that without a traceback. Calls that are eager or
    direct wait instead, up to `patience_seconds` of the demand, and raise LimitTimeout, or LimitExceeded immediately
    for a blocked entity. Raises TypeError for a body that Celery cannot run: a coroutine or a generator.
    """

    abstract = True
    run: Callable[..., Any]
    limited: Demand | None = None
    throws = (TaskRefused,)
    longest_countdown: float | None = None
    """Seconds that a message may wait in a worker; None for half of the broker's visibility timeout."""

    def __init__(self) -> None:
        super().__init__()
        _check_body(self.run)

    @property
    def limits(self) -> TaskLimits:
        """What this run of the task holds; outside of a run, limits that admit everything."""
        return current_limits()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run when admitted; called by Celery's workers, and by code that calls the task as a function."""
        # A task that calls itself finds the request of the outer call.
        direct = self.request.called_directly or current_limits().request is self.request
        if direct or self.request.is_eager:
            with entered(self._limits(args, kwargs, self._wait_for)):
                return super().__call__(*args, **kwargs) if direct else self.run(*args, **kwargs)
        self._skip_if_done()
        try:
            with entered(self._limits(args, kwargs, self._acquire_or_requeue)):
                return self.run(*args, **kwargs)
        except (LimitExceeded, StoreUnavailable) as error:
            raise self._after_rejection(error) from error

    def retry(self, *args: Any, **options: Any) -> Any:
        """Retry as Celery does, except after a rejection: that queues the task again, not before `countdown`.

        So rejections use up no automatic retries (`autoretry_for`).
        """
        error, countdown = options.get("exc"), options.get("countdown")
        if not isinstance(error, LimitExceeded | StoreUnavailable):
            return super().retry(*args, **options)
        if countdown is None or self.request.called_directly or self.request.is_eager:
            raise error
        raise self._after_rejection(error, countdown) from error

    def _after_rejection(self, error: LimitExceeded | StoreUnavailable, countdown: float = 0) -> TaskRefused | Retry:
        """Return the exception that ends a run after a rejection in its body, and queue the task again."""
        if isinstance(error, NeverAdmissible) or (isinstance(error, LimitExceeded) and _is_final(error.outcome)):
            return TaskRefused(str(error))
        retry_after = error.outcome.retry_after if isinstance(error, LimitExceeded) else error.retry_after
        return self._requeued(str(error), a_little_later(max(countdown, retry_after or _DEFAULT_RETRY_SECONDS)))

    def _limits(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], acquire: Callable[[Share], Acquisition]
    ) -> TaskLimits:
        if self.limited is None:
            return TaskLimits(OUTSIDE_TASK.acquisition, request=self.request)
        share = self.limited.of_call(self.run, args, kwargs)
        return TaskLimits(acquire(share), share, self.request)

    def _wait_for(self, share: Share) -> Acquisition:
        patience = None if self.limited is None else self.limited.patience_seconds
        return services.acquire(
            share.resource,
            entity=share.entity,
            requested=share.requested,
            timeout=patience,
            priority=share.priority,
        )

    def _acquire_or_requeue(self, share: Share) -> Acquisition:
        waiting = Waiting(self._headers.get(PLACES, {}))
        while True:
            why = f"other tasks wait for {share.resource}"
            seconds = foresee(share, waiting.seconds_to_turn)
            if not seconds:
                acquisition = services.try_acquire(
                    share.resource, entity=share.entity, requested=share.requested, priority=share.priority
                )
                if acquisition:
                    self._headers.pop(PLACES, None)  # a retry is not this attempt
                    return acquisition
                if _is_final(acquisition.outcome):
                    raise TaskRefused(acquisition.outcome.summary())
                why = str(LimitExceeded.of(acquisition))
                seconds = waiting.seconds_to_retry(acquisition, self._times_requeued)
            if not waiting.pauses(seconds):
                raise self._requeued(why, seconds, waiting)
            sleep(seconds)

    @property
    def _headers(self) -> dict[str, Any]:
        """The headers of the message that came with the task."""
        return self.request.headers or {}

    @property
    def _times_requeued(self) -> int:
        return int(self._headers.get(REQUEUED, 0))

    @property
    def _longest_countdown(self) -> float:
        if self.longest_countdown is not None:
            return self.longest_countdown
        visibility = self.app.conf.broker_transport_options.get("visibility_timeout")
        return float(visibility or _DEFAULT_VISIBILITY_SECONDS) / 2

    def _requeued(self, why: str, seconds: float, waiting: Waiting | None = None) -> Retry:
        """Send the same task again, to run later; return the exception that ends this run of it."""
        countdown = min(seconds, self._longest_countdown)
        headers = {**self._headers, REQUEUED: self._times_requeued + 1}
        if waiting is not None and waiting.places:
            headers[PLACES] = waiting.places
        again = self.signature_from_request(headers=headers, countdown=countdown)
        try:
            again.apply_async()
        except OperationalError as lost:
            if self.acks_late:  # the broker delivers the unacknowledged message again when it is back
                raise Reject(lost, requeue=True) from lost
            raise
        return Retry(why, when=countdown, sig=again)

    def _skip_if_done(self) -> None:
        """Raise Ignore for a second message of a task that is done, where Celery is to run no message twice.

        A worker that dies between sending a task again and acknowledging it leaves two messages.
        """
        conf = self.app.conf
        checks = self._times_requeued and self.acks_late and conf.worker_deduplicate_successful_tasks
        if checks and self.backend.persistent and self.AsyncResult(self.request.id).state == states.SUCCESS:
            raise Ignore


def _check_body(run: Callable[..., Any]) -> None:
    """Raise TypeError for a body that a worker would call and never run."""
    if iscoroutinefunction(run):
        kind, instead = "a coroutine", "make it a plain function that runs it with asgiref's async_to_sync"
    elif isgeneratorfunction(run) or isasyncgenfunction(run):
        kind, instead = "a generator", "go through its items in a plain function, and return what the task gives"
    else:
        return
    name = getattr(run, "__qualname__", repr(run))
    raise TypeError(f"Celery cannot run {name} as the body of a task, since it is {kind}: {instead}")


def _is_final(outcome: Outcome) -> bool:
    """Whether waiting does not help, as for a blocked entity."""
    return outcome.never or outcome.blocked


def limited_task(
    resource: str,
    *,
    entity: Payer = None,
    requested: Mapping[str, AmountOfTask] | Callable[..., Mapping[str, GivenAmount]] | None = None,
    patience_seconds: float | None = 60.0,
    limit_priority: Priority = None,
    app: Any = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """Make a function a task that runs when its limits admit it; the arguments are those of `Demand`.

    `limit_priority` is the `priority` of `Demand`: `priority` is that of messages, an option of Celery.
    `app` is the Celery application (None: as with `shared_task`), and `options` are those of its `task`.
    Raises TypeError for a coroutine or a generator, which Celery cannot run.
    """
    demand = Demand(resource, entity, requested, patience_seconds, limit_priority)
    throws = (TaskRefused, *options.pop("throws", ()))
    make: Any = shared_task if app is None else app.task
    make_task = make(**{"base": LimitedTask, "limited": demand, "throws": throws} | options)

    def decorate(run: Callable[..., Any]) -> Any:
        _check_body(run)  # now, since Celery makes the task when it is first needed
        return make_task(run)

    return decorate

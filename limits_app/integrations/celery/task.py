"""`LimitedTask` and `@limited_task`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import Any, Final

from asgiref.sync import iscoroutinefunction
from celery import shared_task, states
from celery.contrib.django.task import DjangoTask
from celery.exceptions import Ignore, Reject, Retry
from kombu.exceptions import OperationalError

from limits_app import services
from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.errors import LimitExceeded, LimitsError, NeverAdmissible, StoreUnavailable
from limits_app.core.outcome import Outcome
from limits_app.integrations.celery.demand import Demand, Payer, Price
from limits_app.integrations.celery.line import jittered, seconds_to_wait
from limits_app.integrations.celery.task_limits import NOWHERE, TaskLimits, entered, limits_here
from limits_app.services import Share

__all__ = ["LimitedTask", "TaskRefused", "limited_task"]

REQUEUED: Final = "limits_requeued"
"""The header that counts how often a task was queued again."""
_VISIBILITY_SECONDS: Final = 1800.0
"""After so long, unless it says something else, a broker may give what nobody has acknowledged to another worker."""
_STORE_DOWN_SECONDS: Final = 1.0


class TaskRefused(LimitsError):
    """No waiting helps: the task asks for more than a limit can ever admit, or whoever it is for is blocked."""


class _Refusal(Ignore):  # type: ignore[misc]  # Celery ships no types
    """A refusal on its way out of the body, as something that automatic retries (`autoretry_for`) let pass."""

    def __init__(self, error: LimitExceeded | StoreUnavailable) -> None:
        super().__init__(str(error))
        self.error = error


class LimitedTask(DjangoTask):  # type: ignore[misc]  # Celery ships no types
    """A task that runs when limits admit what it demands (`limited`), with `self.limits` at hand.

    A refused task is queued again, as the same task, for the time at which it is its turn; that is no retry: none is
    used up, and no worker is kept waiting. The time is never so far away that the broker would take the task
    for lost: who is still refused then is queued once more.
    What it held is settled when it ends, however it ends, so that nothing is held between retries.
    A LimitExceeded or StoreUnavailable that leaves the task queues it again too, whatever it is retried for by itself
    (`autoretry_for`).
    Fails with TaskRefused where no waiting helps. Calls that are eager or direct wait instead, up to the patience of
    the demand, and raise LimitTimeout, or LimitExceeded at once where no waiting helps.
    Raises TypeError for a body that Celery cannot run: a coroutine or a generator.
    """

    abstract = True
    run: Callable[..., Any]
    limited: Demand | None = None
    longest_countdown: float | None = None
    """Seconds that a message may wait in a worker; None for half of what the broker grants."""

    def __init__(self) -> None:
        super().__init__()
        _check_body(self.run)
        # Before Celery wraps it into automatic retries.
        self.run = _telling(self.run)

    @property
    def limits(self) -> TaskLimits:
        """What this run of the task holds; outside of a run, what admits everything."""
        return limits_here()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run when admitted; called by Celery's workers, and by anybody else as a function."""
        # A task that calls itself finds the request of the outer call.
        direct = self.request.called_directly or limits_here().request is self.request
        if direct or self.request.is_eager:
            limits = self._limits(args, kwargs, self._acquired)
            with entered(limits):
                return _heard(super().__call__ if direct else self.run, args, kwargs)
        self._check_that_it_is_not_done()
        try:
            with entered(self._limits(args, kwargs, self._tried)):
                return _heard(self.run, args, kwargs)
        except LimitExceeded as error:
            if isinstance(error, NeverAdmissible) or _is_for_ever(error.outcome):
                raise TaskRefused(str(error)) from error
            raise self._again(error, error.outcome.retry_after or _STORE_DOWN_SECONDS) from error
        except StoreUnavailable as error:
            raise self._again(error, error.retry_after or _STORE_DOWN_SECONDS) from error

    def _limits(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], ask: Callable[[Share], Acquisition]
    ) -> TaskLimits:
        if self.limited is None:
            return TaskLimits(NOWHERE.acquisition, request=self.request)
        share = self.limited.of_call(self.run, args, kwargs)
        return TaskLimits(ask(share), share, self.request)

    def _acquired(self, share: Share) -> Acquisition:
        patience = None if self.limited is None else self.limited.patience_seconds
        return services.acquire(share.resource, entity=share.entity, requested=share.requested, timeout=patience)

    def _tried(self, share: Share) -> Acquisition:
        """Ask, or queue the task again."""
        acquisition = services.try_acquire(share.resource, entity=share.entity, requested=share.requested)
        if acquisition:
            return acquisition
        if _is_for_ever(acquisition.outcome):
            raise TaskRefused(acquisition.outcome.summary())
        raise self._again(LimitExceeded.of(acquisition), seconds_to_wait(acquisition, self._times_requeued))

    @property
    def _times_requeued(self) -> int:
        return int((self.request.headers or {}).get(REQUEUED, 0))

    @property
    def _longest_countdown(self) -> float:
        if self.longest_countdown is not None:
            return self.longest_countdown
        granted = self.app.conf.broker_transport_options.get("visibility_timeout")
        return float(granted or _VISIBILITY_SECONDS) / 2

    def _to_wait(self, seconds: float) -> Mapping[str, Any]:
        """The options with which a message waits so long: in the broker where it can do so, otherwise in a worker."""
        from limits_app.integrations.celery_redis import Transport, held_back

        headers = {**(self.request.headers or {}), REQUEUED: self._times_requeued + 1}
        if issubclass(self.app.connection_for_write().get_transport_cls(), Transport):
            return {"headers": headers | held_back(seconds)}
        return {"headers": headers, "countdown": seconds}

    def _again(self, error: LimitsError, seconds: float) -> Retry:
        """Send the same task again, to be run later; gives what ends this run of it without a result."""
        countdown = jittered(seconds, self._longest_countdown)
        again = self.signature_from_request(**self._to_wait(countdown))
        try:
            again.apply_async()
        except OperationalError as lost:
            # The broker gives an unacknowledged message to somebody when it is back.
            if self.acks_late:
                raise Reject(lost, requeue=True) from lost
            raise
        return Retry(str(error), when=countdown, sig=again)

    def _check_that_it_is_not_done(self) -> None:
        """Where Celery is to run no message twice, a task that was queued again is none either.

        A worker that dies between sending a task again and acknowledging it leaves two of it.
        """
        conf = self.app.conf
        checks = self._times_requeued and self.acks_late and conf.worker_deduplicate_successful_tasks
        if checks and self.backend.persistent and self.AsyncResult(self.request.id).state == states.SUCCESS:
            raise Ignore


def _telling(run: Callable[..., Any]) -> Callable[..., Any]:
    """A body whose refusals Celery does not mistake for failures."""

    @wraps(run)
    def telling(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except (LimitExceeded, StoreUnavailable) as error:
            raise _Refusal(error) from error

    return telling


def _check_body(run: Callable[..., Any]) -> None:
    """Refuse a body that a worker would call and never run, holding nothing by the time that somebody else did."""
    if iscoroutinefunction(run):
        kind, instead = "a coroutine", "make it a plain function that runs it with asgiref's async_to_sync"
    elif isgeneratorfunction(run) or isasyncgenfunction(run):
        kind, instead = "a generator", "go through its items in a plain function, and return what the task gives"
    else:
        return
    name = getattr(run, "__qualname__", repr(run))
    raise TypeError(f"Celery cannot run {name} as the body of a task, since it is {kind}: {instead}")


def _heard(run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run a body; raises its refusals as what they are."""
    try:
        return run(*args, **kwargs)
    except _Refusal as refusal:
        error = refusal.error
    raise error


def _is_for_ever(outcome: Outcome) -> bool:
    """Whether no waiting helps, as for whoever is blocked."""
    return outcome.never or any(status.capacity == 0 for status in outcome.violations)


def limited_task(
    resource: str,
    *,
    entity: Payer = None,
    requested: Mapping[str, Price] | Callable[..., Mapping[str, Amount]] | None = None,
    patience_seconds: float | None = 60.0,
    app: Any = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """Make a task of a function that runs when limits admit it: the words are those of `Demand`.

    `app` is the Celery application (None: as with `shared_task`), and `options` are those of its `task`.
    Raises TypeError for a coroutine or a generator, which Celery cannot run.
    """
    demand = Demand(resource, entity, requested, patience_seconds)
    make: Any = shared_task if app is None else app.task
    decorator: Callable[[Callable[..., Any]], Any] = make(**{"base": LimitedTask, "limited": demand} | options)

    def decorate(run: Callable[..., Any]) -> Any:
        _check_body(run)  # now, since Celery makes the task when it is first needed
        return decorator(run)

    return decorate

"""What a task finds in `self.limits`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from limits_app import services
from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.errors import InvalidRequest, StoreUnavailable
from limits_app.core.limit_set import LimitSet
from limits_app.core.outcome import Outcome
from limits_app.services import Share

__all__ = ["NOWHERE", "TaskLimits", "entered", "limits_here"]

logger = logging.getLogger("limits_app")


class TaskLimits:
    """What a running task holds, and how it reports what it used.

    `request` is that of the task, and None outside of any.
    """

    __slots__ = ("acquisition", "request", "share")

    def __init__(self, acquisition: Acquisition, share: Share | None = None, request: object = None) -> None:
        self.acquisition = acquisition
        self.share = share
        self.request = request

    def __repr__(self) -> str:
        return f"<TaskLimits of {self.resource} for {self.entity}>"

    @property
    def resource(self) -> str | None:
        """Of what the task was charged; None where it demands nothing."""
        return None if self.share is None else self.share.resource

    @property
    def entity(self) -> str | None:
        """Who was charged; None is the site itself."""
        return None if self.share is None else self.share.entity

    @property
    def outcome(self) -> Outcome:
        """What was decided, and why."""
        return self.acquisition.outcome

    @property
    def config(self) -> dict[str, object]:
        """A copy of the configuration of the set that admitted the task, such as the member of a pool."""
        return self.acquisition.config

    def update(self, usage: Mapping[str, Amount]) -> None:
        """Report what was really used, by key; what is not reported counts as requested. See `Acquisition.update`."""
        self.acquisition.update(usage)

    def release(self) -> None:
        """Give back what is held before the task ends; again does nothing."""
        self.acquisition.release()

    def acquire(
        self, requested: Mapping[str, Amount] | None = None, *, resource: str | None = None, entity: str | None = None
    ) -> Acquisition:
        """Acquire more, by default of the task's own resource for its own entity; to be released like any other.

        Raises LimitExceeded, which queues the task again when it leaves it: ask before you do what should be done once.
        """
        return services.acquire(*self._named(resource), entity=entity or self.entity, requested=requested)

    def try_acquire(
        self, requested: Mapping[str, Amount] | None = None, *, resource: str | None = None, entity: str | None = None
    ) -> Acquisition:
        """`acquire`, but a refusal is a falsy acquisition whose `outcome` says why."""
        return services.try_acquire(*self._named(resource), entity=entity or self.entity, requested=requested)

    def _named(self, resource: str | None) -> tuple[str]:
        name = resource or self.resource
        if name is None:
            raise InvalidRequest("the task demands nothing by itself: say of which resource")
        return (name,)


NOWHERE: Final = TaskLimits(LimitSet().try_acquire())
_HERE: Final[ContextVar[TaskLimits]] = ContextVar("limits_app_task", default=NOWHERE)


def limits_here() -> TaskLimits:
    """The limits of the task that runs here; outside of any, what admits everything."""
    return _HERE.get()


@contextmanager
def entered(limits: TaskLimits) -> Iterator[None]:
    """Have a task run with its limits, and settle them at its end.

    When the task raises, which a retry does too, what it did not report is given back where that can be done.
    """
    acquisition, token = limits.acquisition, _HERE.set(limits)
    acquisition.__enter__()
    try:
        yield
    except BaseException as error:
        acquisition.__exit__(type(error), error, error.__traceback__)
        raise
    else:
        _settle(acquisition)
    finally:
        _HERE.reset(token)


def _settle(acquisition: Acquisition) -> None:
    """The work is done, so it must not fail now: what the store does not hear of comes back with its lease."""
    try:
        acquisition.release()
    except StoreUnavailable:
        logger.warning("what a task held could not be settled", exc_info=True)

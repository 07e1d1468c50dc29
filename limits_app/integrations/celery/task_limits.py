"""`self.limits`: what a running task holds."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from limits_app import services
from limits_app.engine.errors import InvalidRequest, StoreUnavailable
from limits_app.engine.outcome import Outcome
from limits_app.services import Share
from limits_app.services.held_charges import hold_nothing
from limits_app.services.integration import Acquisition, GivenAmount

logger = logging.getLogger("limits_app")


class TaskLimits:
    """What a running task holds, and how it reports what it used; what it acquires has its priority.

    `request` is the Celery request of the task, None outside of a task.
    `resource` and `entity` are those that were charged; None where the task has no limits, or for the site itself.
    """

    __slots__ = ("acquisition", "entity", "priority", "request", "resource")

    def __init__(self, acquisition: Acquisition, share: Share | None = None, request: object = None) -> None:
        self.acquisition = acquisition
        self.resource = None if share is None else share.resource
        self.entity = None if share is None else share.entity
        self.priority = None if share is None else share.priority
        self.request = request

    def __repr__(self) -> str:
        return f"<TaskLimits of {self.resource} for {self.entity}>"

    @property
    def outcome(self) -> Outcome:
        """The decision and its reasons."""
        return self.acquisition.outcome

    @property
    def config(self) -> dict[str, object]:
        """A copy of the configuration of the set that admitted the task, such as the member of a pool."""
        return self.acquisition.config

    def update(self, usage: Mapping[str, GivenAmount]) -> None:
        """Report the amounts that were used, by key; others count as requested.

        Raises what `Acquisition.update` raises.
        """
        self.acquisition.update(usage)

    def release(self) -> None:
        """Release the acquisition before the task ends; later calls do nothing."""
        self.acquisition.release()

    def acquire(
        self,
        requested: Mapping[str, GivenAmount] | None = None,
        *,
        resource: str | None = None,
        entity: str | None = None,
        priority: str | None = None,
    ) -> Acquisition:
        """Acquire more, by default of the task's own resource for its own entity; use it in a `with` block.

        Raises LimitExceeded, which queues the task again when it leaves the body: acquire before side effects.
        Raises InvalidRequest where the task has no resource and none is named.
        """
        return services.acquire(
            self._resource(resource),
            entity=entity or self.entity,
            requested=requested,
            priority=priority or self.priority,
        )

    def try_acquire(
        self,
        requested: Mapping[str, GivenAmount] | None = None,
        *,
        resource: str | None = None,
        entity: str | None = None,
        priority: str | None = None,
    ) -> Acquisition:
        """`acquire`, where a rejection is a falsy acquisition with the reasons in `outcome`."""
        return services.try_acquire(
            self._resource(resource),
            entity=entity or self.entity,
            requested=requested,
            priority=priority or self.priority,
        )

    def _resource(self, named: str | None) -> str:
        resource = named or self.resource
        if resource is None:
            raise InvalidRequest("the task has no limits: name a resource, as in acquire(resource='llm')")
        return resource


OUTSIDE_TASK: Final = TaskLimits(hold_nothing())
_CURRENT: Final[ContextVar[TaskLimits]] = ContextVar("limits_app_task", default=OUTSIDE_TASK)


def current_limits() -> TaskLimits:
    """Return the limits of the task that runs here; outside of a task, limits that admit everything."""
    return _CURRENT.get()


@contextmanager
def entered(limits: TaskLimits) -> Iterator[None]:
    """Run a task with its limits, and settle them at its end.

    When the task raises, which a retry does too, amounts that were not reported are refunded where the algorithm can.
    """
    acquisition, token = limits.acquisition, _CURRENT.set(limits)
    acquisition.__enter__()
    try:
        yield
    except BaseException as error:
        acquisition.__exit__(type(error), error, error.__traceback__)
        raise
    else:
        _settle(acquisition)
    finally:
        _CURRENT.reset(token)


def _settle(acquisition: Acquisition) -> None:
    """Release without failing a task whose work is done; permits that the store keeps end with their lease."""
    try:
        acquisition.release()
    except StoreUnavailable:
        logger.warning("the permits of a task could not be settled", exc_info=True)

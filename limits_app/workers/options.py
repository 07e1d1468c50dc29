"""Options: how workers are to run, checked before any of them is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, ParamSpec, TypeVar, cast

from limits_app.workers.back_ends import BackEnd, mode_of
from limits_app.workers.balancing import balancer_of
from limits_app.workers.granting import Grant, check_reach
from limits_app.workers.on_demand import OnDemand
from limits_app.workers.pool import WorkerPool
from limits_app.workers.resident import Recipe
from limits_app.workers.retrying import Retry
from limits_app.workers.submission_queue import SubmissionQueue

if TYPE_CHECKING:
    from limits_app.workers.worker import Worker

__all__ = ["WorkerOptions"]

P = ParamSpec("P")
W = TypeVar("W", bound="Worker")


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(Generic[P, W]):
    """What `Worker.options` was told; `init` makes workers of it, as often as it is called.

    Raises ValueError for options that cannot be.
    """

    kind: Callable[P, W]
    mode: str
    max_workers: int | None
    grant: Grant
    retry: Retry
    max_queued_tasks: int | Literal["by_mode"] | None
    on_demand: bool
    load_balancing: str
    blocking: bool

    def __post_init__(self) -> None:
        mode_of(self.mode)
        balancer_of(self.load_balancing)
        _check_count("max_workers", self.max_workers)
        if self.max_queued_tasks != "by_mode":
            _check_count("max_queued_tasks", self.max_queued_tasks)
        taken = {name for name in vars(WorkerPool) if not name.startswith("_")}.intersection(dir(self.worker_class))
        if taken:
            raise ValueError(f"{self.worker_class.__name__} cannot have a method {min(taken)!r}: its pool has one")

    @property
    def capacity(self) -> int | None:
        """How many tasks of a worker are with its back end at the same time."""
        mode = mode_of(self.mode)
        if not mode.bounded or self.blocking:
            return None
        return mode.most_queued if self.max_queued_tasks == "by_mode" else self.max_queued_tasks

    def init(self, *args: P.args, **kwargs: P.kwargs) -> WorkerPool[W]:
        """Make the workers, each with these arguments, and return when all of them are made.

        Raises what the `__init__` of a worker raises, and then leaves none behind.
        """
        mode = mode_of(self.mode)
        if mode.wide:
            check_reach(self.grant, self.mode)
        back_end = mode.back_end()

        def start(worker_index: int) -> BackEnd:
            return back_end(Recipe(self.worker_class, args, kwargs, self.grant, self.retry, worker_index))

        if self.on_demand:
            demand = OnDemand(start)
            bounded = mode_of(self.mode).bounded and not self.blocking
            queue = SubmissionQueue(demand.run, self.max_workers if bounded else None)
            return WorkerPool(self, [demand], [queue])
        workers = self._standing(start)
        return WorkerPool(self, workers, [SubmissionQueue(worker.run, self.capacity) for worker in workers])

    @property
    def worker_class(self) -> type[W]:
        """The class of the workers."""
        return cast("type[W]", self.kind)

    def _standing(self, start: Callable[[int], BackEnd]) -> list[BackEnd]:
        """Start all workers side by side, then wait for each."""
        workers: list[BackEnd] = []
        try:
            workers.extend(start(index) for index in range(self.max_workers or 1))
            for worker in workers:
                worker.stand()
        except BaseException:
            for worker in workers:
                worker.interrupt()
                worker.close(wait=False)
            raise
        return workers


def _check_count(name: str, number: int | None) -> None:
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
        raise ValueError(f"{name} must be None or a whole number, 1 or more, not {number!r}")

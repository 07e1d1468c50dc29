"""The worker: the base class of what is to run elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, ParamSpec, Self, TypeVar

from limits_app.core.limit_set import LimitSet, Unlimited
from limits_app.core.limits import Limit
from limits_app.workers.granting import Acquirable, grant_of
from limits_app.workers.options import WorkerOptions
from limits_app.workers.retrying import Retry, RetryAlgorithm, RetryOn, monotonic_us

__all__ = ["Worker"]

P = ParamSpec("P")
W = TypeVar("W", bound="Worker")


class Worker:
    """Inherit from it, and let your public methods run elsewhere: `Mine.options(mode="thread").init(...).method(...)`.

    `self.limits` is always there, also in `__init__`, and admits everything unless the options say otherwise.
    Made without options, it is an object like any other.
    """

    limits: Acquirable

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: ARG004 - they are for `__init__`
        """A worker without limits."""
        worker = super().__new__(cls)
        worker.limits = Unlimited()
        return worker

    def __init__(self) -> None:
        """Nothing; a worker that takes arguments has its own, which need not call this one."""

    @classmethod
    def options(
        cls: Callable[P, W],
        *,
        mode: str = "sync",
        max_workers: int | None = None,
        limits: Acquirable | Iterable[Limit] | Iterable[LimitSet] | None = None,
        num_retries: int = 0,
        retry_on: RetryOn = Exception,
        retry_algorithm: str = RetryAlgorithm.EXPONENTIAL,
        retry_wait: float = 1.0,
        retry_jitter: float = 0.3,
        max_queued_tasks: int | Literal["by_mode"] | None = "by_mode",
        on_demand: bool = False,
        load_balancing: str = "round_robin",
        blocking: bool = False,
        clock: Callable[[], int] = monotonic_us,
    ) -> WorkerOptions[P, W]:
        """How workers of this class are to run; `init(...)` of the result makes them. Raises ValueError.

        - `mode`: `sync`, `thread`, `process`, `asyncio`, `celery` or `ray`; `max_workers`: how many (1), or how many at
          once on demand (any number).
        - `limits`: limits (each worker has them for itself), a limit set, limit sets (each worker has a pool of them),
          or a limit pool.
        - `num_retries`, `retry_on` (types of exceptions, or a callable that gets the exception, the attempt and the
          elapsed seconds), `retry_algorithm`, `retry_wait` (seconds), `retry_jitter` (a share of a pause).
        - `max_queued_tasks`: how many calls of a worker are with it at the same time, while the others wait in order;
          None for all of them, which is also the default except for `process` (100) and for `celery` and `ray` (3).
        - `on_demand`: a new worker for every call; `load_balancing`: `round_robin`, `random` or `least_loaded`.
        - `blocking`: calls return results instead of futures, and do not queue.
        - `clock`: microseconds, by which retries pause.
        """
        retry = Retry(
            times=num_retries,
            on=retry_on,
            algorithm=retry_algorithm,
            wait=retry_wait,
            jitter=retry_jitter,
            clock=clock,
        )
        return WorkerOptions(
            kind=cls,
            mode=mode,
            max_workers=max_workers,
            grant=grant_of(limits),
            retry=retry,
            max_queued_tasks=max_queued_tasks,
            on_demand=on_demand,
            load_balancing=load_balancing,
            blocking=blocking,
        )

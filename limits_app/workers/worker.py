"""The base class of workers, and the options with which they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, ParamSpec, Self, TypeVar, cast

from limits_app.acquiring import LimitSet, RetryAlgorithm, RetryOn, RetryPolicy, Unlimited
from limits_app.engine import monotonic_us
from limits_app.engine.limits import LimitDefinition
from limits_app.workers.host import WorkerSpec
from limits_app.workers.limits import Acquirable, WorkerLimits
from limits_app.workers.modes import BackEnd, ExecutionMode, OnDemand, mode_named
from limits_app.workers.pool import WorkerPool
from limits_app.workers.queue import SubmissionQueue, balancer_named

P = ParamSpec("P")
W = TypeVar("W", bound="Worker")


class Worker:
    """Base class: `Mine.options(mode="thread").init(...)` runs the public methods of a subclass in a thread.

    `self.limits` is always set, also in `__init__`; without the option `limits` it allows everything.
    An instance that is made without `options` is a plain object.
    """

    limits: Acquirable

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: ARG004 - they are for `__init__`
        """A worker without limits."""
        worker = super().__new__(cls)
        worker.limits = Unlimited()
        return worker

    def __init__(self) -> None:
        """Do nothing; a subclass need not call this."""

    @classmethod
    def options(
        cls: Callable[P, W],
        *,
        mode: str = ExecutionMode.SYNC,
        max_workers: int | None = None,
        limits: Acquirable | Iterable[LimitDefinition] | Iterable[LimitSet] | None = None,
        num_retries: int = 0,
        retry_on: RetryOn = Exception,
        retry_algorithm: str = RetryAlgorithm.EXPONENTIAL,
        retry_wait: float = 1.0,
        retry_jitter: float = 0.3,
        max_queued_tasks: int | Literal["by_mode"] | None = "by_mode",
        on_demand: bool = False,
        load_balancing: str = "round_robin",
        blocking: bool = False,
        actor_options: Mapping[str, Any] | None = None,
        clock: Callable[[], int] = monotonic_us,
    ) -> WorkerOptions[P, W]:
        """Return how workers of this class run; `init(...)` of the result makes them. Raises ValueError.

        - `mode`: `sync`, `thread`, `process`, `asyncio`, `celery` or `ray`, or an `ExecutionMode`.
        - `max_workers`: how many workers (1), or how many at the same time on demand (not bounded).
        - `limits`: limits (each worker has a separate set), a limit set, limit sets (each worker has a pool of
          them), or a limit pool. Of a set with `shared=False` each worker has a copy.
        - `num_retries`, `retry_on` (types of exceptions, or a callable with the keywords `exception`, `attempt`,
          `elapsed` and further ones, see `RetryRule`), `retry_algorithm`, `retry_wait` (seconds), `retry_jitter` (a
          share of a pause).
        - `max_queued_tasks`: how many calls are passed to a worker and unfinished, while the others wait in order;
          None for all of them, which is also the default except for `process` (100) and for `celery` and `ray` (3).
        - `on_demand`: a new worker for each call.
        - `load_balancing`: `round_robin`, `random` or `least_loaded`.
        - `blocking`: calls return results instead of futures, and do not queue.
        - `actor_options`: with `ray`, the options of its actors, such as `{"num_cpus": 2}`.
        - `clock`: microseconds, for the pauses between attempts.
        """
        retry = RetryPolicy(
            num_retries=num_retries,
            retry_on=retry_on,
            algorithm=retry_algorithm,
            wait=retry_wait,
            jitter=retry_jitter,
            clock=clock,
        )
        return WorkerOptions(
            kind=cls,
            mode=mode,
            max_workers=max_workers,
            limits=WorkerLimits.of(limits),
            retry=retry,
            max_queued_tasks=max_queued_tasks,
            on_demand=on_demand,
            load_balancing=load_balancing,
            blocking=blocking,
            actor_options=dict(actor_options or {}),
        )


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(Generic[P, W]):
    """The checked arguments of `Worker.options`; `init` makes workers from them, as often as it is called.

    Raises ValueError for invalid options.
    """

    kind: Callable[P, W]
    mode: str
    max_workers: int | None
    limits: WorkerLimits
    retry: RetryPolicy
    max_queued_tasks: int | Literal["by_mode"] | None
    on_demand: bool
    load_balancing: str
    blocking: bool
    actor_options: Mapping[str, Any]

    def __post_init__(self) -> None:
        mode_named(self.mode)
        if self.actor_options and self.mode != ExecutionMode.RAY:
            raise ValueError(f"actor_options are for mode 'ray', not for {self.mode!r}: leave them out")
        balancer_named(self.load_balancing)
        _check_count("max_workers", self.max_workers)
        if self.max_queued_tasks != "by_mode":
            _check_count("max_queued_tasks", self.max_queued_tasks)
        taken = {name for name in vars(WorkerPool) if not name.startswith("_")}.intersection(dir(self.worker_class))
        if taken:
            raise ValueError(f"{self.worker_class.__name__} must not have a method {min(taken)!r}: its pool has one")

    @property
    def worker_class(self) -> type[W]:
        """The class of the workers."""
        return cast("type[W]", self.kind)

    @property
    def capacity(self) -> int | None:
        """How many tasks are passed to a worker and unfinished; None: not bounded."""
        mode = mode_named(self.mode)
        if not mode.bounded or self.blocking:
            return None
        return mode.max_queued_tasks if self.max_queued_tasks == "by_mode" else self.max_queued_tasks

    def method_names(self) -> list[str]:
        """The public methods of the worker class."""
        kind = self.worker_class
        return [name for name in dir(kind) if name[0] != "_" and name != "options" and callable(getattr(kind, name))]

    def init(self, *args: P.args, **kwargs: P.kwargs) -> WorkerPool[W]:
        """Make the workers, each with these arguments, and return when all of them are made.

        Raises what the `__init__` of a worker raises, after stopping the others.
        """
        mode = mode_named(self.mode)
        self.limits.check_mode(self.mode)
        if mode.several_machines:
            self.limits.check_reach(self.mode)
        back_end = mode.back_end()

        def start(worker_index: int) -> BackEnd:
            made_of = self.worker_class, args, kwargs, self.limits, self.retry
            return back_end(WorkerSpec(*made_of, worker_index, self.actor_options))

        if self.on_demand:
            demand = OnDemand(start)
            is_bounded = mode.bounded and not self.blocking
            queue = SubmissionQueue(demand.run, self.max_workers if is_bounded else None)
            return WorkerPool(self, [demand], [queue])
        workers = self._started(start)
        return WorkerPool(self, workers, [SubmissionQueue(worker.run, self.capacity) for worker in workers])

    def _started(self, start: Callable[[int], BackEnd]) -> list[BackEnd]:
        """Start all workers at the same time, then wait for each."""
        workers: list[BackEnd] = []
        try:
            workers.extend(start(index) for index in range(self.max_workers or 1))
            for worker in workers:
                worker.wait_until_ready()
        except BaseException:
            for worker in workers:
                worker.interrupt()
                worker.close(wait=False)
            raise
        return workers


def _check_count(name: str, number: int | None) -> None:
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
        raise ValueError(f"{name} must be None or a whole number, 1 or more, not {number!r}")

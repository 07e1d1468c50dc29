"""Optional: workers, whose methods run in a thread, a process or elsewhere. Nothing else imports it.

A worker is an object; calls of its methods return futures.
A `WorkerPool` chooses a worker for each call. The `SubmissionQueue` of that worker hands the call to a back end
(`modes` lists them), which makes it on its `Host`, and repeats it under the retry policy.
"""

from __future__ import annotations

from limits_app.acquiring import RetryAlgorithm
from limits_app.workers.futures import ReturnWhen, TaskFuture, gather, wait
from limits_app.workers.modes import ExecutionMode
from limits_app.workers.pool import PoolStats, QueueStats, WorkerPool
from limits_app.workers.worker import Worker

__all__ = [
    "ExecutionMode",
    "PoolStats",
    "QueueStats",
    "RetryAlgorithm",
    "ReturnWhen",
    "TaskFuture",
    "Worker",
    "WorkerPool",
    "gather",
    "wait",
]

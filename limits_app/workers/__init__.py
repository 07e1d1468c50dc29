"""Workers: objects whose methods run elsewhere, with limits at hand; calls return futures at once.

A call goes this way: `WorkerPool` picks a worker (`balancing`), whose `SubmissionQueue` hands it on in order to a back
end (`back_ends` names them all), which performs it on its resident (`resident`), again if `retrying` says so.
"""

from __future__ import annotations

from limits_app.workers.futures import TaskFuture, gather, wait
from limits_app.workers.pool import PoolStats, QueueStats, WorkerPool
from limits_app.workers.retrying import RetryAlgorithm
from limits_app.workers.worker import Worker

__all__ = [
    "PoolStats",
    "QueueStats",
    "RetryAlgorithm",
    "TaskFuture",
    "Worker",
    "WorkerPool",
    "gather",
    "wait",
]

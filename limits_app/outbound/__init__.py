"""Optional: outbound calls for asyncio, without Django. Only `metrics.outbound` imports it.

It has clients, paces, circuit breakers, retries, executors and queues; see docs/outbound.md.
"""

from __future__ import annotations

from limits_app.acquiring import BreakerState, Retrier, RetryPolicy
from limits_app.outbound.breaker import Breaker, BreakerClient, BreakerRules
from limits_app.outbound.cache import CachingClient
from limits_app.outbound.client import HttpClient, ResourceClient
from limits_app.outbound.errors import (
    CircuitOpen,
    Closed,
    OutboundError,
    QueueTimeout,
    Unavailable,
    Unsendable,
    UpstreamFailed,
    UpstreamTimeout,
)
from limits_app.outbound.events import Event, LogObserver, Observer, Observers
from limits_app.outbound.executor import Executor
from limits_app.outbound.hints import Hints, Quota, hints_of
from limits_app.outbound.limited import LimitedClient, Limits, PooledClient
from limits_app.outbound.messages import Request, Response
from limits_app.outbound.pace import Pace, PacedClient
from limits_app.outbound.retry import RequestRetryPolicy, RetryingClient, UnsuccessfulResponse
from limits_app.outbound.service import OutboundService
from limits_app.outbound.work_queue import FailedItem, FailurePolicy, LeftItem, WorkQueue

__all__ = [
    "Breaker",
    "BreakerClient",
    "BreakerRules",
    "BreakerState",
    "CachingClient",
    "CircuitOpen",
    "Closed",
    "Event",
    "Executor",
    "FailedItem",
    "FailurePolicy",
    "Hints",
    "HttpClient",
    "LeftItem",
    "LimitedClient",
    "Limits",
    "LogObserver",
    "Observer",
    "Observers",
    "OutboundError",
    "OutboundService",
    "Pace",
    "PacedClient",
    "PooledClient",
    "QueueTimeout",
    "Quota",
    "Request",
    "RequestRetryPolicy",
    "ResourceClient",
    "Response",
    "Retrier",
    "RetryPolicy",
    "RetryingClient",
    "Unavailable",
    "Unsendable",
    "UnsuccessfulResponse",
    "UpstreamFailed",
    "UpstreamTimeout",
    "WorkQueue",
    "hints_of",
]

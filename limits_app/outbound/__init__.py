"""Work that goes out: clients, turns, executors and queues for asyncio, without Django.

Clients are put around each other, each with one task: see docs/outbound.md.
"""

from __future__ import annotations

from limits_app.outbound.breaker import Breaker, BreakerClient, BreakerRules, BreakerState
from limits_app.outbound.cache import CachingClient
from limits_app.outbound.client import Limits, ResourceClient
from limits_app.outbound.errors import (
    CircuitOpen,
    Closed,
    NotNow,
    NoTurnInTime,
    OutboundError,
    Unsendable,
    UpstreamFailed,
    UpstreamTimeout,
)
from limits_app.outbound.events import Event, LogObserver, Observer, Observers
from limits_app.outbound.executor import Executor, RateLimitedExecutor
from limits_app.outbound.hints import Hints, Quota, hints_of
from limits_app.outbound.http import HttpClient
from limits_app.outbound.limited import LimitedClient, PooledClient
from limits_app.outbound.messages import Request, Response
from limits_app.outbound.pace import Pace
from limits_app.outbound.paced import PacedClient
from limits_app.outbound.retries import RetryingClient, RetryRules
from limits_app.outbound.schedule import Schedule
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
    "NoTurnInTime",
    "NotNow",
    "Observer",
    "Observers",
    "OutboundError",
    "Pace",
    "PacedClient",
    "PooledClient",
    "Quota",
    "RateLimitedExecutor",
    "Request",
    "ResourceClient",
    "Response",
    "RetryRules",
    "RetryingClient",
    "Schedule",
    "Unsendable",
    "UpstreamFailed",
    "UpstreamTimeout",
    "WorkQueue",
    "hints_of",
]

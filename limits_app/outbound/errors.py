"""Errors of outbound calls, and checks of the numbers that outbound objects are made with.

LimitsError
└── OutboundError
    ├── Unavailable                         not sent; `retry_after` is in how many seconds a retry is useful
    │   ├── QueueTimeout  (TimeoutError)    the turn of the request does not come before its timeout
    │   └── CircuitOpen                     the circuit breaker of the upstream is open
    ├── UpstreamFailed                      no response; `maybe_sent`: the upstream may have received the request
    │   └── UpstreamTimeout (TimeoutError)  no response in time
    ├── Unsendable        (ValueError)      an invalid request, which is never retried
    └── Closed            (RuntimeError)    the client, executor or queue was closed

A response is not an error, whatever its status.
"""

from __future__ import annotations

from limits_app.engine.errors import LimitsError


class OutboundError(LimitsError):
    """The root of the tree."""


class Unavailable(OutboundError):
    """The request was not sent."""

    def __init__(self, upstream: str, retry_after: float) -> None:
        super().__init__(upstream, retry_after)
        self.upstream = upstream
        self.retry_after = retry_after


class QueueTimeout(Unavailable, TimeoutError):
    """The request would have waited, or has waited, longer than its timeout."""

    def __str__(self) -> str:
        return f"{self.upstream}: the timeout ends before the request can be sent; retry in {self.retry_after:.3g} s"


class CircuitOpen(Unavailable):
    """The circuit breaker of the upstream is open."""

    def __str__(self) -> str:
        return f"{self.upstream} failed too often and its circuit breaker is open; retry in {self.retry_after:.3g} s"


class UpstreamFailed(OutboundError):
    """The upstream could not be reached, or the connection broke."""

    def __init__(self, upstream: str, reason: str, *, maybe_sent: bool) -> None:
        super().__init__(upstream, reason)
        self.upstream = upstream
        self.reason = reason
        self.maybe_sent = maybe_sent

    def __str__(self) -> str:
        return f"{self.upstream} did not respond: {self.reason}"


class UpstreamTimeout(UpstreamFailed, TimeoutError):
    """The upstream did not respond in time."""


class Unsendable(OutboundError, ValueError):
    """The request is invalid and cannot be sent."""

    def __init__(self, upstream: str, reason: str) -> None:
        super().__init__(upstream, reason)
        self.upstream = upstream
        self.reason = reason

    def __str__(self) -> str:
        return f"the request to {self.upstream} is invalid: {self.reason}"


class Closed(OutboundError, RuntimeError):
    """The object was closed and takes no more work."""


def check_counts(**counts: int) -> None:
    """Raise ValueError for a count below 1."""
    for name, count in counts.items():
        if not count >= 1:
            raise ValueError(f"{name} must be at least 1, not {count}")


def check_durations(**durations: float) -> None:
    """Raise ValueError for negative seconds, and for NaN."""
    for name, seconds in durations.items():
        if not seconds >= 0:
            raise ValueError(f"{name} must be 0 or more, not {seconds}")


def check_periods(**periods: float) -> None:
    """Raise ValueError for seconds that are not more than 0."""
    for name, seconds in periods.items():
        if not seconds > 0:
            raise ValueError(f"{name} must be more than 0, not {seconds}")

"""What can go wrong on the way to an upstream.

LimitsError
└── OutboundError
    ├── NotNow                              not sent; `retry_after` says in how many seconds it may be worth it
    │   ├── NoTurnInTime  (TimeoutError)    its turn does not come before the timeout
    │   └── CircuitOpen                     the upstream failed too often and is left alone for now
    ├── UpstreamFailed                      no answer; `maybe_sent` says whether the upstream may have seen the request
    │   └── UpstreamTimeout (TimeoutError)  no answer in time
    ├── Unsendable        (ValueError)      a request that nobody can be sent: the caller's fault, so never tried again
    └── Closed            (RuntimeError)    a client, an executor or a queue that takes nothing any more

An answer is no error, whatever its status.
"""

from __future__ import annotations

from limits_app.core.errors import LimitsError

__all__ = [
    "CircuitOpen",
    "Closed",
    "NoTurnInTime",
    "NotNow",
    "OutboundError",
    "Unsendable",
    "UpstreamFailed",
    "UpstreamTimeout",
]


class OutboundError(LimitsError):
    """The root of the tree."""


class NotNow(OutboundError):
    """The request was not sent."""

    def __init__(self, upstream: str, retry_after: float) -> None:
        super().__init__(upstream, retry_after)
        self.upstream = upstream
        self.retry_after = retry_after


class NoTurnInTime(NotNow, TimeoutError):
    """The turn of the request would have come, or came, too late."""

    def __str__(self) -> str:
        return f"{self.upstream} has no turn in time: the next may be free in {self.retry_after:.3g} s"


class CircuitOpen(NotNow):
    """The breaker before the upstream is open."""

    def __str__(self) -> str:
        return f"{self.upstream} failed too often and is left alone: try again in {self.retry_after:.3g} s"


class UpstreamFailed(OutboundError):
    """The upstream could not be reached, or the connection broke."""

    def __init__(self, upstream: str, reason: str, *, maybe_sent: bool) -> None:
        super().__init__(upstream, reason)
        self.upstream = upstream
        self.reason = reason
        self.maybe_sent = maybe_sent

    def __str__(self) -> str:
        return f"{self.upstream} did not answer: {self.reason}"


class UpstreamTimeout(UpstreamFailed, TimeoutError):
    """The upstream did not answer in time."""


class Unsendable(OutboundError, ValueError):
    """The request cannot be sent as it is, whatever the upstream does."""

    def __init__(self, upstream: str, reason: str) -> None:
        super().__init__(upstream, reason)
        self.upstream = upstream
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.upstream} cannot be asked that: {self.reason}"


class Closed(OutboundError, RuntimeError):
    """It was closed, and takes nothing any more."""

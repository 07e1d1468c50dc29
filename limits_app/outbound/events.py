"""What happens on the way out, told as values to whoever watches: logs, metrics, traces."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import Protocol

__all__ = [
    "BreakerTurned",
    "Called",
    "Depth",
    "Event",
    "ItemFailed",
    "Learned",
    "LogObserver",
    "Observer",
    "Observers",
    "Refused",
    "Retrying",
    "Waited",
    "silent",
]

logger = logging.getLogger("limits_app.outbound")


@dataclass(frozen=True, slots=True)
class Waited:
    """A request has had its turn, after so many seconds."""

    upstream: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Called:
    """A request was sent; `status` is 0 when there was no answer."""

    upstream: str
    method: str
    status: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Refused:
    """The upstream refused, and is left alone for so many seconds."""

    upstream: str
    hold_seconds: float


@dataclass(frozen=True, slots=True)
class Learned:
    """The upstream was found to allow so many calls per window; `quota` is its name for that, or empty for a guess."""

    upstream: str
    quota: str
    capacity: int
    window_seconds: float


@dataclass(frozen=True, slots=True)
class Retrying:
    """Attempt number `attempt` was in vain, and the next one comes in so many seconds."""

    upstream: str
    attempt: int
    wait_seconds: float


@dataclass(frozen=True, slots=True)
class BreakerTurned:
    """A breaker turned to a state."""

    upstream: str
    state: str


@dataclass(frozen=True, slots=True)
class Depth:
    """How many wait in an executor or a queue, and how many are being worked on."""

    queue: str
    waiting: int
    running: int


@dataclass(frozen=True, slots=True)
class ItemFailed:
    """An item of a queue failed for good."""

    queue: str
    error: str


Event = Waited | Called | Refused | Learned | Retrying | BreakerTurned | Depth | ItemFailed


class Observer(Protocol):
    """Whoever watches; called in the task in which it happened, so it must not block."""

    def note(self, event: Event) -> None:
        """Something happened."""


class Observers:
    """Several observers as one; what fails in one of them is logged, and harms neither the others nor the call."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def note(self, event: Event) -> None:
        """Tell everybody."""
        for observer in self._observers:
            try:
                observer.note(event)
            except Exception:
                logger.warning("an observer failed", exc_info=True)


silent = Observers()
"""Nobody watches."""


class LogObserver:
    """Writes every event to the log `limits_app.outbound`, with its fields as attributes of the record.

    What a site should look at are warnings: refusals, retries, breakers, failed items. The rest is on level debug.
    """

    def note(self, event: Event) -> None:
        """Write one event."""
        trouble = isinstance(event, Refused | Retrying | BreakerTurned | ItemFailed)
        level = logging.WARNING if trouble else logging.DEBUG
        if logger.isEnabledFor(level):
            fields = asdict(event)
            text = " ".join(f"{key}={value}" for key, value in fields.items())
            kind = type(event).__name__
            logger.log(level, "%s %s", kind, text, extra={"event": kind, **fields})

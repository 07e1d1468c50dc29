"""Events of outbound calls, as values that observers receive for logs, metrics and traces."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import Protocol

logger = logging.getLogger("limits_app.outbound")


@dataclass(frozen=True, slots=True)
class Waited:
    """A request has waited `seconds` for its turn."""

    upstream: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Called:
    """A request was sent; `status` is 0 when there was no response."""

    upstream: str
    method: str
    status: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Refused:
    """The upstream responded with 429; no request is sent for `hold_seconds`."""

    upstream: str
    hold_seconds: float


@dataclass(frozen=True, slots=True)
class Learned:
    """The upstream has reported a new quota."""

    upstream: str
    quota: str
    capacity: int
    window_seconds: float


@dataclass(frozen=True, slots=True)
class Retrying:
    """Attempt number `attempt` failed; the next one begins in `wait_seconds`."""

    upstream: str
    attempt: int
    wait_seconds: float


@dataclass(frozen=True, slots=True)
class BreakerChanged:
    """A circuit breaker has changed its state."""

    upstream: str
    state: str


@dataclass(frozen=True, slots=True)
class Depth:
    """How many calls or items of an executor or a queue wait, and how many run."""

    queue: str
    waiting: int
    running: int


@dataclass(frozen=True, slots=True)
class ItemFailed:
    """An item of a queue has failed in all its attempts."""

    queue: str
    error: str


Event = Waited | Called | Refused | Learned | Retrying | BreakerChanged | Depth | ItemFailed


class Observer(Protocol):
    """Receives events, in the task in which they occur; must not block."""

    def note(self, event: Event) -> None:
        """Receive an event."""


class Observers:
    """Several observers as one. An exception of one of them is logged, and does not affect the others or the call."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def note(self, event: Event) -> None:
        """Pass an event to all observers."""
        for observer in self._observers:
            try:
                observer.note(event)
            except Exception:
                logger.warning("an observer failed", exc_info=True)


silent = Observers()
"""No observer."""


class LogObserver:
    """Writes every event to the log `limits_app.outbound`, with its fields as attributes of the record.

    Refusals, retries, changes of circuit breakers and failed items are warnings; other events have the level debug.
    """

    def note(self, event: Event) -> None:
        """Write one event."""
        is_warning = isinstance(event, Refused | Retrying | BreakerChanged | ItemFailed)
        level = logging.WARNING if is_warning else logging.DEBUG
        if logger.isEnabledFor(level):
            fields = asdict(event)
            text = " ".join(f"{key}={value}" for key, value in fields.items())
            kind = type(event).__name__
            logger.log(level, "%s %s", kind, text, extra={"event": kind, **fields})

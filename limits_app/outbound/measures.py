"""What can be measured on the way out, said once for all who count: instruments, and what an event adds to them.

Labels are upstreams and queues, never a path or a caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, assert_never

from limits_app.core.breaker import BreakerState
from limits_app.outbound.events import (
    BreakerChanged,
    Called,
    Depth,
    Event,
    ItemFailed,
    Learned,
    Refused,
    Retrying,
    Waited,
)

__all__ = ["INSTRUMENTS", "Instrument", "Kind", "Measure", "measures_of"]


class Kind(Enum):
    """What is done with the values of an instrument."""

    HISTOGRAM = "histogram"
    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Instrument:
    """An instrument, with the names of its labels."""

    kind: Kind
    text: str
    labels: tuple[str, ...]
    unit: str = ""


INSTRUMENTS: Final[Mapping[str, Instrument]] = {
    "wait_seconds": Instrument(Kind.HISTOGRAM, "Time from asking for a turn to having it", ("upstream",), "s"),
    "call_seconds": Instrument(Kind.HISTOGRAM, "Time to an answer; status 0xx is none", ("upstream", "status"), "s"),
    "refusals": Instrument(Kind.COUNTER, "Answers that refused because of a limit", ("upstream",)),
    "retries": Instrument(Kind.COUNTER, "Attempts that were in vain", ("upstream",)),
    "capacity_per_second": Instrument(Kind.GAUGE, "The learned limit", ("upstream", "quota")),
    "breaker_state": Instrument(Kind.GAUGE, "0 closed, 1 half open, 2 open", ("upstream",)),
    "waiting": Instrument(Kind.GAUGE, "Items or calls that have not begun", ("queue",)),
    "running": Instrument(Kind.GAUGE, "Items or calls under way", ("queue",)),
    "failed_items": Instrument(Kind.COUNTER, "Items that failed for good", ("queue",)),
}


@dataclass(frozen=True, slots=True)
class Measure:
    """A value for an instrument, with the values of its labels."""

    name: str
    value: float
    labels: tuple[str, ...]


def measures_of(event: Event) -> tuple[Measure, ...]:
    """What an event adds."""
    match event:
        case Waited():
            return (Measure("wait_seconds", event.seconds, (event.upstream,)),)
        case Called():
            return (Measure("call_seconds", event.seconds, (event.upstream, f"{event.status // 100}xx")),)
        case Refused():
            return (Measure("refusals", 1, (event.upstream,)),)
        case Retrying():
            return (Measure("retries", 1, (event.upstream,)),)
        case _:
            return _states_of(event)


def _states_of(event: Learned | BreakerChanged | Depth | ItemFailed) -> tuple[Measure, ...]:
    match event:
        case Learned():
            rate = event.capacity / event.window_seconds
            return (Measure("capacity_per_second", rate, (event.upstream, event.quota)),)
        case BreakerChanged():
            return (Measure("breaker_state", BreakerState(event.state).level, (event.upstream,)),)
        case Depth():
            queue = (event.queue,)
            return (Measure("waiting", event.waiting, queue), Measure("running", event.running, queue))
        case ItemFailed():
            return (Measure("failed_items", 1, (event.queue,)),)
        case _:
            assert_never(event)

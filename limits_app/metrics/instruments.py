"""The instruments: the name, kind and labels of every metric, for all exporters. Works without Django.

No label is an entity, a path or a caller. Names have the prefix `limits_` in Prometheus and `limits.` in OpenTelemetry.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

Labels = tuple[str, ...]

_WAITS: Final = (0.001, 0.005, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 120.0)
_STORE_CALLS: Final = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25)
_CALLS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class Kind(StrEnum):
    """The kind of an instrument."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Instrument:
    """A metric. `buckets` are the upper bounds of a histogram, in seconds.

    `combined` is how the gauges of several processes are combined: a `multiprocess_mode` of prometheus_client.
    """

    name: str
    kind: Kind
    text: str
    labels: Labels = ()
    buckets: tuple[float, ...] = ()
    combined: str = "livesum"


def _counter(name: str, text: str, *labels: str) -> Instrument:
    return Instrument(name, Kind.COUNTER, text, labels)


def _gauge(name: str, text: str, *labels: str, combined: str = "livesum") -> Instrument:
    return Instrument(name, Kind.GAUGE, text, labels, combined=combined)


def _histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Instrument:
    return Instrument(name, Kind.HISTOGRAM, text, labels, buckets)


INSTRUMENTS: Final[Mapping[str, Instrument]] = {
    instrument.name: instrument
    for instrument in (
        _counter("decisions", "Requests by result: admitted, refused or timed_out", "resource", "result"),
        _counter("refusals", "Refusals by the limit that refused", "resource", "limit"),
        _counter("priority_decisions", "Requests of limits with shares, by priority", "resource", "priority", "result"),
        _counter("shadow_refusals", "Refusals of policies in shadow mode", "resource", "limit"),
        _counter("evaluations", "Decisions of candidates and in shadow mode", "policy", "kind", "result"),
        _histogram("wait_seconds", "Waits of requests with a timeout", _WAITS),
        _counter("degraded_decisions", "Decisions without the store, by policy", "store", "policy"),
        _gauge("store_state", "Circuit breaker: 0 closed, 1 half open, 2 open", "store", combined="livemax"),
        _histogram("store_call_seconds", "Durations of calls to a store", _STORE_CALLS, "store", "verb"),
        _counter("store_errors", "Calls to a store that failed", "store", "verb"),
        _gauge("store_unsettled", "Releases that wait for the store", "store"),
        _counter("resolver_hits", "Limits that were found in the cache"),
        _counter("resolver_misses", "Limits that were read from the database"),
        _counter("unresolved", "Reads of limits that failed: not_migrated, failed or time_zone", "reason"),
        _gauge("resolver_kept", "Limits in the cache"),
        _gauge("usage_lag_seconds", "Time since usage was last rolled up", combined="livemostrecent"),
        _gauge("spend_today", "Cost of the usage of this UTC day", "resource", "currency", combined="livemostrecent"),
        _gauge("emergency_mode", "Emergency switch: 0 enforce, 1 shadow, 2 off", combined="livemostrecent"),
        _gauge("denials_unwritten", "Refusals that are not in the database yet"),
        _histogram("worker_call_seconds", "Calls of workers, waits included", _CALLS, "worker", "result"),
        _histogram("outbound_wait_seconds", "Waits for a turn or for limits", _CALLS, "upstream"),
        _histogram("outbound_call_seconds", "Durations of requests; status 0xx: none", _CALLS, "upstream", "status"),
        _counter("outbound_refusals", "Responses with status 429", "upstream"),
        _counter("outbound_retries", "Retries of requests", "upstream"),
        _gauge("outbound_capacity_per_second", "Learned quota", "upstream", "quota", combined="livemostrecent"),
        _gauge("outbound_breaker_state", "0 closed, 1 half open, 2 open", "upstream", combined="livemax"),
        _gauge("outbound_waiting", "Calls or items that wait", "queue"),
        _gauge("outbound_running", "Calls or items that run", "queue"),
        _counter("outbound_failed_items", "Items that failed in all attempts", "queue"),
    )
}


class Recorder(Protocol):
    """Records values with the instruments of one library."""

    def record(self, name: str, value: float, labels: Labels = ()) -> None:
        """Add to a counter, set a gauge, or observe a value of a histogram."""


def is_multiprocess() -> bool:
    """Whether prometheus_client combines the metrics of several processes, in files."""
    return bool(os.environ.get("PROMETHEUS_MULTIPROC_DIR"))

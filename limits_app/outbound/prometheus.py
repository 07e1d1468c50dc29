"""Metrics for Prometheus, with one label: the upstream or the queue, never a path or a caller."""

from __future__ import annotations

from typing import Final, assert_never

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from limits_app.outbound.breaker import BreakerState
from limits_app.outbound.events import (
    BreakerTurned,
    Called,
    Depth,
    Event,
    ItemFailed,
    Learned,
    Refused,
    Retrying,
    Waited,
)

__all__ = ["PrometheusObserver"]

_STATES: Final = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}


class PrometheusObserver:
    """Keeps `limits_outbound_*` in a registry, of which it is the only one; give it to everything that is watched."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"limits_outbound_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"limits_outbound_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"limits_outbound_{name}", text, labels, registry=registry)

        self._waits = histogram("wait_seconds", "Time from asking for a turn to having it", "upstream")
        self._calls = histogram("call_seconds", "Time to an answer; status 0xx is none", "upstream", "status")
        self._refusals = counter("refusals", "Answers that refused because of a limit", "upstream")
        self._retries = counter("retries", "Attempts that were in vain", "upstream")
        self._capacity = gauge("capacity_per_second", "The learned limit", "upstream", "quota")
        self._breaker = gauge("breaker_state", "0 closed, 1 half open, 2 open", "upstream")
        self._waiting = gauge("waiting", "Items or calls that have not begun", "queue")
        self._running = gauge("running", "Items or calls under way", "queue")
        self._failed = counter("failed_items", "Items that failed for good", "queue")

    def note(self, event: Event) -> None:
        """Count one event."""
        match event:
            case Waited():
                self._waits.labels(event.upstream).observe(event.seconds)
            case Called():
                self._calls.labels(event.upstream, f"{event.status // 100}xx").observe(event.seconds)
            case Refused():
                self._refusals.labels(event.upstream).inc()
            case Retrying():
                self._retries.labels(event.upstream).inc()
            case Learned():
                self._capacity.labels(event.upstream, event.quota).set(event.capacity / event.window_seconds)
            case _:
                self._note_state(event)

    def _note_state(self, event: BreakerTurned | Depth | ItemFailed) -> None:
        match event:
            case BreakerTurned():
                self._breaker.labels(event.upstream).set(_STATES[BreakerState(event.state)])
            case Depth():
                self._waiting.labels(event.queue).set(event.waiting)
                self._running.labels(event.queue).set(event.running)
            case ItemFailed():
                self._failed.labels(event.queue).inc()
            case _:
                assert_never(event)

"""Metrics of outbound calls, recorded from their events. Works without Django."""

from __future__ import annotations

from limits_app.acquiring import BreakerState
from limits_app.metrics.instruments import Recorder
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


class OutboundMetrics:
    """An observer that records `outbound_*` metrics; pass it to everything that it should observe."""

    def __init__(self, *recorders: Recorder) -> None:
        self._recorders = recorders

    def note(self, event: Event) -> None:
        """Record one event."""
        match event:
            case Waited():
                self._record("wait_seconds", event.seconds, event.upstream)
            case Called():
                self._record("call_seconds", event.seconds, event.upstream, f"{event.status // 100}xx")
            case Refused():
                self._record("refusals", 1, event.upstream)
            case Retrying():
                self._record("retries", 1, event.upstream)
            case ItemFailed():
                self._record("failed_items", 1, event.queue)
            case _:
                self._note_state(event)

    def _note_state(self, event: Learned | BreakerChanged | Depth) -> None:
        match event:
            case Learned():
                self._record("capacity_per_second", event.capacity / event.window_seconds, event.upstream, event.quota)
            case BreakerChanged():
                self._record("breaker_state", BreakerState(event.state).level, event.upstream)
            case _:
                self._record("waiting", event.waiting, event.queue)
                self._record("running", event.running, event.queue)

    def _record(self, name: str, value: float, *labels: str) -> None:
        for recorder in self._recorders:
            recorder.record(f"outbound_{name}", value, labels)

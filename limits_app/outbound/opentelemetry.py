"""Traces and metrics for OpenTelemetry: give `Observers` both, or the one that you want."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from opentelemetry import trace
from opentelemetry.metrics import Meter, get_meter

from limits_app.outbound.events import Called, Depth, Event, Waited
from limits_app.outbound.measures import INSTRUMENTS, Instrument, Kind, measures_of

__all__ = ["OpenTelemetryMetrics", "OpenTelemetryObserver"]

_NAME: Final = "limits_app.outbound"
_NANO: Final = 1_000_000_000


class OpenTelemetryObserver:
    """Writes spans `outbound wait` and `outbound call` with a tracer, as children of the span of the caller.

    Everything else is an event of the span around it, but for depths: these are numbers over time, and so metrics.
    """

    def __init__(self, tracer: trace.Tracer | None = None) -> None:
        self._tracer = tracer or trace.get_tracer(_NAME)

    def note(self, event: Event) -> None:
        """Write one event."""
        fields = {f"outbound.{key}": value for key, value in asdict(event).items()}
        match event:
            case Waited() | Called():
                end = time.time_ns()
                start = end - round(event.seconds * _NANO)
                name = "outbound wait" if isinstance(event, Waited) else "outbound call"
                span = self._tracer.start_span(name, kind=trace.SpanKind.CLIENT, attributes=fields, start_time=start)
                if isinstance(event, Called) and not 0 < event.status < 500:
                    span.set_status(trace.StatusCode.ERROR)
                span.end(end_time=end)
            case Depth():
                pass
            case _:
                trace.get_current_span().add_event(f"outbound {type(event).__name__}", fields)


class OpenTelemetryMetrics:
    """Records `limits.outbound.*` with a meter; the instruments are those of the observer for Prometheus."""

    def __init__(self, meter: Meter | None = None) -> None:
        chosen = meter or get_meter(_NAME)
        self._record = {name: _recording(chosen, name, instrument) for name, instrument in INSTRUMENTS.items()}

    def note(self, event: Event) -> None:
        """Record one event."""
        for measure in measures_of(event):
            labels = INSTRUMENTS[measure.name].labels
            self._record[measure.name](measure.value, dict(zip(labels, measure.labels, strict=True)))


def _recording(meter: Meter, name: str, instrument: Instrument) -> Callable[[float, dict[str, str]], None]:
    full, unit, text = f"limits.outbound.{name}", instrument.unit, instrument.text
    match instrument.kind:
        case Kind.HISTOGRAM:
            return meter.create_histogram(full, unit, text).record
        case Kind.COUNTER:
            return meter.create_counter(full, unit, text).add
        case Kind.GAUGE:
            return meter.create_gauge(full, unit, text).set

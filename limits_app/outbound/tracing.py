"""Traces of outbound calls for OpenTelemetry."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Final

from opentelemetry import trace

from limits_app.outbound.events import Called, Depth, Event, Waited

_NAME: Final = "limits_app.outbound"
_NANO: Final = 1_000_000_000


class TracingObserver:
    """Writes spans `outbound wait` and `outbound call` with a tracer, as children of the span of the caller.

    Other events become events of the current span, except for depths of queues, which are metrics only.
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

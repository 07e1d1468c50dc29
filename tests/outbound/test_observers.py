"""Observers: logs and traces."""

from __future__ import annotations

import logging

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from limits_app.outbound.events import (
    BreakerChanged,
    Called,
    Depth,
    Event,
    ItemFailed,
    Learned,
    LogObserver,
    Observers,
    Refused,
    Retrying,
    Waited,
)
from limits_app.outbound.tracing import TracingObserver
from tests.outbound.timelines import Recorder

EVENTS: list[Event] = [
    Waited("eu", 0.5),
    Called("eu", "GET", 200, 0.25),
    Called("eu", "GET", 0, 1.0),
    Refused("eu", 2.0),
    Learned("eu", "rpm", 120, 60.0),
    Retrying("eu", 1, 0.5),
    BreakerChanged("eu", "open"),
    Depth("calls", 3, 2),
    ItemFailed("calls", "ValueError: no"),
]


def test_logs_carry_the_fields_and_only_trouble_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "limits_app.outbound")
    for event in EVENTS:
        LogObserver().note(event)
    records = caplog.records
    warnings = [vars(record)["event"] for record in records if record.levelno == logging.WARNING]
    assert len(records) == len(EVENTS)
    assert warnings == ["Refused", "Retrying", "BreakerChanged", "ItemFailed"]
    assert records[3].getMessage() == "Refused upstream=eu hold_seconds=2.0"
    assert vars(records[3])["event"] == "Refused"
    assert vars(records[3])["hold_seconds"] == 2.0


def test_without_observers_nothing_is_recorded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "limits_app.outbound")
    LogObserver().note(EVENTS[0])
    assert caplog.records == []


def test_a_failing_observer_does_not_affect_calls(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def note(self, event: Event) -> None:
            raise OSError("full")

    watch = Recorder()
    Observers(Broken(), watch).note(EVENTS[0])
    assert watch.events == EVENTS[:1]
    assert "an observer failed" in caplog.text


def test_traces_have_a_span_for_each_wait_and_call_and_events_for_the_rest() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    observer = TracingObserver(tracer)
    with tracer.start_as_current_span("mine"):
        for event in EVENTS:
            observer.note(event)
    *ours, mine = exporter.get_finished_spans()
    assert [span.name for span in ours] == ["outbound wait", "outbound call", "outbound call"]
    assert mine.context is not None
    assert all(span.parent is not None and span.parent.span_id == mine.context.span_id for span in ours)
    assert ours[0].start_time is not None
    assert ours[0].end_time is not None
    assert ours[0].end_time - ours[0].start_time == 500_000_000
    assert [span.status.status_code.name for span in ours] == ["UNSET", "UNSET", "ERROR"]
    kinds = ["Refused", "Learned", "Retrying", "BreakerChanged", "ItemFailed"]
    assert [event.name for event in mine.events] == [f"outbound {kind}" for kind in kinds]
    provider.shutdown()

"""Who watches: logs, metrics, traces."""

from __future__ import annotations

import logging

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

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
from limits_app.outbound.opentelemetry import OpenTelemetryMetrics, OpenTelemetryObserver
from limits_app.outbound.prometheus import PrometheusObserver
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
    assert [record.levelno == logging.WARNING for record in records] == [False] * 3 + [
        True,
        False,
        True,
        True,
        False,
        True,
    ]
    assert records[3].getMessage() == "Refused upstream=eu hold_seconds=2.0"
    assert vars(records[3])["event"] == "Refused"
    assert vars(records[3])["hold_seconds"] == 2.0


def test_what_nobody_wants_to_read_is_not_written(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "limits_app.outbound")
    LogObserver().note(EVENTS[0])
    assert caplog.records == []


def test_an_observer_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def note(self, event: Event) -> None:
            raise OSError("full")

    watch = Recorder()
    Observers(Broken(), watch).note(EVENTS[0])
    assert watch.events == EVENTS[:1]
    assert "an observer failed" in caplog.text


def test_metrics_say_how_long_how_often_and_how_deep() -> None:
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    for event in EVENTS:
        observer.note(event)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"limits_outbound_{name}", labels)

    assert value("wait_seconds_sum", upstream="eu") == 0.5
    assert value("call_seconds_count", upstream="eu", status="2xx") == 1
    assert value("call_seconds_sum", upstream="eu", status="0xx") == 1.0
    assert value("refusals_total", upstream="eu") == 1
    assert value("retries_total", upstream="eu") == 1
    assert value("capacity_per_second", upstream="eu", quota="rpm") == 2.0
    assert value("breaker_state", upstream="eu") == 2
    assert (value("waiting", queue="calls"), value("running", queue="calls")) == (3, 2)
    assert value("failed_items_total", queue="calls") == 1


def test_opentelemetry_has_the_same_metrics() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    observer = OpenTelemetryMetrics(provider.get_meter("test"))
    for event in EVENTS:
        observer.note(event)
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[tuple[str, ...], float] = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            assert isinstance(point, HistogramDataPoint | NumberDataPoint)
            value = point.sum if isinstance(point, HistogramDataPoint) else point.value
            found[metric.name, *(str(label) for label in (point.attributes or {}).values())] = value
    assert found == {
        ("limits.outbound.wait_seconds", "eu"): 0.5,
        ("limits.outbound.call_seconds", "eu", "2xx"): 0.25,
        ("limits.outbound.call_seconds", "eu", "0xx"): 1.0,
        ("limits.outbound.refusals", "eu"): 1,
        ("limits.outbound.retries", "eu"): 1,
        ("limits.outbound.capacity_per_second", "eu", "rpm"): 2.0,
        ("limits.outbound.breaker_state", "eu"): 2,
        ("limits.outbound.waiting", "calls"): 3,
        ("limits.outbound.running", "calls"): 2,
        ("limits.outbound.failed_items", "calls"): 1,
    }
    provider.shutdown()


def test_traces_have_a_span_for_each_wait_and_call_and_events_for_the_rest() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    observer = OpenTelemetryObserver(tracer)
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
    names = [event.name for event in mine.events]
    assert names == [
        "outbound Refused",
        "outbound Learned",
        "outbound Retrying",
        "outbound BreakerChanged",
        "outbound ItemFailed",
    ]
    provider.shutdown()


def test_without_a_tracer_or_a_meter_the_global_one_is_used() -> None:
    OpenTelemetryObserver().note(EVENTS[0])
    OpenTelemetryMetrics().note(EVENTS[0])
    assert trace.get_tracer_provider() is not None

"""Metrics of outbound calls."""

from __future__ import annotations

import subprocess
import sys

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from prometheus_client import CollectorRegistry

from limits_app.metrics.opentelemetry import OpenTelemetryRecorder
from limits_app.metrics.outbound import OutboundMetrics
from limits_app.metrics.prometheus import recorder
from tests.outbound.test_observers import EVENTS


def test_prometheus_and_opentelemetry_have_the_same() -> None:
    reader, registry = InMemoryMetricReader(), CollectorRegistry()
    provider = MeterProvider([reader])
    observer = OutboundMetrics(recorder(registry), OpenTelemetryRecorder(provider.get_meter("test")))
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

    data = reader.get_metrics_data()
    assert data is not None
    found: dict[tuple[str, ...], float] = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            assert isinstance(point, HistogramDataPoint | NumberDataPoint)
            number = point.sum if isinstance(point, HistogramDataPoint) else point.value
            found[metric.name, *(str(label) for label in (point.attributes or {}).values())] = number
    del found["limits.collected",]
    assert found == {
        ("limits.outbound_wait_seconds", "eu"): 0.5,
        ("limits.outbound_call_seconds", "eu", "2xx"): 0.25,
        ("limits.outbound_call_seconds", "eu", "0xx"): 1.0,
        ("limits.outbound_refusals", "eu"): 1,
        ("limits.outbound_retries", "eu"): 1,
        ("limits.outbound_capacity_per_second", "eu", "rpm"): 2.0,
        ("limits.outbound_breaker_state", "eu"): 2,
        ("limits.outbound_waiting", "calls"): 3,
        ("limits.outbound_running", "calls"): 2,
        ("limits.outbound_failed_items", "calls"): 1,
    }
    provider.shutdown()


def test_they_need_no_django() -> None:
    names = ("outbound", "prometheus", "opentelemetry")
    code = (
        f"import sys, {', '.join(f'limits_app.metrics.{name}' for name in names)}; assert 'django' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

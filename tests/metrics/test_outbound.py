"""Metrics of outbound calls."""

from __future__ import annotations

import re
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

    collected = {
        (re.sub("_total$|_sum$", "", sample.name).replace("_", ".", 1), *sample.labels.values()): sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if "outbound" in sample.name and not sample.name.endswith(("_bucket", "_count", "_created"))
    }
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[tuple[str, ...], float] = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            assert isinstance(point, HistogramDataPoint | NumberDataPoint)
            number = point.sum if isinstance(point, HistogramDataPoint) else point.value
            found[metric.name, *(str(label) for label in (point.attributes or {}).values())] = number
    del found["limits.collected",]
    assert collected == found
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

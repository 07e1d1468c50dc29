"""Metrics for Prometheus: `limits_*` in a registry, read when it is collected."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from limits_app.metrics.catalogue import METRICS, WAITS, Kind
from limits_app.metrics.tallies import BOUNDS, tallies

__all__ = ["LimitsCollector", "install"]

_FAMILIES = {Kind.COUNTER: CounterMetricFamily, Kind.GAUGE: GaugeMetricFamily}


class LimitsCollector(Collector):
    """Collects what this process knows."""

    def describe(self) -> Iterator[Metric]:
        """The metrics without numbers, for which no database is asked."""
        for metric in METRICS:
            yield _FAMILIES[metric.kind](f"limits_{metric.name}", metric.text, labels=metric.labels)
        yield HistogramMetricFamily(f"limits_{WAITS[0]}", WAITS[1], labels=())

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        for metric in METRICS:
            family = _FAMILIES[metric.kind](f"limits_{metric.name}", metric.text, labels=metric.labels)
            for labels, value in metric.samples():
                family.add_metric(labels, value)
            yield family
        waits, seconds = tallies.waits
        bounds = [*map(str, BOUNDS), "+Inf"]
        buckets = list(zip(bounds, map(float, waits), strict=True))
        yield HistogramMetricFamily(f"limits_{WAITS[0]}", WAITS[1], buckets=buckets, sum_value=seconds)


def install(registry: CollectorRegistry = REGISTRY) -> LimitsCollector:
    """Export from now on."""
    collector = LimitsCollector()
    registry.register(collector)
    return collector

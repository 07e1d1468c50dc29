"""Metrics for Prometheus: `limits_*` in a registry, read when it is collected."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from limits_app.metrics.catalogue import HISTOGRAMS, METRICS, Kind

__all__ = ["LimitsCollector", "install"]

_FAMILIES = {Kind.COUNTER: CounterMetricFamily, Kind.GAUGE: GaugeMetricFamily}


class LimitsCollector(Collector):
    """Collects what this process knows."""

    def describe(self) -> Iterator[Metric]:
        """The metrics without numbers, for which no database is asked."""
        for metric in METRICS:
            yield _FAMILIES[metric.kind](f"limits_{metric.name}", metric.text, labels=metric.labels)
        for one in HISTOGRAMS:
            yield HistogramMetricFamily(f"limits_{one.name}", one.text, labels=one.labels)

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        for metric in METRICS:
            family = _FAMILIES[metric.kind](f"limits_{metric.name}", metric.text, labels=metric.labels)
            for labels, value in metric.samples():
                family.add_metric(labels, value)
            yield family
        for one in HISTOGRAMS:
            histogram = HistogramMetricFamily(f"limits_{one.name}", one.text, labels=one.labels)
            bounds = [*map(str, one.durations.bounds), "+Inf"]
            for labels, (counts, seconds) in one.durations.noted.items():
                histogram.add_metric(labels, list(zip(bounds, map(float, counts), strict=True)), seconds)
            yield histogram


def install(registry: CollectorRegistry = REGISTRY) -> LimitsCollector:
    """Export from now on."""
    collector = LimitsCollector()
    registry.register(collector)
    return collector

"""Instruments of prometheus_client, `limits_*`. Works without Django."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from limits_app.metrics.instruments import INSTRUMENTS, Instrument, Kind, Labels, is_multiprocess


class PrometheusRecorder(Collector):
    """Records with the counters, gauges and histograms of one registry.

    As a collector it has no metrics: before each collection of the registry it calls `before_collection`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.before_collection: list[Callable[[], object]] = []
        registry.register(self)  # before the instruments, since a registry collects in the order of registration
        self._metrics = {name: _made(instrument, registry) for name, instrument in INSTRUMENTS.items()}

    def describe(self) -> Iterable[Metric]:
        """Return nothing; keeps `register` from collecting."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Call `before_collection`, and return nothing."""
        for callback in self.before_collection:
            callback()
        return ()

    def record(self, name: str, value: float, labels: Labels = ()) -> None:
        """See `Recorder.record`."""
        metric = self._metrics[name]
        child = metric.labels(*labels) if labels else metric
        match child:
            case Counter():
                child.inc(value)
            case Gauge():
                child.set(value)
            case _:
                child.observe(value)


def _made(instrument: Instrument, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    name = f"limits_{instrument.name}"
    match instrument.kind:
        case Kind.COUNTER:
            return Counter(name, instrument.text, instrument.labels, registry=registry)
        case Kind.HISTOGRAM:
            return Histogram(name, instrument.text, instrument.labels, registry=registry, buckets=instrument.buckets)
        case _:
            mode: Any = instrument.combined
            return Gauge(name, instrument.text, instrument.labels, registry=registry, multiprocess_mode=mode)


@cache
def recorder(registry: CollectorRegistry = REGISTRY) -> PrometheusRecorder:
    """Return the recorder of a registry, and make it first where it is missing."""
    return PrometheusRecorder(registry)


def registry_to_export() -> CollectorRegistry:
    """Return the registry for `generate_latest`: in multi-process mode one that combines all processes."""
    if not is_multiprocess():
        return REGISTRY
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry

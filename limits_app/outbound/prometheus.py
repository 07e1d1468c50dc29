"""Metrics for Prometheus, with one label or two: the upstream or the queue, never a path or a caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from limits_app.outbound.events import Event
from limits_app.outbound.measures import INSTRUMENTS, Kind, measures_of

__all__ = ["PrometheusObserver"]

_KINDS: Final[Mapping[Kind, type[Counter | Gauge | Histogram]]] = {
    Kind.HISTOGRAM: Histogram,
    Kind.COUNTER: Counter,
    Kind.GAUGE: Gauge,
}


class PrometheusObserver:
    """Keeps `limits_outbound_*` in a registry, of which it is the only one; give it to everything that is watched."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._metrics = {
            name: _KINDS[instrument.kind](
                f"limits_outbound_{name}", instrument.text, instrument.labels, registry=registry
            )
            for name, instrument in INSTRUMENTS.items()
        }

    def note(self, event: Event) -> None:
        """Count one event."""
        for measure in measures_of(event):
            _written(self._metrics[measure.name].labels(*measure.labels))(measure.value)


def _written(metric: Counter | Gauge | Histogram) -> Callable[[float], None]:
    """How a value gets into a metric."""
    match metric:
        case Histogram():
            return metric.observe
        case Counter():
            return metric.inc
        case Gauge():
            return metric.set

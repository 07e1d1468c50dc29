"""Metrics for OpenTelemetry: instruments `limits.*`, which the SDK asks when it exports."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from limits_app.metrics.catalogue import HISTOGRAMS, METRICS, Histogram, Kind, Metric
from limits_app.metrics.durations import Labels

__all__ = ["install"]


def install(meter: Meter | None = None) -> None:
    """Export from now on, with a meter (by default that of the provider that the site has set, or will set)."""
    chosen = get_meter("limits_app") if meter is None else meter
    for metric in METRICS:
        is_counter = metric.kind is Kind.COUNTER
        create = chosen.create_observable_counter if is_counter else chosen.create_observable_gauge
        create(f"limits.{metric.name}", callbacks=[_observed(metric)], description=metric.text)
    for histogram in HISTOGRAMS:
        histogram.durations.on_note.append(_recording(chosen, histogram))


def _recording(meter: Meter, histogram: Histogram) -> Callable[[float, Labels], None]:
    instrument = meter.create_histogram(
        f"limits.{histogram.name}",
        unit="s",
        description=histogram.text,
        explicit_bucket_boundaries_advisory=histogram.durations.bounds,
    )

    def record(seconds: float, labels: Labels) -> None:
        instrument.record(seconds, dict(zip(histogram.labels, labels, strict=True)))

    return record


def _observed(metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(options: CallbackOptions) -> Iterable[Observation]:  # noqa: ARG001 - as the SDK calls it
        for values, number in metric.samples():
            yield Observation(number, dict(zip(metric.labels, values, strict=True)))

    return observe

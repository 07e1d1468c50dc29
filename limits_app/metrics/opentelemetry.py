"""Metrics for OpenTelemetry: instruments `limits.*`, which the SDK asks when it exports."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from limits_app.metrics.catalogue import METRICS, WAITS, Kind, Metric
from limits_app.metrics.tallies import BOUNDS, tallies

__all__ = ["install"]


def install(meter: Meter | None = None) -> None:
    """Export from now on, with a meter (by default that of the provider that the site has set, or will set)."""
    chosen = get_meter("limits_app") if meter is None else meter
    for metric in METRICS:
        is_counter = metric.kind is Kind.COUNTER
        create = chosen.create_observable_counter if is_counter else chosen.create_observable_gauge
        create(f"limits.{metric.name}", callbacks=[_observed(metric)], description=metric.text)
    name, text = WAITS
    waits = chosen.create_histogram(
        f"limits.{name}", unit="s", description=text, explicit_bucket_boundaries_advisory=BOUNDS
    )
    tallies.on_wait.append(waits.record)


def _observed(metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(options: CallbackOptions) -> Iterable[Observation]:  # noqa: ARG001 - as the SDK calls it
        for values, number in metric.samples():
            yield Observation(number, dict(zip(metric.labels, values, strict=True)))

    return observe

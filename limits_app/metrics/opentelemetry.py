"""Instruments of OpenTelemetry, `limits.*`. Works without Django."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from limits_app.metrics.instruments import INSTRUMENTS, Instrument, Kind, Labels


class OpenTelemetryRecorder:
    """Records with the instruments of a meter, by default that of the provider that the site sets.

    The meter calls `before_collection` before each collection.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        chosen = get_meter("limits_app") if meter is None else meter
        self.before_collection: list[Callable[[], object]] = []
        self._record = {name: _made(instrument, chosen) for name, instrument in INSTRUMENTS.items()}
        # Callbacks run before the values of the other instruments are read.
        chosen.create_observable_gauge("limits.collected", callbacks=[self._collect], description="Always 1")

    def record(self, name: str, value: float, labels: Labels = ()) -> None:
        """See `Recorder.record`."""
        self._record[name](value, dict(zip(INSTRUMENTS[name].labels, labels, strict=True)))

    def _collect(self, options: CallbackOptions) -> Iterable[Observation]:  # noqa: ARG002 - as the meter calls it
        for callback in self.before_collection:
            callback()
        yield Observation(1)


def _made(instrument: Instrument, meter: Meter) -> Callable[[float, dict[str, str]], None]:
    name = f"limits.{instrument.name}"
    match instrument.kind:
        case Kind.COUNTER:
            return meter.create_counter(name, description=instrument.text).add
        case Kind.GAUGE:
            return meter.create_gauge(name, description=instrument.text).set
        case _:
            return meter.create_histogram(
                name, unit="s", description=instrument.text, explicit_bucket_boundaries_advisory=instrument.buckets
            ).record

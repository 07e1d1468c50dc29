"""Metrics for Prometheus and OpenTelemetry, recorded with their own instruments; no label is an entity.

`instruments` lists them all. `install` is called when the app starts, and does nothing unless the setting METRICS names
an exporter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from limits_app.acquiring import at_end
from limits_app.metrics.instruments import is_multiprocess

if TYPE_CHECKING:
    from limits_app.metrics.opentelemetry import OpenTelemetryRecorder
    from limits_app.metrics.prometheus import PrometheusRecorder


def install() -> None:
    """Export to the exporters of the setting METRICS; the system checks report invalid settings.

    Raises ImproperlyConfigured when the package of an exporter is not installed.
    """
    # Imported here, so that metrics of outbound calls work without Django.
    from django.core.exceptions import ImproperlyConfigured

    from limits_app import conf

    recorders: list[PrometheusRecorder | OpenTelemetryRecorder] = []
    for exporter in () if conf.problems() else conf.get(conf.METRICS):
        try:
            if exporter is conf.Exporter.PROMETHEUS:
                from limits_app.metrics.prometheus import recorder

                recorders.append(recorder())
            else:
                from limits_app.metrics.opentelemetry import OpenTelemetryRecorder

                recorders.append(OpenTelemetryRecorder())
        except ModuleNotFoundError as error:
            message = (
                f"METRICS in LIMITS names {exporter}, which is not installed: pip install 'limits-app[{exporter}]'"
            )
            raise ImproperlyConfigured(message) from error
    if recorders:
        record(*recorders)


def record(*recorders: PrometheusRecorder | OpenTelemetryRecorder) -> None:
    """Record all metrics of the site, in this process, with these recorders.

    A recorder that already records them is left out, such as that of the setting METRICS.
    """
    from limits_app.acquiring import CALL_OBSERVERS
    from limits_app.metrics.collection import Collection
    from limits_app.models.own_queries import failures
    from limits_app.services.notify import OBSERVERS
    from limits_app.stores.resilient import TIMERS

    recording = {
        recorder for observer in OBSERVERS if isinstance(observer, Collection) for recorder in observer.recorders
    }
    added = [recorder for recorder in dict.fromkeys(recorders) if recorder not in recording]
    if not added:
        return
    collection = Collection(by_itself=is_multiprocess())
    collection.recorders.extend(added)
    for recorder in added:
        recorder.before_collection.append(collection.collect)
    OBSERVERS.append(collection)
    TIMERS.append(collection.store_called)
    CALL_OBSERVERS.append(collection.worker_called)
    if is_multiprocess():
        failures.observers.append(collection.read_failed)
        at_end(collection.collect)

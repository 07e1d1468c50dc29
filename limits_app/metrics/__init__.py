"""Metrics: what this process does, for Prometheus and OpenTelemetry, with no label for anybody who uses it.

What is decided, and what stores are asked, is told to `tallies`, and only where somebody exports it; everything else
is read when it is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from django.core.exceptions import ImproperlyConfigured

from limits_app import conf
from limits_app.conf import Exporter
from limits_app.metrics.tallies import tallies
from limits_app.services.notify import OBSERVERS
from limits_app.stores.resilient import TIMERS

__all__ = ["install"]


def install() -> None:
    """Export to whom the settings name; what is wrong with them checks say.

    Raises ImproperlyConfigured where the package of one is missing.
    """
    chosen = () if conf.problems() else conf.get(conf.METRICS)
    if chosen and tallies not in OBSERVERS:
        OBSERVERS.append(tallies)
        TIMERS.append(tallies.store_called)
    for exporter in chosen:
        try:
            _INSTALL[exporter]()
        except ModuleNotFoundError as error:
            message = f"METRICS in LIMITS names {exporter}, which needs a package: pip install 'limits-app[{exporter}]'"
            raise ImproperlyConfigured(message) from error


# Imported when they are wanted: their packages are extras.
def _prometheus() -> None:
    from limits_app.metrics import prometheus

    prometheus.install()


def _opentelemetry() -> None:
    from limits_app.metrics import opentelemetry

    opentelemetry.install()


_INSTALL: Final[Mapping[Exporter, Callable[[], None]]] = {
    Exporter.PROMETHEUS: _prometheus,
    Exporter.OPENTELEMETRY: _opentelemetry,
}

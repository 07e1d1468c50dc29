"""Metrics: what this process does, for Prometheus and OpenTelemetry, with no label for anybody who uses it.

What is decided, and what stores are asked, is told to `tallies`, and only where somebody exports it; everything else
is read when it is wanted.
"""

from __future__ import annotations

from limits_app import conf
from limits_app.conf import Exporter
from limits_app.metrics.tallies import tallies
from limits_app.services.watching import WATCHERS
from limits_app.stores.timed import TIMERS

__all__ = ["install"]


def install() -> None:
    """Export to whom the settings name; ImportError says which extra is missing. What is wrong with them checks say."""
    chosen = () if conf.problems() else conf.get(conf.METRICS)
    if chosen and tallies not in WATCHERS:
        WATCHERS.append(tallies)
        TIMERS.append(tallies.store_called)
    # Imported when they are wanted: their packages are extras.
    if Exporter.PROMETHEUS in chosen:
        from limits_app.metrics import prometheus

        prometheus.install()
    if Exporter.OPENTELEMETRY in chosen:
        from limits_app.metrics import opentelemetry

        opentelemetry.install()

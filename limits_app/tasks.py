"""Tasks for Celery's beat: call `roll_up` and `send_alerts` every minute or so, and `prune` once a day.

They work on the present namespace; with `every_namespace=True` on each in `LIMITS["NAMESPACES"]`, and return the result
of each by its name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from celery import shared_task

from limits_app import alerts, conf, services
from limits_app.engine.errors import LimitsError
from limits_app.models.namespaces import run_in_all

logger = logging.getLogger("limits_app")


@shared_task(name="limits_app.roll_up", ignore_result=True)  # type: ignore[untyped-decorator]  # no types
def roll_up(*, every_namespace: bool = False) -> Mapping[str, Any]:
    """See `limits.roll_up`."""
    return _run(lambda: services.roll_up().as_dict(), every_namespace=every_namespace)


@shared_task(name="limits_app.prune", ignore_result=True)  # type: ignore[untyped-decorator]  # no types
def prune(*, every_namespace: bool = False) -> Mapping[str, Any]:
    """See `limits.prune_usage`; the archive is that of the settings."""
    folder = conf.get(conf.USAGE_ARCHIVE_DIR)
    return _run(lambda: services.prune_usage(archive=folder), every_namespace=every_namespace)


@shared_task(name="limits_app.send_alerts", ignore_result=True)  # type: ignore[untyped-decorator]  # no types
def send_alerts(*, every_namespace: bool = False) -> Mapping[str, Any]:
    """Send the alerts that are due."""
    return _run(lambda: alerts.send().as_dict(), every_namespace=every_namespace)


def _run(work: Callable[[], Mapping[str, Any]], *, every_namespace: bool) -> Mapping[str, Any]:
    """Do the work of a task; LimitsError where that of a namespace fails, after all others."""
    if not every_namespace:
        return work()
    results: dict[str, Any] = {}

    def run(name: str) -> None:
        results[name] = work()

    errors = run_in_all(run)
    for name, error in errors.items():
        logger.error("the work on the namespace %s failed", name, exc_info=error)
    if errors:
        raise LimitsError(f"the work on the namespaces {', '.join(errors)} failed; that on the others is done")
    return results

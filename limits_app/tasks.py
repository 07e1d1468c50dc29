"""Tasks for Celery's beat: call `roll_up` and `send_alerts` every minute or so, and `prune` once a day."""

from __future__ import annotations

from celery import shared_task

from limits_app import alerts, conf, services


@shared_task(name="limits_app.roll_up", ignore_result=True)  # type: ignore[untyped-decorator]  # no types
def roll_up() -> dict[str, object]:
    """See `limits.roll_up`."""
    return services.roll_up().as_dict()


@shared_task(name="limits_app.prune", ignore_result=True)  # type: ignore[untyped-decorator]  # no types
def prune() -> dict[str, int]:
    """See `limits.prune_usage`; the archive is that of the settings."""
    return services.prune_usage(archive=conf.get(conf.USAGE_ARCHIVE_DIR))


@shared_task(name="limits_app.send_alerts", ignore_result=True)  # type: ignore[untyped-decorator]  # no types
def send_alerts() -> dict[str, int]:
    """Send the alerts that are due."""
    return alerts.send().as_dict()

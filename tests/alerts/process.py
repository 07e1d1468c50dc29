"""A site with alerts: four processes use one limit at the same time, then four send the alerts that are due."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from multiprocessing import get_context

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
from django.conf import settings

settings.LIMITS |= {"ALERTS": True, "ALERT_PRIVATE_TARGETS": True}
django.setup()

from django.core.management import call_command  # noqa: E402 - only once Django is set up
from django.db import connections  # noqa: E402 - the same

from limits_app import CallLimit, RateLimitAlgorithm, alerts, limits  # noqa: E402 - the same
from limits_app.models import AlertRule  # noqa: E402 - the same


def use() -> None:
    """Use a quarter of the limit."""
    for _ in range(25):
        limits.acquire("api", entity="user:1")
    alerts.recorder.flush()


def send() -> None:
    """Send what is due, and print how many alerts that was."""
    os.write(1, f"{alerts.send().sent}\n".encode())  # one write, so that lines of several processes are not mixed


def four(work: Callable[[], None]) -> None:
    """Run a function in four processes."""
    connections.close_all()
    children = [get_context("fork").Process(target=work) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()


call_command("migrate", verbosity=0)
limits.set_resource_limits("api", [CallLimit(100, 864_000, RateLimitAlgorithm.FIXED_WINDOW)])
AlertRule.objects.create(name="80", kind="threshold", percent=80, channel="webhook", target=sys.argv[1])
four(use)
four(send)

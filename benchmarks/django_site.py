"""The demo site's settings, with everything in memory, for whatever needs Django."""

from __future__ import annotations

import os

__all__ = ["configure", "start"]


def configure() -> None:
    """Let Django find its settings; enough for caches and requests."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
    os.environ["LIMITS_DEMO_DATABASE"] = ":memory:"
    # With DEBUG every query is kept, which costs time and memory.
    os.environ["LIMITS_DEMO_DEBUG"] = "false"


def start() -> None:
    """Load the apps, and create the tables in an empty database."""
    configure()
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)

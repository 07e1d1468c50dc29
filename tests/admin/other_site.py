"""Run with the names of apps to leave out (-app) or to put first (+app): asks each page of the admin on such a site."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import django
from django.conf import settings

MODELS = ("resource", "entity", "policy", "endpoint", "pool", "auditevent")


def main(*changes: str) -> None:
    """Print a line for each page, with what it answered."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
    with tempfile.TemporaryDirectory() as directory:
        for change in changes:
            if change[0] == "-":
                settings.INSTALLED_APPS.remove(change[1:])
            else:
                settings.INSTALLED_APPS.insert(0, change[1:])
        settings.DATABASES["default"]["NAME"] = str(Path(directory) / "other.sqlite3")
        settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}
        django.setup()
        ask()


def ask() -> None:
    """Make something to look at, and look at it."""
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client
    from django.urls import reverse

    from limits_app import CallLimit, limits
    from limits_app.models import Policy

    call_command("migrate", verbosity=0)
    limits.set_resource_limits("api", [CallLimit(10, 60)], shared=["call_count"])
    limits.set_entity_limits("user:1", [CallLimit(5, 60)], resource="api")
    client = Client(headers={"host": "localhost"})
    client.force_login(User.objects.create_superuser("admin"))
    policy = Policy.objects.latest("pk")
    addresses = [reverse(f"admin:limits_app_{model}_changelist") for model in MODELS]
    addresses += [reverse(f"admin:limits_app_{model}_add") for model in MODELS if model != "auditevent"]
    addresses += [reverse("admin:limits_app_policy_change", args=[policy.pk]), reverse("admin:limits_app_policy_boost")]
    for address in addresses:
        tell(address, client.get(address).status_code)
    page = client.get(reverse("admin:limits_app_policy_changelist")).content.decode()
    tell("shows what is used", int("0 of 5 used, 5 left" in page))
    tell("offers imports", int("/policy/import/" in page))
    chosen = {"action": "disable_policies", "_selected_action": [policy.pk]}
    tell("asks", client.post(addresses[2], chosen).status_code)
    tell("acts", client.post(addresses[2], {**chosen, "confirmed": "yes"}).status_code)
    tell("is off", int(Policy.objects.get(pk=policy.pk).enforcement == "off"))


def tell(what: str, answer: int) -> None:
    """Print a line."""
    sys.stdout.write(f"{answer} {what}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

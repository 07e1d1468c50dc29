"""Checks the pages of the admin on a site without an app (-app), or with one more (+app), in a migrated database."""

from __future__ import annotations

import os
import sys

import django
from django.conf import settings

MODELS = ("resource", "entity", "policy", "endpoint", "pool", "auditevent")


def main(database: str, change: str) -> None:
    """Set the site up, and check its pages."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
    if change[0] == "-":
        settings.INSTALLED_APPS.remove(change[1:])
    else:
        settings.INSTALLED_APPS.insert(0, change[1:])
    settings.DATABASES["default"]["NAME"] = database
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}
    django.setup()
    ask()


def ask() -> None:
    """Make something to look at, and look at it."""
    from django.apps import apps
    from django.contrib.auth.models import User
    from django.test import Client
    from django.urls import reverse

    from limits_app import CallLimit, limits
    from limits_app.models import Policy

    limits.set_resource_limits("api", [CallLimit(10, 60)], shared=["call_count"])
    limits.set_entity_limits("user:1", [CallLimit(5, 60)], resource="api")
    client = Client(headers={"host": "localhost"})
    client.force_login(User.objects.create_superuser("admin"))
    policy = Policy.objects.latest("pk")
    addresses = [reverse(f"admin:limits_app_{model}_changelist") for model in MODELS]
    addresses += [reverse(f"admin:limits_app_{model}_add") for model in MODELS if model != "auditevent"]
    addresses += [reverse("admin:limits_app_policy_change", args=[policy.pk]), reverse("admin:limits_app_policy_boost")]
    for address in addresses:
        assert client.get(address).status_code == 200, address
    page = client.get(reverse("admin:limits_app_policy_changelist")).content.decode()
    assert "0 of 5 used, 5 left" in page
    assert ("/policy/import/" in page) is apps.is_installed("import_export")
    chosen = {"action": "disable_policies", "_selected_action": [policy.pk]}
    assert client.post(addresses[2], chosen).status_code == 200
    assert client.post(addresses[2], {**chosen, "confirmed": "yes"}).status_code == 302
    assert Policy.objects.get(pk=policy.pk).enforcement == "off"


if __name__ == "__main__":
    main(*sys.argv[1:])

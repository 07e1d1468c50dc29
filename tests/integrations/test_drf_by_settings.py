"""Throttles that the settings name for all views: the framework imports them while it makes its own view."""

from __future__ import annotations

import subprocess
import sys

import pytest

SITE = """
import django
from django.conf import settings
from django.urls import path

settings.configure(
    SECRET_KEY="secret",
    ROOT_URLCONF="__main__",
    ALLOWED_HOSTS=["testserver"],
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "rest_framework", "limits_app"],
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}},
    LIMITS={{"STORES": {{"default": {{"KIND": "memory"}}}}}},
    REST_FRAMEWORK={{
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "DEFAULT_THROTTLE_CLASSES": ["{throttle}"],
        "DEFAULT_THROTTLE_RATES": {{"anon": "2/day", "user": "2/day"}},
    }},
)
django.setup()

{first}
from django.core.management import call_command
from django.test import Client
from rest_framework.decorators import api_view
from rest_framework.response import Response

call_command("migrate", verbosity=0)


@api_view()
def fine(request):
    return Response("fine")


urlpatterns = [path("", fine)]
print([Client().get("/").status_code for _ in range(3)])
"""

OURS = "limits_app.integrations.drf."
ANON, OWN = f"{OURS}rates.AnonRateThrottle", f"{OURS}throttle.LimitThrottle"
FIRST = {
    "the_framework": "",
    "a_throttle": f"from {OURS}rates import UserRateThrottle",
    "our_view": "import limits_app.api.urls",
}


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
@pytest.mark.parametrize(
    ("throttle", "statuses"),
    [
        pytest.param(ANON, [200, 200, 429], id="a_rate"),
        pytest.param(OWN, [200, 200, 200], id="a_resource"),  # none, so that it throttles nothing
    ],
)
def test_whatever_is_imported_first_all_views_have_them(throttle: str, statuses: list[int], first: str) -> None:
    command = [sys.executable, "-c", SITE.format(throttle=throttle, first=first)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.stdout.strip(), ended.stderr) == (str(statuses), "")

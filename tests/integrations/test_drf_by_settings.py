"""Throttles that the settings name for all views: the framework imports them while it makes its own view."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

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
    MIGRATION_MODULES={{"limits_app": None}},
    LIMITS={{"STORES": {{"default": {{"KIND": "memory"}}}}}},
    REST_FRAMEWORK={{
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "DEFAULT_THROTTLE_CLASSES": [
            "limits_app.integrations.drf.throttle.LimitThrottle",  # of no resource, so that it throttles nothing
            "limits_app.integrations.drf.rates.AnonRateThrottle",
        ],
        "DEFAULT_THROTTLE_RATES": {{"anon": "2/day", "user": "2/day"}},
    }},
)
django.setup()

{first}
from django.core.management import call_command
from django.test import Client
from rest_framework.decorators import api_view
from rest_framework.response import Response

call_command("migrate", run_syncdb=True, verbosity=0)


@api_view()
def fine(request):
    return Response("fine")


urlpatterns = [path("", fine)]
print([Client().get("/").status_code for _ in range(3)])
"""

FIRST = {
    "the_framework": "",
    "a_throttle": "from limits_app.integrations.drf.rates import UserRateThrottle",
    "our_view": "import limits_app.api.urls",
}


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_all_views_have_them_in_any_order_of_imports(first: str) -> None:
    command = [sys.executable, "-c", SITE.format(first=first)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.stdout.strip(), ended.stderr) == ("[200, 200, 429]", "")

"""A site with metrics, for gunicorn: `/allowed` makes a request, `/metrics` exports."""

from __future__ import annotations

import json
import os

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

settings.configure(
    SECRET_KEY="test",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "limits_app"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["SITE_DATABASE"]}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
    LIMITS={"METRICS": ["prometheus"], "STORES": {"default": json.loads(os.environ["SITE_STORE"])}},
)
django.setup()

from limits_app import limits  # noqa: E402 - the app must be set up
from limits_app.metrics.prometheus import registry_to_export  # noqa: E402 - as above


def allowed(request: HttpRequest) -> HttpResponse:
    """Make a request to the resource `reports`; respond with the process that did."""
    with limits.try_acquire("reports") as acquisition:
        return HttpResponse(f"{os.getpid()} {acquisition.successful}")


def metrics(request: HttpRequest) -> HttpResponse:
    """Export the metrics of all processes."""
    return HttpResponse(generate_latest(registry_to_export()), content_type=CONTENT_TYPE_LATEST)


urlpatterns = [path("allowed", allowed), path("metrics", metrics)]
application = get_wsgi_application()

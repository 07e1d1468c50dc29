"""A site under greenlets: `patched` makes everything of it cooperative, as `gunicorn -k gevent` does."""

from __future__ import annotations

import os
from time import sleep

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

settings.configure(
    SECRET_KEY="test",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "limits_app"],
    MIDDLEWARE=["limits_app.integrations.middleware.LimitsMiddleware"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["SITE_DATABASE"]}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
    LIMITS={"STATE_DIR": os.environ["SITE_STATE"]},
)
django.setup()

from limits_app import limits  # noqa: E402 - the app must be set up

HELD_SECONDS = 0.4


def hold(_request: HttpRequest) -> HttpResponse:
    """Wait for the permit, and hold it."""
    with limits.acquire("reports", timeout=60):
        sleep(HELD_SECONDS)
    return HttpResponse(f"{os.getpid()} held")


def quick(_request: HttpRequest) -> HttpResponse:
    """Answer, with whether the process is patched."""
    from gevent import monkey

    return HttpResponse(f"{os.getpid()} {monkey.is_module_patched('threading')}")


urlpatterns = [path("hold", hold), path("quick", quick)]
application = get_wsgi_application()

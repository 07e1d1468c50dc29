"""A site that proxies ask, for gunicorn; 1,000 requests a day to `/api/` are allowed for each client."""

from __future__ import annotations

import os

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path, re_path

settings.configure(
    SECRET_KEY="test",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "limits_app"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["SITE_DATABASE"]}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
    LIMITS={"STATE_DIR": os.environ["SITE_STATE"], "TRUSTED_PROXIES": ["127.0.0.1"]},
)
django.setup()

from limits_app.integrations.forward_auth import ext_authz, forward_auth  # noqa: E402 - the app must be set up

urlpatterns = [
    path("", lambda request: HttpResponse("the home page")),
    path("limits/forward-auth/", forward_auth),
    re_path("^limits/ext-authz/(?P<path>.*)$", ext_authz),
]
application = get_wsgi_application()

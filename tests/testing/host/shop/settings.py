"""Settings as of a site in production: no store is chosen for its tests."""

import json
import os

SECRET_KEY = "only-for-tests-of-a-host-project" + "0123456789" * 3
ALLOWED_HOSTS = ["shop.example"]
ROOT_URLCONF = "shop.urls"
STATIC_URL = "static/"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": json.loads(os.environ["SHOP_DATABASE"])}
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions", "limits_app"]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "limits_app.integrations.middleware.LimitsMiddleware",
]
LIMITS = json.loads(os.environ["SHOP_LIMITS"])

"""Settings of the site, from the environment."""

from __future__ import annotations

from benchmarks.site import site_of_environment

SITE = site_of_environment()

SECRET_KEY = "only-for-benchmarks-" + "0123456789" * 4
ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "limits_app"]
MIDDLEWARE = ["benchmarks.site.middleware.identify", *SITE.middleware]
if SITE.view == "admin":
    _ADMIN = ("sessions", "messages", "admin")
    INSTALLED_APPS = [*(f"django.contrib.{name}" for name in _ADMIN), *INSTALLED_APPS]
    MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        *SITE.middleware,
    ]
    TEMPLATES = [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ]
    STATIC_URL = "static/"
ROOT_URLCONF = "benchmarks.site.urls"
DATABASES = {"default": SITE.database}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
LIMITS = SITE.limits

# More entries than there are users: the cache of a site that wants to limit all of them.
_LOCAL_MEMORY = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "OPTIONS": {"MAX_ENTRIES": 1_000_000}}
CACHES = {"default": SITE.cache or _LOCAL_MEMORY}
SILENCED_SYSTEM_CHECKS = ["django_ratelimit.E003", "django_ratelimit.W001"]  # each worker has its own counts

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.SessionAuthentication"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_THROTTLE_RATES": {"user": "100000000/hour"},
}

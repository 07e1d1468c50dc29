"""Settings of the demo and test site; environment variables override some of them."""

import os
from pathlib import Path
from typing import Any

BASE_DIR = Path(__file__).resolve().parent.parent

# For local use only: a public site needs a secret key and DEBUG off.
SECRET_KEY = os.environ.get("LIMITS_DEMO_SECRET_KEY", "only-for-development-" + "0123456789" * 4)
DEBUG = os.environ.get("LIMITS_DEMO_DEBUG", "true").lower() in {"1", "true", "yes"}
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", "testserver"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    # For the command that writes the schema of the REST API.
    "drf_spectacular",
    # Imports and exports in the admin.
    "import_export",
    "limits_app",
]

MIDDLEWARE = [
    # First, so that rejections have the header too.
    "project.middleware.tell_process",
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    # After authentication, because users have limits.
    "limits_app.integrations.middleware.LimitsMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
ASGI_APPLICATION = "project.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("LIMITS_DEMO_DATABASE", BASE_DIR / "db.sqlite3"),
        "OPTIONS": {
            # Several processes write: wait for the lock at the start of a transaction instead of failing later.
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    },
}

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "project" / "static"]

LOGIN_URL = "login"
LOGIN_REDIRECT_URL = LOGOUT_REDIRECT_URL = "index"

REST_FRAMEWORK = {"DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema"}

CELERY_BROKER_URL = os.environ.get("LIMITS_DEMO_BROKER", "memory://")

LIMITS: dict[str, Any] = {}
if state_dir := os.environ.get("LIMITS_DEMO_STATE_DIR"):
    LIMITS["STATE_DIR"] = state_dir
# Where alerts are recorded and sent, mails are files, which the site shows.
if mail_dir := os.environ.get("LIMITS_DEMO_MAIL_DIR"):
    LIMITS["ALERTS"] = True
    EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
    EMAIL_FILE_PATH = mail_dir

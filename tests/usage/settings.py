"""The demo's settings with the stores and the database of a test's own, and no more apps than that needs."""

import json
import os

from project.settings import *  # noqa: F403 - settings extend settings

_GIVEN = json.loads(os.environ["LIMITS_TEST_SITE"])

INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "limits_app"]
LIMITS = _GIVEN["LIMITS"]
if "DATABASE" in _GIVEN:
    DATABASES = {"default": _GIVEN["DATABASE"]}
    if DATABASES["default"]["ENGINE"].endswith("mysql"):
        import pymysql

        pymysql.install_as_MySQLdb()
LOGGING = {"version": 1, "disable_existing_loggers": False, "loggers": {"limits_app": {"level": "ERROR"}}}

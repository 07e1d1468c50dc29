"""The Celery application of the tests."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.celery.settings")

app = Celery("tests.celery")
app.config_from_object("django.conf:settings", namespace="CELERY")

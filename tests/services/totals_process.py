"""One process of a site with a total over many resources: `prepare`, or a number of requests; prints what it admitted.

The environment has the kind of the store, and the URL or the settings of its server.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

import django
from django.conf import settings

os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
SITE: dict[str, Any] = json.loads(os.environ["TOTALS_SITE"])
if SITE["kind"] == "postgres":  # the whole site is there
    settings.DATABASES["default"] = SITE["where"]
PATIENT = {"CONNECT_TIMEOUT_SECONDS": 20, "REPLY_TIMEOUT_SECONDS": 20}
STORES = {"process": {"KIND": "process"}, "redis": {"KIND": "redis", "URL": SITE["where"], **PATIENT}}
settings.LIMITS["STORES"] = {"default": STORES.get(SITE["kind"], {"KIND": "database"})}
django.setup()

from django.core.management import call_command  # noqa: E402 - only once Django is set up

from limits_app import CallLimit, limits  # noqa: E402 - the same

if sys.argv[1] == "prepare":
    call_command("migrate", verbosity=0)
    limits.set_entity_limits("tenant:acme", [CallLimit(1000, 86_400)], counted="total")
else:
    admitted = 0
    for _ in range(int(sys.argv[1])):
        admitted += bool(limits.try_acquire(f"r{random.randrange(50)}", entity="tenant:acme"))
    sys.stdout.write(f"{admitted}\n")

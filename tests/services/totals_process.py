"""One process of a site with totals over many resources: `prepare` or `run`; prints what each run admitted.

The other arguments are the numbers of runs, requests that a total admits, requests of a run, and resources.
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
if SITE["kind"] == "mariadb":
    import pymysql

    pymysql.install_as_MySQLdb()
if SITE["kind"] in {"postgres", "mariadb"}:  # the whole site is there
    settings.DATABASES["default"] = SITE["where"]
PATIENT = {"CONNECT_TIMEOUT_SECONDS": 20, "REPLY_TIMEOUT_SECONDS": 20}
STORES = {"process": {"KIND": "process"}, "redis": {"KIND": "redis", "URL": SITE["where"], **PATIENT}}
settings.LIMITS["STORES"] = {"default": STORES.get(SITE["kind"], {"KIND": "database"})}
django.setup()

from django.core.management import call_command  # noqa: E402 - only once Django is set up

from limits_app import CallLimit, limits  # noqa: E402 - the same

verb = sys.argv[1]
runs, total, requests, resources = map(int, sys.argv[2:])
if verb == "prepare":
    call_command("migrate", verbosity=0)
    for run in range(runs):
        limits.set_entity_limits(f"tenant:{run}", [CallLimit(total, 86_400)], counted="total")
else:
    admitted = [
        sum(
            bool(limits.try_acquire(f"r{random.randrange(resources)}", entity=f"tenant:{run}")) for _ in range(requests)
        )
        for run in range(runs)
    ]
    sys.stdout.write(f"{json.dumps(admitted)}\n")

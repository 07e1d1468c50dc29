"""One process of a site that uses a pool whose members cool down: follows commands, one a line, and answers each.

`prepare` makes the site, `report MEMBER SECONDS` reports an upstream, and `acquire` tells which member serves a request
of the resource on each store, a second after the last command. Seconds pass by the clock of the balancers alone.
`cool SECONDS` reports the upstream of a resource without a pool, and `plain` tells whether it admits a request.
The environment has the URL of a Redis server.
"""

from __future__ import annotations

import os
import sys

import django
from django.conf import settings

os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
PATIENT = {"CONNECT_TIMEOUT_SECONDS": 20, "REPLY_TIMEOUT_SECONDS": 20}
settings.LIMITS["STORES"] = {
    "default": {"KIND": "process"},
    "database": {"KIND": "database"},
    "redis": {"KIND": "redis", "URL": os.environ["COOLING_REDIS"], **PATIENT},
}
django.setup()

from django.core.management import call_command  # noqa: E402 - only once Django is set up

from limits_app import CallLimit, limits  # noqa: E402 - the same
from limits_app.models import Limit, Policy, Pool, PoolMember, Resource  # noqa: E402 - the same

STORES = ["default", "database", "redis"]


def prepare() -> str:
    """A pool of two members, and a resource on each store that it serves."""
    call_command("migrate", verbosity=0)
    pool = Pool.objects.create(name="regions", load_balancing="failover")
    for order, name in enumerate(("a", "b")):
        member = PoolMember.objects.create(pool=pool, name=name, order=order)
        Limit.from_definition(member, CallLimit(1_000, 86_400)).save()
    for store in STORES:
        Resource.objects.create(name=store, pool=pool, store="" if store == "default" else store)
        Resource.objects.create(name=f"plain/{store}", store="" if store == "default" else store)
    Limit.from_definition(Policy.objects.create(), CallLimit(1_000, 86_400)).save()
    return "done"


def acquire() -> str:
    """The members that serve the next request of each resource."""
    return "".join([str(limits.acquire(store).config["member"]) for store in STORES])


def plain() -> str:
    """Whether each resource without a pool admits a request."""
    return "".join(["-+"[limits.try_acquire(f"plain/{store}").successful] for store in STORES])


for line in sys.stdin:
    match line.split():
        case ["prepare"]:
            answer = prepare()
        case ["acquire"]:
            answer = acquire()
        case ["report", member, seconds]:
            limits.report_upstream("regions", member, retry_after=float(seconds))
            answer = "done"
        case ["plain"]:
            answer = plain()
        case ["cool", seconds]:
            for store in STORES:
                limits.report_upstream(f"plain/{store}", retry_after=float(seconds))
            answer = "done"
    sys.stdout.write(f"{answer}\n")
    sys.stdout.flush()

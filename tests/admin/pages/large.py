"""Measures the usage page with many snapshots: python -m tests.admin.pages.large [sqlite|postgres] [snapshots].

It prints the queries and the seconds of the page over each time, and of the live state, with those of its own work in
brackets, and fails where one takes more than 12 queries or half a second.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from statistics import median
from time import perf_counter, process_time
from urllib.parse import urljoin

import django
from django.conf import settings

from tests.admin.large import MOST_QUERIES, MOST_SECONDS, ROUNDS, database, say

DAYS, RESOURCES, KEYS = 30, 10, ("call_count", "tokens")
PAGES = (
    "",
    "?span=week",
    "?span=month",
    "?span=year",
    "?resource=resource3",
    "?entity=user:7&span=month",
    "../live/state/",
)


def fill(snapshots: int) -> None:
    """Hours and days of as many entities as it takes, each on one resource."""
    from limits_app.models import Period, Resource, UsageSnapshot

    Resource.objects.bulk_create([Resource(name=f"resource{number}") for number in range(RESOURCES)])
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    entities = snapshots // (DAYS * 25 * len(KEYS))

    def rows() -> Iterator[UsageSnapshot]:
        for day in range(DAYS):
            for period, start in [(Period.DAY, today - timedelta(days=day))] + [
                (Period.HOUR, today + timedelta(days=1 - day) - timedelta(hours=hour + 1)) for hour in range(24)
            ]:
                for number in range(entities):
                    whose = {"resource": f"resource{number % RESOURCES}", "entity": f"user:{number}"}
                    for key in KEYS:
                        figures = {"admitted_milli": number * 1000, "refused": number % 3}
                        yield UsageSnapshot(**whose, key=key, period=period, start=start, **figures)

    everything = rows()
    while batch := [row for row, _ in zip(everything, range(20_000), strict=False)]:
        UsageSnapshot.objects.bulk_create(batch, batch_size=90)


def measure() -> bool:
    """Print what each page takes, and whether all of them are quick enough."""
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext
    from django.urls import reverse

    client = Client()
    client.force_login(User.objects.create_superuser("admin", "admin@example.org", "admin"))
    address = reverse("admin:limits_app_usagesnapshot_changelist")
    fine = True
    for page in PAGES:
        seconds, own, queries = [], [], 0
        for _ in range(ROUNDS):
            with CaptureQueriesContext(connection) as captured:
                began, began_own = perf_counter(), process_time()
                assert client.get(urljoin(address, page)).status_code == 200
                seconds.append(perf_counter() - began)
                own.append(process_time() - began_own)
            queries = len(captured)
        is_fine = queries <= MOST_QUERIES and median(seconds) <= MOST_SECONDS
        fine &= is_fine
        verdict = "" if is_fine else "TOO MUCH"
        took = f"{median(seconds):.3f} s ({median(own):.3f})"
        say(f"{page or '(the last day)':45} {queries:3} queries  {took}  {verdict}")
    return fine


def main() -> None:
    """Make the database, fill it, look."""
    kind = sys.argv[1] if len(sys.argv) > 1 else "sqlite"
    snapshots = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
    with database(kind) as chosen:
        settings.DATABASES["default"] = chosen
        settings.DEBUG = False
        settings.ALLOWED_HOSTS = ["testserver"]
        settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}
        django.setup()
        from django.core.management import call_command
        from django.db import connections

        call_command("migrate", verbosity=0)
        fill(snapshots)
        with connections["default"].cursor() as cursor:
            cursor.execute("ANALYZE")
        say(f"{snapshots:,} snapshots on {kind}")
        fine = measure()
        connections.close_all()
    sys.exit(not fine)


if __name__ == "__main__":
    main()

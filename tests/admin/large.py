"""Measures the lists of the admin with many rows: python -m tests.admin.large [sqlite|postgres] [entities] [policies].

It prints the queries and the seconds of each page, with those of its own work in brackets, and fails where a page takes
more than 12 queries or half a second.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import django
from django.conf import settings

MOST_QUERIES, MOST_SECONDS = 12, 0.5
ROUNDS = 5

PAGES = (
    "entity/",
    "entity/?p=200",
    "entity/?q=user:0777",
    "entity/?q=Grace+77",
    "entity/?q=nobody",
    "entity/?blocked__exact=1",
    "entity/?o=2",
    "policy/",
    "policy/?p=200",
    "policy/?q=user:0777",
    "policy/?q=api/00007",
    "policy/?q=nobody",
    "policy/?scope=entity_on_resource",
    "policy/?holds=boosts",
    "policy/?limits__kind__exact=rate",
    "policy/?enforcement__exact=off",
    "policy/?o=4",
    "resource/",
    "autocomplete/?app_label=limits_app&model_name=policy&field_name=entity&term=user:00",
    "policy/50000/change/",
    "entity/50000/change/",
)


def main(vendor: str = "sqlite", entities: str = "1000000", policies: str = "100000") -> int:
    """Fill a database, and ask each page a few times."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
    with database(vendor) as chosen:
        settings.DATABASES["default"] = chosen
        settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}
        settings.DEBUG = False
        settings.ALLOWED_HOSTS = ["testserver"]
        django.setup()
        prepare(vendor, int(entities), int(policies))
        late = [page for page in PAGES if not asked(page)]
    return len(late)


def prepare(vendor: str, entities: int, policies: int) -> None:
    """Make tables and rows, and have the database look at them, as it does by itself in time."""
    from django.core.management import call_command
    from django.db import connection

    from tests.admin.rows import fill

    start = perf_counter()
    call_command("migrate", verbosity=0)
    fill(entities=entities, policies=policies)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    say(f"{vendor}: {entities} entities and {policies} policies made in {perf_counter() - start:.0f} s")


def asked(page: str) -> bool:
    """Ask a page, print how it did, and say whether that is good enough."""
    from django.contrib.auth.models import Permission, User
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    staff, made = User.objects.get_or_create(username="staff", is_staff=True)
    if made:
        staff.user_permissions.set(Permission.objects.all())
    client = Client()
    client.force_login(staff)
    path = f"/admin/{page}" if page.startswith("autocomplete") else f"/admin/limits_app/{page}"
    seconds: list[float] = []
    own: list[float] = []
    queries: list[int] = []
    for _ in range(ROUNDS):
        start, start_of_own = perf_counter(), process_time()
        answer: Any = client.get(path)
        seconds.append(perf_counter() - start)
        own.append(process_time() - start_of_own)
        assert answer.status_code == 200, (path, answer.status_code)
        with CaptureQueriesContext(connection) as captured:
            client.get(path)
        queries.append(len(captured))
    good = max(queries) <= MOST_QUERIES and median(seconds) <= MOST_SECONDS
    took = f"{max(queries):3} queries {median(seconds):6.3f} s ({median(own):.3f}), at most {max(seconds):6.3f} s"
    say(f"{' ' if good else '!'} {page:60} {took}")
    return good


def say(line: str) -> None:
    """Print it at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@contextmanager
def database(vendor: str) -> Iterator[dict[str, Any]]:
    """A database of one's own."""
    if vendor == "postgres":
        from tests.servers.postgres import postgres_server

        with postgres_server() as server:
            yield {**DEFAULTS, **server.settings}
        return
    with tempfile.TemporaryDirectory() as directory:
        yield {**DEFAULTS, "ENGINE": "django.db.backends.sqlite3", "NAME": str(Path(directory) / "large.sqlite3")}


DEFAULTS: dict[str, Any] = {"OPTIONS": {}, "ATOMIC_REQUESTS": False, "AUTOCOMMIT": True, "CONN_MAX_AGE": None}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

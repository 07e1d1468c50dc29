"""`python -m benchmarks.site.programs NAME [ARGUMENT ...]`: what runs in a process of the site.

Each program prints its result as JSON. All times are in microseconds.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from io import StringIO
from itertools import count, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, sleep
from types import ModuleType
from typing import Any, Final

import django

from benchmarks.site import MIDDLEWARE, PATH, RESOURCE, UNMATCHED_PATH, USER_HEADER, large
from benchmarks.site.copies import copy_row
from benchmarks.site.traffic import traffic

_RULES: Final = 100
_PLENTY: Final = 1_000_000_000
_PAUSE_SECONDS: Final = 0.1
_CLIENTS_IN_USE: Final = 300
_WARM_UP: Final = 50
_ROWS: Final = 3
"""An entity, a policy and a limit."""


class Queries:
    """Counts the queries of a block, and their time."""

    def __init__(self) -> None:
        self.count = 0
        self.us = 0.0

    def __call__(self, execute: Callable[..., object], *arguments: object) -> object:
        started = perf_counter()
        try:
            return execute(*arguments)
        finally:
            self.us += 1e6 * (perf_counter() - started)
            self.count += 1


def prepare() -> None:
    """Create the tables, and 100 URL rules, half of them routes, on a resource with one call limit."""
    from django.core.management import call_command

    from limits_app import CallLimit, limits
    from limits_app.models import Endpoint, Resource

    call_command("migrate", verbosity=0)
    limits.set_resource_limits(RESOURCE, [CallLimit(_PLENTY, 3600)])
    resource = Resource.objects.get(name=RESOURCE)
    for number in range(_RULES):
        where = f"/page/{number}/" if number % 2 == 0 else f"/part{number}/<int:pk>/"
        Endpoint.objects.create(name=f"rule {number}", path=where, resource=resource)


def entities(rows: str) -> None:
    """Add rows of entities."""
    from limits_app import limits

    copy_row(limits.set_entity("tenant:0"), int(rows), identifier="'user:' || (1000000000 + number)")


def configuration(policies: str, patterns: str, resources: str) -> None:
    """Add a policy with a limit on the resource for each of some other clients, patterns, and resources."""
    from limits_app import CallLimit, limits
    from limits_app.models import Entity, Limit, Resource

    copy_row(Resource.objects.get(name=RESOURCE), int(resources), name="'resource' || number")
    policy = limits.set_entity_limits("tenant:0", [CallLimit(_PLENTY, 3600)], resource=RESOURCE)
    tenant, limit = Entity.objects.get(identifier="tenant:0"), Limit.objects.get(policy=policy)
    first = 1 + Entity.objects.latest("pk").pk
    copy_row(tenant, int(policies), identifier="'tenant:' || number")
    copy_row(policy, int(policies), entity_id=f"{first - 1} + number")
    copy_row(limit, int(policies), policy_id=f"{policy.pk} + number")
    copy_row(tenant, int(patterns) // 2, identifier="'user:eu-' || number || '-*'")
    copy_row(tenant, int(patterns) // 2, identifier="'ip:10.' || (number / 250) || '.' || (number % 250) || '.0/24'")


def rows_of_users(users: str, calls: str) -> None:
    """Give users 1 to `users` a limit of their own on the resource, of so many calls per hour."""
    from limits_app import CallLimit, limits

    for number in range(1, int(users) + 1):
        limits.set_entity_limits(f"user:{number}", [CallLimit(int(calls), 3600)], resource=RESOURCE)


def first_requests(clients: str) -> dict[str, Any]:
    """The first and the second request of each of some users, and the first and second `limits.acquire` of others."""
    from limits_app.policies import configuration

    kinds = {"request": _request(PATH), "acquire": _acquire}
    users = count(1_000_000)
    figures: dict[str, Any] = {}
    for kind, once in kinds.items():
        for _ in range(_WARM_UP):
            once(next(users))
        while not configuration.current().known.is_complete:  # a background thread reads which clients have rows
            sleep(0.05)
        once(next(users))
        firsts, seconds, queries = [], [], []
        for _ in range(int(clients)):
            user = next(users)
            with _counted() as counted:
                firsts.append(_microseconds(partial(once, user)))
            queries.append(counted.count)
            seconds.append(_microseconds(partial(once, user)))
        figures[kind] = {"first": firsts, "second": seconds, "queries": max(queries)}
    return figures


def first_acquires(first: str, last: str) -> dict[str, Any]:
    """The first `limits.acquire` of each user, and its time without that of its queries."""
    for number in range(_WARM_UP):
        _acquire(1_000_000 + number)
    wholes, rests, queries = [], [], []
    for user in range(int(first), int(last) + 1):
        with _counted() as counted:
            wholes.append(_microseconds(partial(_acquire, user)))
        rests.append(wholes[-1] - counted.us)
        queries.append(counted.count)
    return {"whole": wholes, "python": rests, "queries": queries}


def unmatched(laps: str) -> dict[str, Any]:
    """Requests that no rule matches, with the middleware and without, in turns; and what that asks of Redis."""
    from django.conf import settings

    kinds = {"with": _request(UNMATCHED_PATH), "without": _request(UNMATCHED_PATH, without=MIDDLEWARE)}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for lap in range(-_WARM_UP, int(laps)):
        for kind, once in kinds.items():
            took = _microseconds(partial(once, 42))
            if lap >= 0:
                times[kind].append(took)
    store = settings.LIMITS.get("STORES", {}).get("default", {})
    calls = _calls_per_request(store["URL"], kinds["with"], int(laps)) if store.get("KIND") == "redis" else None
    return {"added": median(times["with"]) - median(times["without"]), "calls": calls}


def memory(patience: str) -> dict[str, Any]:
    """The memory of this process after requests of some clients, and how long the first of them took with the start.

    What is read in the background is waited for, at most `patience` seconds.
    """
    from limits_app.policies import configuration

    started = monotonic()
    once, users = _request(PATH), count(1)
    once(next(users))
    first_seconds = monotonic() - started
    while not configuration.current().known.is_complete:
        assert monotonic() - started < float(patience), "the identifiers were not read in time"
        sleep(_PAUSE_SECONDS)
    for user in islice(users, _CLIENTS_IN_USE):
        once(user)
    gc.collect()
    return {"bytes": _private_bytes(), "first_seconds": first_seconds}


def others(laps: str, clients: str) -> dict[str, Any]:
    """`limits.acquire` of clients after another process changes the limits of another client, or rolls that back.

    After either, this process has waited as long, and the caches of the processor are as cold.
    """
    users = [1_000_000 + number for number in range(int(clients))]
    kinds = {"rolled back": "-", "changed": "+"}
    figures: dict[str, Any] = {kind: {"first": [], "rest": []} for kind in kinds} | {"queries": []}
    command = [sys.executable, "-m", "benchmarks.site.programs", "change"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as changing:
        assert changing.stdin is not None
        assert changing.stdout is not None
        for lap in range(int(laps)):
            for kind, sign in kinds.items():
                for user in users * 2:
                    _acquire(user)
                changing.stdin.write(f"{sign}user:{lap % 10}\n")
                changing.stdin.flush()
                assert changing.stdout.readline()
                with _counted() as counted:
                    figures[kind]["first"].append(_microseconds(lambda: _acquire(users[0])))
                    rest = _microseconds(lambda: [_acquire(user) for user in users[1:]])
                figures[kind]["rest"].append(rest / (len(users) - 1))
            figures["queries"].append(counted.count)
        changing.stdin.close()
    return figures


def change() -> None:
    """Change the limits of the client in each line of the input, and answer with a line.

    The change of a line that begins with "-" is rolled back.
    """
    from django.db import transaction

    from limits_app import CallLimit, limits

    for number, line in enumerate(sys.stdin):
        with transaction.atomic():
            limits.set_entity_limits(line[1:].strip(), [CallLimit(1_000_000 + number, 3600)], resource=RESOURCE)
            transaction.set_rollback(line.startswith("-"))
        print("done", flush=True)


def written(entities: str) -> dict[str, Any]:
    """The limits of each of some entities, written with the entity, and as many rows inserted, in turns."""
    from limits_app import CallLimit, limits

    insert = _inserts()
    figures: dict[str, list[float]] = {"written": [], "inserted": []}
    for number in range(-_WARM_UP, int(entities)):
        write = partial(limits.set_entity_limits, f"user:{number}", [CallLimit(1000, 3600)], resource=RESOURCE)
        times = {"written": _microseconds(write), "inserted": _microseconds(partial(insert, _ROWS))}
        for kind, took in times.items() if number >= 0 else ():
            figures[kind].append(took)
    return figures


def applied(entities: str) -> dict[str, Any]:
    """A limits file with some entities and a policy of each, and as many rows inserted."""
    from django.core.management import call_command

    from limits_app.models import Policy

    users = [f"user:{number}" for number in range(int(entities))]
    policies = [f"  - {{resource: {RESOURCE}, entity: {user}, limits: [calls=1000/h]}}" for user in users]
    with TemporaryDirectory() as directory:
        path = Path(directory) / "limits.yaml"
        path.write_text("\n".join(["version: 1", "policies:", *policies]), encoding="utf-8")
        took = _microseconds(lambda: call_command("limits", "apply", str(path), stdout=StringIO()))
    assert Policy.objects.count() >= len(users)
    return {"applied": took, "inserted": _microseconds(partial(_inserts(), _ROWS * len(users)))}


def _inserts() -> Callable[[int], None]:
    """Return what inserts so many rows into a table of its own, in one transaction."""
    from django.db import connection, transaction

    numbers = count()
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE reference (id bigint PRIMARY KEY, name varchar(255), text varchar(255))")

    def insert(rows: int) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            for number in islice(numbers, rows):
                cursor.execute("INSERT INTO reference VALUES (%s, %s, %s)", [number, f"user:{number}", "1000/h"])

    return insert


@cache
def _limits() -> ModuleType:
    """The service, which a site imports once."""
    from limits_app import limits

    return limits


def _acquire(user: int) -> None:
    with _limits().acquire(RESOURCE, entity=f"user:{user}"):
        pass


def _request(where: str, without: str | None = None) -> Callable[[int], None]:
    """A request of a user, through Django's handler without a server."""
    from django.conf import settings
    from django.core.handlers.base import BaseHandler
    from django.test import RequestFactory
    from django.test.utils import override_settings

    factory, handler = RequestFactory(), BaseHandler()
    with override_settings(MIDDLEWARE=[name for name in settings.MIDDLEWARE if name != without]):
        handler.load_middleware()

    def once(user: int) -> None:
        response = handler.get_response(factory.get(where, headers={USER_HEADER: str(user)}))
        response.close()
        assert response.status_code == 200, response

    return once


@contextmanager
def _counted() -> Iterator[Queries]:
    from django.db import connection

    queries = Queries()
    with connection.execute_wrapper(queries):
        yield queries


def _microseconds(once: Callable[[], object]) -> float:
    started = perf_counter()
    once()
    return 1e6 * (perf_counter() - started)


def _calls_per_request(url: str, once: Callable[[int], None], requests: int) -> float:
    """How many commands a request sends to a Redis server that nobody else uses."""
    from redis import Redis

    with Redis.from_url(url) as client:

        def commands() -> int:
            return int(client.info("stats")["total_commands_processed"])

        before = commands()
        for _ in range(requests):
            once(42)
        return (commands() - before - 1) / requests


def _private_bytes() -> int:
    """Memory that only this process has; Linux tells."""
    text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    sizes = [line.split() for line in text.splitlines() if line.startswith(("Private_Clean:", "Private_Dirty:"))]
    return 1024 * sum(int(size) for _, size, _ in sizes)


_PROGRAMS: Final[Mapping[str, Callable[..., Any]]] = {
    program.__name__: program
    for program in (
        prepare,
        entities,
        configuration,
        rows_of_users,
        first_requests,
        first_acquires,
        unmatched,
        memory,
        others,
        change,
        written,
        applied,
        traffic,
        *large.PROGRAMS,
    )
}

if __name__ == "__main__":
    django.setup()
    print(json.dumps(_PROGRAMS[sys.argv[1]](*sys.argv[2:])))

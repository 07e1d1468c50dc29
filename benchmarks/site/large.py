"""Programs of a site with a million clients: the rows are written by the database, and pages are read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from tempfile import NamedTemporaryFile
from time import perf_counter, process_time
from typing import Any, Final

from benchmarks.site.copies import copy_row

__all__ = ["PROGRAMS"]

_ADDRESS: Final = "'ip:10.' || {0} / 65536 %% 250 || '.' || {0} / 256 %% 256 || '.' || {0} %% 256"
_NETWORKS: Final = 33
_RESOURCES: Final = 100
_TENANTS: Final = 5_000
_CLIENT: Final = f"CASE WHEN number %% 2 = 0 THEN 'user:' || {{0}} ELSE {_ADDRESS} END"
"""A user or an address, by a number."""
_REJECTED: Final = 400_000
"""One in eight of so many clients has rejections."""
_ROUNDS: Final = 3


def fill_large(clients: str, policies: str, counted: str, events: str) -> dict[str, float]:
    """Write so many clients and policies, rows of usage and of rejections, and events; returns the seconds of each."""
    seconds = {}
    for name, fill, rows in (
        ("configuration", _fill_configuration, (int(clients), int(policies))),
        ("usage", _fill_usage, (int(counted),)),
        ("rejections", _fill_rejections, (int(counted),)),
        ("events", _fill_events, (int(events),)),
        ("statistics", _analyze, ()),
    ):
        started = perf_counter()
        fill(*rows)
        seconds[name] = perf_counter() - started
    return seconds


def _fill_configuration(clients: int, policies: int) -> None:
    """Clients of tenants, some of them with names and users, and policies of every scope."""
    from django.contrib.auth import get_user_model

    from limits_app import CallLimit, RateLimit, limits
    from limits_app.models import Entity, Limit, Policy, Resource

    few, many = CallLimit.per_minute(5), CallLimit.per_minute(1_000)
    limits.set_system_limits([many, RateLimit("tokens", 100_000, 60)])
    for number in range(_RESOURCES):
        limits.set_resource_limits(f"api/{number}", [many])
    for number in range(_NETWORKS):
        limits.set_entity_limits(f"ip:10.{number}.0.0/{16 + number % 8}", [few])
    policy = limits.set_entity_limits("tenant:0", [few], resource="api/0")
    tenant, limit = Entity.objects.get(identifier="tenant:0"), Limit.objects.get(policy=policy)
    copy_row(tenant, _TENANTS, identifier="'tenant:' || number", name="'Tenant ' || number")
    first = Entity.objects.latest("pk").pk
    name = "CASE WHEN number %% 5 = 0 THEN 'Client ' || number ELSE '' END"
    parent = f"CASE WHEN number %% 100 = 0 THEN {first} - number %% {_TENANTS} ELSE NULL END"
    copy_row(tenant, clients, identifier="'user:' || number", name=name, parent_id=parent)
    resource = Resource.objects.earliest("pk").pk
    rest = policies - Policy.objects.count()
    copy_row(policy, rest, entity_id=f"{first} + number", resource_id=f"{resource} + number %% {_RESOURCES}")
    copy_row(limit, rest, policy_id=f"{policy.pk} + number")
    user = get_user_model().objects.create_superuser("user0", "user0@example.com", "password")
    names = {"username": "'user' || number", "email": "'user' || number || '@example.com'", "is_superuser": "false"}
    copy_row(user, clients // 10, **names)


def _fill_usage(rows: int) -> None:
    """A quarter of the rows are of the last 48 hours, and the others of the last 30 days."""
    from limits_app.models import UsageSnapshot

    row = UsageSnapshot.objects.create(period="hour", start=_this_minute(), resource="api/0", key="call_count")
    for period, back, share in (
        ("hour", 48, rows // 4),
        ("day", 30, rows * 3 // 4),
    ):
        each = share // back
        copy_row(
            row,
            share,
            period=f"'{period}'",
            start=f"date_trunc('{period}', now(), 'UTC') - (number / {each}) * interval '1 {period}'",
            resource="'api/' || number %% 10",
            entity=_CLIENT.format(f"(number %% {each} * 8)"),
            admitted_milli="1000 * (number %% 9000)",
            refused="number %% 7",
        )
    UsageSnapshot.objects.filter(pk=row.pk).delete()


def _fill_rejections(rows: int) -> None:
    """Rejections of the last 48 hours."""
    from limits_app.models import Denial

    row = Denial.objects.create(minute=_this_minute(), first=_this_minute(), last=_this_minute(), key="call_count")
    each = -(-rows // (48 * 60))
    minute = f"date_trunc('minute', now()) - (number / {each}) * interval '1 minute'"
    copy_row(
        row,
        rows,
        minute=minute,
        first=minute,
        last=minute,
        resource="'api/' || number %% 10",
        entity=_CLIENT.format(f"(number * 8 %% {_REJECTED})"),
        count="1 + number %% 50",
        request_ids="lpad(to_hex(number), 12, '0')",
    )
    Denial.objects.filter(pk=row.pk).delete()


def _fill_events(rows: int) -> None:
    """Changes of the policies of clients; their digests are not those of the events."""
    from datetime import timedelta

    from django.db.models import QuerySet

    from limits_app.models import AuditEvent, AuditHead, Policy

    last = AuditEvent.objects.filter(object_type="policy").latest("number")
    first, policies = Policy.objects.get(entity__identifier="tenant:0").pk, Policy.objects.count()
    number = f"{AuditEvent.objects.latest('number').number} + numbers.number"
    copy_row(
        last,
        rows,
        number=number,
        id=number,
        verb="'update'",
        object_id=f"({first} + numbers.number %% {policies})::text",
        when=f"now() - ({rows} - numbers.number) * interval '1 second'",
    )
    # The configuration is older than what it has rejected.
    QuerySet(AuditEvent).filter(number__lte=last.number).update(when=_this_minute() - timedelta(days=30))
    AuditHead.current("default").advance("default", number=AuditEvent.objects.latest("number").number)


def _analyze() -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _this_minute() -> Any:
    from django.utils import timezone

    return timezone.now().replace(second=0, microsecond=0)


PAGES: Final = (
    ("overview", "overview/"),
    ("live, each refresh", "activityentry/live/state/"),
    ("rejections", "denial/"),
    ("rejections, 50th page", "denial/?p=50"),
    ("rejections of a client", "denial/?entity=user:16"),
    ("rejections of a network", "denial/?entity=ip:10.0.0.0/16"),
    ("rejections of a request", "denial/?request_id=0000000f423f"),
    ("usage, 24 hours", "usagesnapshot/"),
    ("usage, 30 days", "usagesnapshot/?span=month"),
    ("usage, today, a client", "usagesnapshot/?span=today&entity=user:16"),
    ("clients", "entity/"),
    ("clients, search by name", "entity/?q=Client+777"),
    ("clients, search without result", "entity/?q=nobody"),
    ("clients, blocked", "entity/?blocked__exact=1"),
    ("clients, sorted by a column", "entity/?o=1"),
    ("find a client by user", "clientsentry/client/?find=user77"),
    ("find a client by name", "clientsentry/client/?find=Client+777"),
    ("find a client without result", "clientsentry/client/?find=nobody"),
    ("a client", "clientsentry/client/?entity=user:16"),
    ("an address", "clientsentry/client/?entity=ip:10.0.0.8"),
    ("a tenant with clients", "clientsentry/client/?entity=tenant:7"),
    ("policies", "policy/"),
    ("policies, search", "policy/?q=user:777"),
    ("audit log", "auditevent/"),
    ("audit log, search", "auditevent/?q=user:777"),
    ("exemptions", "settingsentry/exemptions/"),
    ("resources", "resource/"),
)
"""Names and addresses of pages."""


def large_pages(only: str = "") -> dict[str, Any]:
    """Read each page three times; returns its queries, the seconds of the quickest round, and those of the processors.

    The latter are those of this process and of the server of the database on this machine.
    """
    from django.contrib.auth import get_user_model
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    browser, figures = Client(), {}
    browser.force_login(get_user_model().objects.get(username="user0"))
    with connection.cursor() as cursor:
        cursor.execute("SET max_parallel_workers_per_gather = 0")  # so that one process does all its work
    for name, address in PAGES:
        if only not in name:
            continue
        rounds, executed = [], []
        for _ in range(_ROUNDS):
            started, used = perf_counter(), _processor_seconds()
            with CaptureQueriesContext(connection) as queries:
                response = browser.get(f"/admin/limits_app/{address}")
            rounds.append((perf_counter() - started, _processor_seconds() - used))
            assert response.status_code in {200, 302}, (name, response.status_code)
            executed = executed or queries.captured_queries  # only the first round rolls up
        slowest = max(executed, key=lambda query: float(query["time"]))
        figures[name] = {
            "queries": len(executed),
            "seconds": min(seconds for seconds, _ in rounds),
            "processors": min(used for _, used in rounds),
            "slowest": (slowest["time"], slowest["sql"]),
        }
    return figures


def large_preview() -> dict[str, float]:
    """Find out whom a limit on everything would have rejected, three times; returns the least seconds."""
    from django.db import connection
    from django.utils import timezone

    from limits_app import CallLimit
    from limits_app.engine import Noted
    from limits_app.models import Counted, Policy
    from limits_app.services.simulation.forecast import forecast

    rounds = []
    with connection.cursor() as cursor:
        cursor.execute("SET max_parallel_workers_per_gather = 0")
    for _ in range(_ROUNDS):
        started, used = perf_counter(), _processor_seconds()
        proposed = [Noted(CallLimit.per_hour(1_000_000), shared=True)]
        forecast(Policy(counted=Counted.TOTAL), proposed, now=timezone.now())
        rounds.append((perf_counter() - started, _processor_seconds() - used))
    seconds, processors = (min(figures) for figures in zip(*rounds, strict=True))
    return {"seconds": seconds, "processors": processors}


def _processor_seconds() -> float:
    """The time that this process and its process of the database server have used on processors; Linux tells."""
    from django.db import connection

    connection.ensure_connection()
    server = Path(f"/proc/{connection.connection.info.backend_pid}/schedstat")
    return process_time() + int(server.read_text(encoding="ascii").split()[0]) / 1e9


def large_command(*arguments: str) -> dict[str, float]:
    """Run a subcommand of `limits`; returns its seconds and the most megabytes that this process had."""
    from django.core.management import CommandError, call_command

    started = perf_counter()
    with suppress(CommandError, SystemExit):  # as the doctor ends where it finds something
        call_command("limits", *arguments, stdout=StringIO(), stderr=StringIO())
    return {"seconds": perf_counter() - started, "megabytes": getrusage(RUSAGE_SELF).ru_maxrss / 1024}


def large_apply(entities: str) -> dict[str, float]:
    """Apply a limits file with policies of some clients; returns as `large_command`."""
    policies = [
        f"  - {{resource: api/1, entity: 'user:{7 * number}', limits: [calls={number}/h]}}"
        for number in range(1, int(entities) + 1)
    ]
    with NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write("\n".join(["version: 1", "policies:", *policies]))
        file.flush()
        return large_command("apply", file.name)


def one_time_clients(clients: str) -> dict[str, float]:
    """Write the usage of a day of so many addresses, each in one hour, and fold it; returns the rows that stay."""
    from datetime import timedelta

    from django.utils import timezone

    from limits_app.models import CollectedBatch, UsageSnapshot
    from limits_app.usage import one_time_clients

    day = (timezone.now() - timedelta(days=2)).replace(hour=0, minute=0, second=0, microsecond=0)
    about: dict[str, Any] = {"start": day, "resource": "api/0", "key": "call_count", "admitted_milli": 1000}
    for period in ("hour", "day"):
        row = UsageSnapshot.objects.create(period=period, entity="user:0", **about)
        hour = "number %% 24" if period == "hour" else "0"
        start = f"limits_app_usagesnapshot.start + {hour} * interval '1 hour'"
        admitted = "CASE WHEN number %% 100 = 0 THEN 1000 * number ELSE 1000 END"
        copy_row(row, int(clients), entity=_ADDRESS.format("number"), start=start, admitted_milli=admitted)
    CollectedBatch.objects.create(name="batch", unfolded_since=day)
    CollectedBatch.objects.update(collected_at=day + timedelta(days=1))
    _analyze()
    started, used = perf_counter(), _processor_seconds()
    folded = one_time_clients.fold()
    seconds, processors = perf_counter() - started, _processor_seconds() - used
    rows = UsageSnapshot.objects.count() - 2
    return {"rows": rows, "folded": folded, "seconds": seconds, "processors": processors}


def roll_up_counts(clients: str) -> dict[str, float]:
    """Count a request of each of some clients in the default store, and roll up; returns the seconds for that.

    The bytes are those of the rows of the store in the database, if it is there.
    """
    from django.db import connection

    from limits_app import CallLimit, LimitSet
    from limits_app.engine.keys import scope_of
    from limits_app.engine.record import schema_of
    from limits_app.engine.scoped_limits import ScopedLimits
    from limits_app.services.usage import add_counts
    from limits_app.stores.registry import resilient_store

    store = resilient_store("default").open()
    schema = schema_of((CallLimit.per_hour(100),), store.lease_us, counts_usage=True)
    for number in range(int(clients)):
        scope = scope_of("api/0", f"user:{number}")
        assert LimitSet.composed([ScopedLimits(scope, schema)], store).try_acquire()
    with connection.cursor() as cursor:
        cursor.execute("SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname = 'limits_app_state'")
        [(size,)] = cursor.fetchall()
    started, used = perf_counter(), _processor_seconds()
    added = sum(add_counts(seconds=600).added.values())
    assert added >= int(clients), added
    seconds, processors = perf_counter() - started, _processor_seconds() - used
    return {"seconds": seconds, "processors": processors, "bytes": float(size)}


PROGRAMS: Final[tuple[Callable[..., Any], ...]] = (
    fill_large,
    large_pages,
    large_preview,
    large_command,
    large_apply,
    one_time_clients,
    roll_up_counts,
)
"""What this module adds to the programs of the site."""

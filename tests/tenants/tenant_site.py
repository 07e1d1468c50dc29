"""A site with django-tenants on PostgreSQL; prints what two tenants see of limits, rules, usage and rejections.

Its arguments are the settings of the database as JSON, a directory, and where the tables of limits_app are: `tenant`
for each schema, `shared` for the public one alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any

import django
from django.conf import settings

from tests.tenants.support import until

CUSTOMERS = "tests.tenants.customers"
SHARED = ["django_tenants", CUSTOMERS, "django.contrib.contenttypes", "django.contrib.auth"]
OWN = ["django.contrib.contenttypes", "django.contrib.auth", "limits_app"]
TENANTS = ("acme", "bolt")
SECONDS = 20


def schema_names() -> Iterable[str]:
    """The schemas of all tenants."""
    from tests.tenants.customers.models import Customer

    names: Iterable[str] = Customer.objects.order_by("schema_name").values_list("schema_name", flat=True)
    return names


def main(database: str, directory: str, place: str, scene: str) -> None:
    """Print what happens, by name."""
    is_shared = place == "shared"
    shared = [*SHARED, "limits_app"] if is_shared else SHARED
    own = [name for name in OWN if not is_shared or name != "limits_app"]
    settings.configure(
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="only for this site",
        DATABASES={"default": {**json.loads(database), "ENGINE": "django_tenants.postgresql_backend"}},
        DATABASE_ROUTERS=["django_tenants.routers.TenantSyncRouter"],
        SHARED_APPS=shared,
        TENANT_APPS=own,
        INSTALLED_APPS=[*shared, *[name for name in own if name not in shared]],
        TENANT_MODEL="customers.Customer",
        TENANT_DOMAIN_MODEL="customers.Domain",
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        MIGRATION_MODULES={"customers": None},
        MIDDLEWARE=[
            "django_tenants.middleware.main.TenantMainMiddleware",
            "limits_app.integrations.middleware.LimitsMiddleware",
        ],
        ROOT_URLCONF="tests.tenants.urls",
        LIMITS={
            "STORES": {"default": {"KIND": "process", "STATE_DIR": directory}},
            "NAMESPACES": "tests.tenants.tenant_site.schema_names",
        },
        USE_TZ=True,
    )
    django.setup()
    from django.core.management import call_command

    call_command("migrate_schemas", "--shared", verbosity=0)
    _create_tenants()
    scenes = {"configuration": _configuration, "web": _web, "background": _background}
    sys.stdout.write(json.dumps(scenes[scene](is_shared)))


def _create_tenants() -> None:
    from django.db import connection

    from tests.tenants.customers.models import Customer, Domain

    with connection.schema_editor() as editor:  # the app has no migrations
        editor.create_model(Customer)
        editor.create_model(Domain)
    for name in TENANTS:
        customer = Customer(schema_name=name)
        customer.save(verbosity=0)
        Domain.objects.create(domain=f"{name}.example.com", tenant=customer, is_primary=True)


def _in(tenant: str, do: Callable[..., Any], *arguments: Any) -> Any:
    from django_tenants.utils import schema_context

    with schema_context(tenant):
        return do(*arguments)


def _in_each(do: Callable[..., Any], *arguments: Any) -> list[Any]:
    return [_in(tenant, do, *arguments) for tenant in TENANTS]


def _admitted(entity: str, times: int) -> int:
    from limits_app import limits

    return sum(bool(limits.try_acquire("reports", entity=entity)) for _ in range(times))


def _set(number: int) -> None:
    from limits_app import CallLimit, limits

    limits.set_resource_limits("reports", [CallLimit.per_hour(number, algorithm="sliding_window")])


def _queries(do: Callable[[], Any]) -> int:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as queries:
        do()
    return len([one for one in queries.captured_queries if "search_path" not in one["sql"]])


def _is_known() -> bool:
    from limits_app.policies import configuration

    return configuration.current().known.is_complete


def _configuration(is_shared: bool) -> dict[str, Any]:
    """Limits and changes of them."""
    from limits_app import limits

    if is_shared:
        _set(2)
    else:
        _in("acme", _set, 2)
        _in("bolt", _set, 10)
    found: dict[str, Any] = {"admitted": _in_each(_admitted, "user:1", 12)}
    found["known"] = [until(lambda tenant=tenant: _in(tenant, _is_known)) for tenant in TENANTS]  # type: ignore[misc]
    _in_each(_admitted, "user:2", 1)
    _in("bolt", _set, 20) if not is_shared else _set(5)
    # A change of one tenant leaves what others keep as it is.
    found["queries of acme"] = _in("acme", _queries, lambda: _admitted("user:3", 1))
    found["after a change"] = _in_each(_admitted, "user:1", 30)
    found["others"] = _in_each(_admitted, "user:4", 30)

    async def acquired() -> bool:
        return bool(await limits.atry_acquire("reports", entity="user:1"))

    from asgiref.sync import sync_to_async
    from django.db import connection

    async def in_task(tenant: str) -> list[bool]:
        await sync_to_async(lambda: connection.set_schema(tenant))()  # as a middleware does, in the request's thread
        return [await acquired(), bool(await limits.atry_acquire("reports", entity=f"user:{tenant}"))]

    found["in a task"] = [asyncio.run(in_task(tenant)) for tenant in TENANTS]
    return found


def _statuses(tenant: str, times: int) -> list[int]:
    from django.test import Client

    client = Client(headers={"host": f"{tenant}.example.com"})
    return [client.get("/").status_code for _ in range(times)]


async def _async_statuses(tenant: str, times: int) -> list[int]:
    from asgiref.testing import ApplicationCommunicator
    from django.core.asgi import get_asgi_application

    application, statuses = get_asgi_application(), []
    scope = {"type": "http", "http_version": "1.1", "method": "GET", "path": "/", "query_string": b""}
    scope |= {"headers": [(b"host", f"{tenant}.example.com".encode())], "client": ("127.0.0.1", 1)}
    for _ in range(times):
        client = ApplicationCommunicator(application, dict(scope))
        await client.send_input({"type": "http.request", "body": b""})
        statuses.append((await client.receive_output(SECONDS))["status"])
        await client.wait()
    return statuses


def _add_rule(number: int) -> None:
    from limits_app import CallLimit, limits
    from limits_app.models import Endpoint, Resource

    limits.set_resource_limits("pages", [CallLimit.per_hour(number, algorithm="sliding_window")])
    resource = Resource.objects.get(name="pages")
    Endpoint.objects.create(name="all", path="/", resource=resource, order=1)


def _block(entity: str) -> None:
    from limits_app.models import Entity

    Entity.objects.create(identifier=entity, blocked=True)


def _web(is_shared: bool) -> dict[str, Any]:
    """Rules for URLs, and who is blocked."""
    before = [_statuses(tenant, 2) for tenant in TENANTS]
    _add_rule(2) if is_shared else _in("acme", _add_rule, 2)
    after = [_statuses(tenant, 3) for tenant in TENANTS]
    in_tasks = [asyncio.run(_async_statuses(tenant, 2)) for tenant in TENANTS]
    _block("ip:127.0.0.1") if is_shared else _in("bolt", _block, "ip:127.0.0.1")
    blocked = [_statuses(tenant, 1) for tenant in TENANTS]
    return {"before": before, "after": after, "in tasks": in_tasks, "blocked": blocked}


def _command(*arguments: str) -> list[Any]:
    from django.core.management import call_command

    out, notes = StringIO(), StringIO()
    call_command("limits", *arguments, stdout=out, stderr=notes, no_color=True)
    return [notes.getvalue().split("\n"), out.getvalue()]


def _rejections() -> dict[str, int]:
    from limits_app.models import Denial

    return {one.entity: one.count for one in Denial.objects.all()}


def _usage() -> dict[str, float]:
    from limits_app import limits

    return {str(one.entity): float(one.admitted) for one in limits.usage(by="entity")}


def _background(is_shared: bool) -> dict[str, Any]:
    """Usage and rejections, which threads and commands write."""
    from limits_app.usage.denial_counter import denials

    _set(1) if is_shared else _in_each(_set, 1)
    for number, tenant in enumerate(TENANTS):
        _in(tenant, _admitted, f"user:{tenant}", 3 + number)
    with ThreadPoolExecutor(1) as executor:
        executor.submit(denials.flush).result()
    found: dict[str, Any] = {"before": _in_each(_usage)}
    _in("acme", _command, "snapshot")
    found["after one"] = _in_each(_usage)
    notes, _ = _command("snapshot", "--all")
    found["notes"] = [line for line in notes if line.startswith("namespace")]
    found["after all"] = _in_each(_usage)
    found["rejections"] = _in_each(_rejections)
    found["named"] = _command("usage", "--namespace", "bolt", "--by", "entity", "--format", "csv")[1]
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])

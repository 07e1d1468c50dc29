"""A site whose code chooses a schema with `SET search_path`, or a router a database; prints what each of two sees.

Its arguments are the settings of the databases as JSON, which of both: `schemas` or `databases`, and `entered` where
background threads can enter them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import django
from django.conf import settings

from tests.tenants.support import until

NAMES = {"schemas": ("acme", "bolt"), "databases": ("default", "bolt")}

chosen: ContextVar[str | None] = ContextVar("chosen", default=None)


def present() -> str | None:
    """The schema that was entered."""
    return chosen.get()


class Router:
    """Chooses the database that was entered."""

    def db_for_read(self, model: type, **hints: object) -> str | None:
        """The database to read from."""
        return chosen.get()

    db_for_write = db_for_read


@contextmanager
def entered(name: str) -> Iterator[None]:
    """Be in a database or a schema."""
    token = chosen.set(name)
    try:
        search(name)
        yield
    finally:
        chosen.reset(token)
        search(chosen.get())


def search(name: str | None) -> None:
    """Have the connection of this thread search a schema."""
    from django.db import connection

    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"SET search_path TO {name or 'public'}")


def main(databases: str, kind: str, is_entered: str) -> None:
    """Print what happens, by name."""
    is_routed, module = kind == "databases", "tests.tenants.chosen_site"
    settings.configure(
        SECRET_KEY="only for this site",
        DATABASES=json.loads(databases),
        DATABASE_ROUTERS=[f"{module}.Router"] if is_routed else [],
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "limits_app"],
        LIMITS={
            "STORES": {"default": {"KIND": "memory"}},
            "NAMESPACE_CONTEXT": f"{module}.entered" if is_entered == "entered" else None,
            "NAMESPACES": NAMES[kind],
            **({} if is_routed else {"NAMESPACE": f"{module}.present"}),
        },
        USE_TZ=True,
    )
    django.setup()
    from django.core.management import call_command
    from django.db import connection

    names = NAMES[kind]
    for name in names:
        if not is_routed:
            with connection.cursor() as cursor:
                cursor.execute(f"CREATE SCHEMA {name}")
        with entered(name):
            call_command("migrate", verbosity=0, database=name if is_routed else "default")
    sys.stdout.write(json.dumps(_seen(names, is_entered=is_entered == "entered")))


def _seen(names: tuple[str, ...], *, is_entered: bool) -> dict[str, Any]:
    from django.core.management import call_command

    from limits_app import limits
    from limits_app.policies import configuration
    from limits_app.usage.denial_counter import denials

    def in_each(do: Callable[..., Any], *arguments: Any) -> list[Any]:
        found = []
        for name in names:
            with entered(name):
                found.append(do(*arguments))
        return found

    for name, number in zip(names, (2, 10), strict=True):
        with entered(name):
            _set(number)
    found: dict[str, Any] = {"admitted": in_each(_admitted, "user:1", 12)}
    if is_entered:
        found["known"] = in_each(until, lambda: configuration.current().known.is_complete)
    with entered(names[1]):
        _set(3)
    found["others"] = in_each(_admitted, "user:2", 12)
    with ThreadPoolExecutor(1) as executor:
        executor.submit(denials.flush).result()
    if is_entered:
        call_command("limits", "snapshot", "--all", stdout=sys.stderr)
    else:
        in_each(limits.roll_up)
    found["rejections"] = in_each(_rejections)
    found["usage"] = in_each(_usage)
    return found


def _set(number: int) -> None:
    from limits_app import CallLimit, limits

    limits.set_resource_limits("reports", [CallLimit.per_hour(number, algorithm="sliding_window")])


def _admitted(entity: str, times: int) -> int:
    from limits_app import limits

    return sum(bool(limits.try_acquire("reports", entity=entity)) for _ in range(times))


def _rejections() -> dict[str, int]:
    from limits_app.models import Denial

    return {one.entity: one.count for one in Denial.objects.order_by("entity")}


def _usage() -> dict[str, float]:
    from limits_app import limits

    return {str(one.entity): float(one.admitted) for one in limits.usage(by="entity")}


if __name__ == "__main__":
    from tests.tenants import chosen_site  # whose variable the settings name

    chosen_site.main(*sys.argv[1:])

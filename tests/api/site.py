"""A site with the REST API in these tests: people, rows, and how to ask."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from rest_framework.test import APIClient

from limits_app import services
from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit, ResourceLimit
from limits_app.engine.periods import QuotaPeriod
from limits_app.models import (
    AlertRule,
    Endpoint,
    Entity,
    Limit,
    Plan,
    Policy,
    Pool,
    PoolMember,
    Price,
    Resource,
    UsagePeriod,
    UsageSnapshot,
)

__all__ = ["ROOT", "allow", "as_user", "fill", "person", "used"]

ROOT: Final = "/limits/api/v1/"
_OWN: Final = {"boost_policy": Policy, "reset_resource": Resource, "top_up_resource": Resource}


def person(name: str, *allowed: str, **fields: Any) -> User:
    """Somebody with some permissions."""
    user = User.objects.create_user(name, password=name, **fields)
    allow(user, *allowed)
    return User.objects.get(pk=user.pk)


def allow(user: User, *allowed: str) -> None:
    """Give permissions, such as `view_policy`."""
    for own, model in _OWN.items():
        kind = ContentType.objects.get_for_model(model)
        Permission.objects.get_or_create(codename=own, content_type=kind, defaults={"name": own})
    found = Permission.objects.filter(content_type__app_label="limits_app", codename__in=allowed)
    assert {one.codename for one in found} == {*allowed}
    user.user_permissions.add(*found)


def as_user(user: User | None) -> APIClient:
    """A client of somebody, or of nobody."""
    client = APIClient()
    client.force_authenticate(user)
    return client


def fill(many: Sequence[int] = (1, 2, 3)) -> None:
    """Some of everything: the same again for each number."""
    for n in many:
        pool = Pool.objects.create(name=f"pool{n}")
        member = PoolMember.objects.create(pool=pool, name=f"member{n}", config={"region": f"r{n}"})
        Limit.objects.create(member=member, key="tpm", text=f"{10 * n}/min:gcra")
        resource = Resource.objects.create(name=f"resource{n}", pool=pool)
        Plan.objects.create(name=f"plan{n}")
        tenant = Entity.objects.create(identifier=f"tenant:{n}")
        Entity.objects.create(identifier=f"user:{n}", parent=tenant, cascade=True, metadata={"plan": n})
        calls, permits = CallLimit(100 * n, 60), ResourceLimit("slots", 3)
        services.set_resource_limits(resource.name, [calls, permits, RateLimit("tpm", 1000, 60)])
        quota = QuotaLimit("monthly", 500, period=QuotaPeriod.MONTH, time_zone="Europe/Berlin")
        services.set_entity_limits(f"user:{n}", [calls, quota], resource=resource.name)
        Endpoint.objects.create(name=f"endpoint{n}", path=f"/x{n}/", resource=resource)
        AlertRule.objects.create(name=f"rule{n}", kind="store", target=f"ops{n}@example.com")
        hour = datetime(2100 + n, 1, 1, tzinfo=UTC)
        Price.objects.create(resource=resource.name, unit="tpm", amount=n, currency="usd", valid_from=hour)
        used(f"user:{n}", n, resource=resource.name, refused=n % 2)


def used(entity: str, admitted: float, **fields: Any) -> None:
    """A snapshot of today, by default of calls of `api`."""
    usual = {"period": UsagePeriod.DAY, "resource": "api", "key": "call_count"}
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    milli = round(admitted * 1000)
    UsageSnapshot.objects.create(**{**usual, "start": today, "entity": entity, "admitted_milli": milli, **fields})

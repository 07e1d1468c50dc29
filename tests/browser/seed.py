"""What the site of the browser tests starts with: a month of use by a few, and a rule for its view."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from math import pi, sin
from random import Random

from django.contrib.auth.models import Permission, User
from django.db import transaction

from limits_app import CallLimit, RateLimit, ResourceLimit, limits
from limits_app.models import Endpoint, Entity, Limit, Pool, PoolMember, Resource, UsagePeriod, UsageSnapshot

__all__ = ["ADMIN", "READER", "seed"]

ADMIN = "admin"
READER = "reader"
"""Who may look at policies, and no more."""


_DAYS = 30
_TENANTS = {"tenant:acme": 900, "tenant:globex": 520, "tenant:initech": 260, "tenant:umbrella": 90, "tenant:hooli": 35}


@transaction.atomic
def seed() -> None:
    """Fill an empty database."""
    User.objects.create_superuser(ADMIN, "admin@example.org", ADMIN)
    reader = User.objects.create_user(READER, password=READER, is_staff=True)
    reader.user_permissions.set(Permission.objects.filter(codename="view_policy"))
    ping = Endpoint(name="ping", view_name="ping", resource=Resource.objects.create(name="api"))
    ping.save()
    limits.set_system_limits([CallLimit.per_minute(600)], reason="nobody needs more")
    gpt = [CallLimit.per_minute(60), RateLimit.per_minute("tokens", 40_000), ResourceLimit("connections", 10)]
    limits.set_resource_limits("openai/gpt-4", gpt, reason="what our contract says")
    for tenant in _TENANTS:
        Entity.objects.create(identifier=tenant, name=tenant.partition(":")[2].title())
    big = [CallLimit.per_minute(200), RateLimit.per_minute("tokens", 120_000)]
    limits.set_entity_limits("tenant:acme", big, resource="openai/gpt-4", reason="the large plan")
    _serve_by_a_pool()
    limits.set_resource_limits("trial", [CallLimit.per_hour(5)], enforcement="shadow", reason="who would be refused?")
    for _ in range(6):
        limits.acquire("trial").release()
    UsageSnapshot.objects.bulk_create(_snapshots(datetime.now(UTC)), batch_size=500)


def _serve_by_a_pool() -> None:
    pool = Pool.objects.create(name="bedrock/claude")
    Resource.objects.create(name="claude", pool=pool)
    for region in ("us-east-1", "eu-west-1"):
        member = PoolMember.objects.create(pool=pool, name=region, config={"region": region})
        Limit.from_definition(member, CallLimit.per_minute(5)).save()


def _snapshots(now: datetime) -> Iterator[UsageSnapshot]:
    random = Random(7)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    for (tenant, calls), day in ((one, day) for one in _TENANTS.items() for day in range(_DAYS)):
        start = midnight - timedelta(days=day)
        totals = [0, 0]
        for hour in range(24 if day else now.hour):
            busy = max(sin((hour - 6) * pi / 14), 0.05) * random.uniform(0.7, 1.2)
            admitted, refused = int(calls * busy), int(max(calls * busy - 700, 0) * 0.3)
            totals = [totals[0] + admitted, totals[1] + refused]
            yield from _rows(tenant, UsagePeriod.HOUR, start + timedelta(hours=hour), (admitted, refused))
        yield from _rows(tenant, UsagePeriod.DAY, start, (totals[0], totals[1]))


def _rows(tenant: str, period: UsagePeriod, start: datetime, numbers: tuple[int, int]) -> Iterator[UsageSnapshot]:
    whose = {"resource": "openai/gpt-4", "entity": tenant, "period": period, "start": start}
    admitted, refused = numbers
    yield UsageSnapshot(**whose, key="call_count", admitted_milli=admitted * 1000, refused=refused)
    yield UsageSnapshot(**whose, key="tokens", admitted_milli=admitted * 412_000, refused=refused // 4)

"""Sample data of `make run`: users, limits, use since the first day of last month, and a change made yesterday."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Final
from unittest import mock

from django.contrib.auth.models import Group, User
from django.db import transaction
from django.utils import timezone

from limits_app import CallLimit, LimitExceeded, RateLimitAlgorithm, ResourceLimit, audit, limits
from limits_app.models import AlertKind, AlertRule, Endpoint, Entity, Resource, UsagePeriod, UsageSnapshot

__all__ = ["ADMIN", "COLLEAGUE", "USERS", "seed"]

ADMIN: Final = "admin"
"""Name and password of the superuser."""

COLLEAGUE: Final = "carol"
"""Name and password of another superuser, who changed a limit yesterday."""

USERS: Final[Mapping[str, str]] = {
    "amber": "30 requests a minute, in a sliding window",
    "basil": "5 requests in 10 seconds, with bursts of 2",
    "cedar": "the limits of the resource: 10 requests a minute",
    "elder": "blocked",
    "fern": "the limits of the resource; the limit on reports is used up for an hour",
}
"""Users, whose passwords are their names, and their limits on the resource `api`."""

_REASON: Final = "sample data of the demo"
_EXPORTS: Final = 20
_FEWER_EXPORTS: Final = 12
_WORKING_HOURS: Final = range(8, 19)
_REQUESTS_AN_HOUR: Final[Mapping[str, int]] = {"amber": 310, "basil": 140, "cedar": 45, "fern": 12}
"""How much these users have used the resource `api`, in the first working hour of a day."""
_REJECTED_SHARE: Final = 50
"""One rejection for so many requests."""


def seed() -> bool:
    """Add the sample data to an empty database; return False if it has data already."""
    if User.objects.filter(username=ADMIN).exists():
        return False
    now = timezone.now()
    with transaction.atomic():
        with _at(now - timedelta(days=2)):
            users = _configure()
        with _at(now - timedelta(days=1)), audit.acting(actor=COLLEAGUE, source="admin"):
            _limit_reports(_FEWER_EXPORTS, "exports are slow")
        UsageSnapshot.objects.bulk_create(_usage(users, now), batch_size=500)
    _use_up("reports", users["fern"])
    return True


@contextmanager
def _at(time: datetime) -> Iterator[None]:
    """Write changes with this time into the audit log."""
    with mock.patch.object(timezone, "now", return_value=time):
        yield


def _configure() -> dict[str, str]:
    """Add users and limits; return the identifiers of users by name."""
    User.objects.create_superuser(ADMIN, "admin@example.org", ADMIN)
    users = {name: _add_user(name) for name in USERS}
    User.objects.create_superuser(COLLEAGUE, "carol@example.org", COLLEAGUE)
    Group.objects.create(name="free").user_set.add(User.objects.get(username="cedar"))
    limits.set_resource_limits("api", [CallLimit(10, 60)], reason=_REASON)
    _limit_reports(_EXPORTS, _REASON)
    window = CallLimit(30, 60, RateLimitAlgorithm.SLIDING_WINDOW)
    limits.set_entity_limits(users["amber"], [window], resource="api", reason=_REASON)
    smooth = CallLimit(5, 10, RateLimitAlgorithm.GCRA, burst=2)
    limits.set_entity_limits(users["basil"], [smooth], resource="api", reason=_REASON)
    limits.set_entity_limits(users["elder"], [], effect="blocked", reason=_REASON)
    for resource, views in {"api": ("ping", "aping"), "reports": ("export", "stream")}.items():
        for view in views:
            Endpoint.objects.create(name=view, view_name=view, resource=Resource.objects.get(name=resource))
    AlertRule.objects.create(name="operators", kind=AlertKind.EMERGENCY, target="operators@example.org")
    return users


def _limit_reports(requests_an_hour: int, reason: str) -> None:
    limits.set_resource_limits("reports", [CallLimit(requests_an_hour, 3600), ResourceLimit("slots", 2)], reason=reason)


def _add_user(name: str) -> str:
    identifier = f"user:{User.objects.create_user(name, password=name).pk}"
    Entity.objects.create(identifier=identifier, name=name)
    return identifier


def _usage(users: Mapping[str, str], now: datetime) -> Iterator[UsageSnapshot]:
    """Use from the first day of last month until yesterday, by hour and by day."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    day = (midnight.replace(day=1) - timedelta(days=1)).replace(day=1)
    while day < midnight:
        for name, requests in _REQUESTS_AN_HOUR.items():
            bucket = {"resource": "api", "entity": users[name], "key": "call_count"}
            hours = [
                UsageSnapshot(
                    **bucket,
                    period=UsagePeriod.HOUR,
                    start=day.replace(hour=hour),
                    admitted_milli=(requests + hour * day.day % 17) * 1000,
                    refused=requests // _REJECTED_SHARE,
                )
                for hour in _WORKING_HOURS
            ]
            yield from hours
            yield UsageSnapshot(
                **bucket,
                period=UsagePeriod.DAY,
                start=day,
                admitted_milli=sum(hour.admitted_milli for hour in hours),
                refused=sum(hour.refused for hour in hours),
            )
        day += timedelta(days=1)


def _use_up(resource: str, client: str) -> None:
    """Send requests of a client until it is rejected, and one more."""
    for _ in range(_FEWER_EXPORTS + 2):
        with suppress(LimitExceeded):
            limits.acquire(resource, entity=client).release()

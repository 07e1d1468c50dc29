"""Sample data of `make run`: users, resources, policies and URL rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from django.contrib.auth.models import User
from django.db import transaction

from limits_app import CallLimit, RateLimitAlgorithm, ResourceLimit, limits
from limits_app.models import Endpoint, Entity, Resource

__all__ = ["ADMIN", "USERS", "seed"]

ADMIN: Final = "admin"
"""Name and password of the superuser."""

USERS: Final[Mapping[str, str]] = {
    "amber": "30 requests a minute, in a sliding window",
    "basil": "5 requests in 10 seconds, with bursts of 2",
    "cedar": "the limits of the resource: 10 requests a minute",
    "elder": "blocked",
}
"""Users, whose passwords are their names, and their limits on the resource `api`."""

_REASON: Final = "sample data of the demo"


@transaction.atomic
def seed() -> bool:
    """Add the sample data to an empty database; return False if it has data already."""
    if User.objects.filter(username=ADMIN).exists():
        return False
    User.objects.create_superuser(ADMIN, "admin@example.org", ADMIN)
    limits.set_resource_limits("api", [CallLimit(10, 60)], reason=_REASON)
    limits.set_resource_limits("reports", [CallLimit(20, 3600), ResourceLimit("slots", 2)], reason=_REASON)
    identifiers = {name: _add_user(name) for name in USERS}
    window = CallLimit(30, 60, RateLimitAlgorithm.SLIDING_WINDOW)
    limits.set_entity_limits(identifiers["amber"], [window], resource="api", reason=_REASON)
    smooth = CallLimit(5, 10, RateLimitAlgorithm.GCRA, burst=2)
    limits.set_entity_limits(identifiers["basil"], [smooth], resource="api", reason=_REASON)
    limits.set_entity_limits(identifiers["elder"], [], effect="blocked", reason=_REASON)
    for resource, views in {"api": ("ping", "aping"), "reports": ("export", "stream")}.items():
        for view in views:
            Endpoint.objects.create(name=view, view_name=view, resource=Resource.objects.get(name=resource))
    return True


def _add_user(name: str) -> str:
    identifier = f"user:{User.objects.create_user(name, password=name).pk}"
    Entity.objects.create(identifier=identifier, name=name)
    return identifier

"""Pools as rows, to test with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from limits_app.engine.limits import CallLimit, LimitDefinition
from limits_app.models import Limit, Pool, PoolMember, Resource

__all__ = ["make_member", "make_pool", "serve"]

NAME = "bedrock/claude"
CALLS = CallLimit(3, 3600)


def make_pool(members: Mapping[str, Iterable[LimitDefinition]], *, name: str = NAME, **fields: Any) -> Pool:
    """A pool of members with these limits, in this order."""
    pool = Pool.objects.create(name=name, **fields)
    for order, (member, limits) in enumerate(members.items()):
        make_member(pool, member, limits, order=order)
    return pool


def make_member(pool: Pool, name: str, limits: Iterable[LimitDefinition], **fields: Any) -> PoolMember:
    """A member of a pool with these limits."""
    member = PoolMember.objects.create(pool=pool, name=name, **fields)
    for definition in limits:
        row = Limit.from_definition(member, definition)
        row.full_clean()
        row.save()
    return member


def serve(resource: str, pool: Pool) -> Resource:
    """Have a resource served by a pool."""
    row, _ = Resource.objects.update_or_create(name=resource, defaults={"pool": pool})
    return row

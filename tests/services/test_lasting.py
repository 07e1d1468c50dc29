"""Whose state a store keeps for ever: that of entities with limits of their own."""

from __future__ import annotations

import pytest

from limits_app import limits
from limits_app.core.limits import CallLimit
from limits_app.resolver.cache import resolver

pytestmark = pytest.mark.django_db(transaction=True)

CALLS = CallLimit(10, 60)


def lasting(resource: str, entity: str | None) -> list[bool]:
    return [scoped.lasting for scoped in resolver.get((resource, entity, (), None)).limit_set.scoped]


def test_state_lasts_where_the_limits_were_set_for_the_entity() -> None:
    limits.set_resource_limits("api", [CALLS])
    limits.set_entity_limits("vip", [CALLS], resource="api")
    limits.set_entity_limits("tenant", [CALLS])
    assert lasting("api", "vip") == [True]
    assert lasting("other", "tenant") == [True]
    assert lasting("api", "anybody") == [False]
    assert lasting("api", None) == [False]

"""What the tests of the configuration share."""

from __future__ import annotations

import pytest

from limits_app.models import Entity, Limit, Policy, Resource
from tests.configuration.rows import rate


@pytest.fixture
def api(db: None) -> Resource:
    return Resource.objects.create(name="api")


@pytest.fixture
def user(db: None) -> Entity:
    return Entity.objects.create(identifier="user:42")


@pytest.fixture
def policy(api: Resource) -> Policy:
    return Policy.objects.create(resource=api)


@pytest.fixture
def limit(policy: Policy) -> Limit:
    """The rate of the policy."""
    limit = rate(policy)
    limit.save()
    return limit

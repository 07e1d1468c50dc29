"""What the tests of the configuration share."""

from __future__ import annotations

import pytest

from limits_app.models import Entity, Policy, Resource


@pytest.fixture
def api(db: None) -> Resource:
    return Resource.objects.create(name="api")


@pytest.fixture
def user(db: None) -> Entity:
    return Entity.objects.create(identifier="user:42")


@pytest.fixture
def policy(api: Resource) -> Policy:
    return Policy.objects.create(resource=api)

"""What the tests of the configuration share."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from limits_app.models import Entity, Policy, Resource


@pytest.fixture(autouse=True)
def quick_passwords(settings: Settings) -> None:
    """Hash the passwords of throw-away users without the work that protects real ones."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def api(db: None) -> Resource:
    return Resource.objects.create(name="api")


@pytest.fixture
def user(db: None) -> Entity:
    return Entity.objects.create(identifier="user:42")


@pytest.fixture
def policy(api: Resource) -> Policy:
    return Policy.objects.create(resource=api)

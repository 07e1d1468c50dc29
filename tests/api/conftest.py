"""Each test has limits in a memory store that nobody has used, on a clock that it can move."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from pytest_django import Settings
from rest_framework.test import APIClient

from limits_app.policies import resolver
from limits_app.services.url_matching import endpoints
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.api.site import as_user, person
from tests.opened import put_store


@pytest.fixture(autouse=True)
def clock(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClock]:
    """The time of the store."""
    clock = FakeClock()
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}
    put_store(monkeypatch, MemoryStore(clock=clock))
    resolver.clear()
    endpoints.clear()
    yield clock
    resolver.clear()
    endpoints.clear()


@pytest.fixture
def user(db: None) -> User:
    """A superuser."""
    return person("root", is_superuser=True)


@pytest.fixture
def root(user: User) -> APIClient:
    """The client of a superuser."""
    return as_user(user)

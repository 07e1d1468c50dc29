"""Limits in a memory store that nobody has used, whose clock a test moves, and somebody who looks at the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from pytest_django import Settings

from limits_app import conf
from limits_app.resolver import resolver
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock


@pytest.fixture(autouse=True)
def clock(settings: Settings, monkeypatch: pytest.MonkeyPatch, db: None) -> Iterator[FakeClock]:
    """The time of the store."""
    clock = FakeClock()
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}
    monkeypatch.setitem(registry._OPENED, ("default", conf.store_settings()), MemoryStore(clock=clock))
    resolver.clear()
    yield clock
    resolver.clear()


@pytest.fixture
def staff() -> Callable[..., Client]:
    """Gives the browser of somebody with these permissions."""

    def browser(*permissions: str) -> Client:
        user = User.objects.create_user(f"staff{User.objects.count()}", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client = Client()
        client.force_login(user)
        return client

    return browser

"""A site with limits in memory, and people who may do this or that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from pytest_django import Settings

from limits_app.admin import changelists
from limits_app.policies import resolver
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.opened import put_store
from tests.replacing import temporary_files_in

Visitor = Callable[..., Client]


@pytest.fixture(autouse=True)
def clock(settings: Settings, monkeypatch: pytest.MonkeyPatch, db: None) -> Iterator[FakeClock]:
    """The time of a memory store that nobody has used yet."""
    clock = FakeClock()
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}
    put_store(monkeypatch, MemoryStore(clock=clock))
    resolver.clear()
    yield clock
    resolver.clear()


@pytest.fixture(autouse=True)
def _uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was uploaded and never confirmed stays there."""
    temporary_files_in(monkeypatch, tmp_path)


@pytest.fixture
def count_at_most(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make lists long sooner, from so many rows on."""

    def count(rows: int) -> None:
        monkeypatch.setattr(changelists, "MOST_COUNTED", rows)

    return count


@pytest.fixture
def visitor() -> Visitor:
    """Log a member of staff in who may do just this."""

    def log_in(*permissions: str) -> Client:
        staff = User.objects.create_user(f"staff{User.objects.count()}", is_staff=True)
        staff.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client = Client()
        client.force_login(staff)
        return client

    return log_in

"""A site with limits in memory, a clock to move, and a database whose changes are committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
from django.dispatch import Signal
from pytest_django import DjangoDbBlocker, Settings

from limits_app.engine.planning import forget_warnings
from limits_app.policies import balancers, resolver
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.opened import put_store
from tests.replacing import resolve_at
from tests.services.wall import Wall
from tests.stores.database.databases import forget, migrated, sqlite_in, use


@pytest.fixture(autouse=True)
def clock(settings: Settings, monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> Iterator[FakeClock]:
    """The time of a memory store that nobody has used yet; cool-downs stay in this process."""
    clock = FakeClock()
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}
    put_store(monkeypatch, MemoryStore(clock=clock))
    resolver.clear()
    forget_warnings()
    with balancers.sharing(shares_cool_downs=False):
        yield clock
    resolver.clear()


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    """The clock of the resolver, to move."""
    wall = Wall()
    resolve_at(monkeypatch, wall)
    return wall


@pytest.fixture
def heard() -> Iterator[Callable[..., list[Any]]]:
    """Gives the list of what a signal sends under a name, until the test ends."""
    connected: list[tuple[Signal, Callable[..., None]]] = []

    def hear(signal: Signal, name: str = "outcome") -> list[Any]:
        sent: list[Any] = []

        def receive(**details: Any) -> None:
            sent.append(details[name])

        signal.connect(receive, weak=False)
        connected.append((signal, receive))
        return sent

    yield hear
    for signal, receive in connected:
        signal.disconnect(receive)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker) -> Path:
    """An SQLite file with the tables of the app, to be copied."""
    settings = sqlite_in(tmp_path_factory.mktemp("migrated"))
    with django_db_blocker.unblock(), migrated(settings, "limits_app"):
        return Path(settings["NAME"])


@pytest.fixture
def second_database(migrated_file: Path, tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """The alias of `tests.stores.database.databases` means an SQLite file with the tables of the app."""
    settings = sqlite_in(tmp_path)
    copy(migrated_file, settings["NAME"])
    use(settings)
    with django_db_blocker.unblock():
        yield
    forget()

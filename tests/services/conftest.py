"""A site with limits in memory, a clock to move, and a database whose changes are committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.dispatch import Signal
from pytest_django import Settings

from limits_app import conf
from limits_app.core.planning import forget_warnings
from limits_app.resolver.balancers import balancers
from limits_app.resolver.cache import resolver
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.services.wall import Wall


@pytest.fixture(autouse=True)
def clock(settings: Settings, monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> Iterator[FakeClock]:
    """The time of a memory store that nobody has used yet; cool-downs stay in this process."""
    clock = FakeClock()
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}
    monkeypatch.setitem(registry._OPENED, ("default", conf.store_settings()), MemoryStore(clock=clock))
    monkeypatch.setattr(balancers, "shares_cool_downs", False)
    resolver.clear()
    forget_warnings()
    yield clock
    resolver.clear()


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    """The clock of the resolver, to move."""
    wall = Wall()
    monkeypatch.setattr(resolver, "clock", wall)
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

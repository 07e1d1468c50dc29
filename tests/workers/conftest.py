"""What the tests of workers share."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import pytest

from limits_app.testing import FakeClock
from limits_app.workers import WorkerPool
from tests.workers.people import MODES, Clerk


@pytest.fixture(autouse=True)
def _processes_without_django(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers in processes set Django up where it is set up here, which takes a second; one test is about that."""
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def gate() -> Iterator[Event]:
    """Opened at the end, whatever the test did."""
    event = Event()
    yield event
    event.set()


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clerk(mode: str) -> Iterator[WorkerPool[Clerk]]:
    with Clerk.options(mode=mode).init("Bob") as pool:
        yield pool

"""A site with limits in memory that nobody has used yet, whose changes are committed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_django import Settings

from limits_app.engine.counting import Batch
from limits_app.policies import resolver
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.opened import put_store
from tests.services.failing import FailingStore, recover_by


class Store(FailingStore):
    """A store that counts, and fails while it is `down`."""

    collectors = 1

    def collect_counts(self, namespace: str = "", collector: int = 0) -> Batch | None:
        return self._reached().collect_counts(namespace, collector)  # type: ignore[attr-defined]

    def forget_counts(self, name: str, namespace: str = "") -> None:
        self._reached().forget_counts(name, namespace)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def store(settings: Settings, monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> Iterator[Store]:
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}
    store = Store(MemoryStore())
    put_store(monkeypatch, store)
    recover_by(FakeClock(), monkeypatch)
    resolver.clear()
    yield store
    resolver.clear()

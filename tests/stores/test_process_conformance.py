"""The process store passes the conformance suite."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from limits_app.core.store import Store
from limits_app.stores.process import ProcessStore, open_process_store, places
from limits_app.testing import FakeClock, StoreConformance
from limits_app.testing.conformance.atomicity import Atomicity
from limits_app.testing.conformance.bounds import Bounds
from limits_app.testing.conformance.counting import Counting
from limits_app.testing.conformance.leases import Leases
from limits_app.testing.conformance.permits import Permits
from limits_app.testing.conformance.settling import Settling
from tests.stores.support import count_entries


class _InAFile:
    """Stores in files."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path
        self.made = 0

    def make_store(self, clock: FakeClock) -> ProcessStore:
        self.made += 1
        return ProcessStore(self.directory / str(self.made), clock=clock, map_megabytes=4)

    def close_store(self, store: Store) -> None:
        assert isinstance(store, ProcessStore)
        store.close()

    def count_entries(self, store: Store) -> int:
        assert isinstance(store, ProcessStore)
        return count_entries(store)

    def open_store(self) -> Callable[[], Store]:
        return partial(open_process_store, self.directory / "shared", map_megabytes=4)


class TestProcessStore(_InAFile, Counting, StoreConformance):
    """Everything."""


class TestPlaces(_InAFile, Atomicity, Settling, Leases, Permits, Bounds, Counting):
    """What reads and writes records, while they change places all the time."""

    @pytest.fixture(autouse=True)
    def _little_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(places, "_ASKED_UNTIL_HOT", 2)
        monkeypatch.setattr(places, "_MOST_HOT", 2)

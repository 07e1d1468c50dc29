"""The process store passes the conformance suite."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from limits_app.core.store import Store
from limits_app.stores.process import ProcessStore, open_process_store
from limits_app.testing import FakeClock, StoreConformance
from limits_app.testing.conformance.counting import Counting
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

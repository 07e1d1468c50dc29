"""The stores of one machine pass the conformance suite, the memory store with many more definitions than others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from limits_app.acquiring.store import Store
from limits_app.engine.amounts import Amount
from limits_app.engine.limits import RateLimit
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore, open_process_store
from limits_app.testing import FakeClock, StoreConformance
from limits_app.testing.conformance.algorithms import CHECKS
from limits_app.testing.conformance.contract import ALGORITHMS, DRAINING, KEY, YEAR
from limits_app.testing.conformance.counting import Counting
from tests.stores.support import count_entries, file_of

WHOLE: list[tuple[Amount, float]] = [
    (1, 1),
    (3, 1.5),
    (7, 1),
    (10, 60),
    (60, 60),
    (97, 0.013),
    (100, 86_400),
    (997, 3600),
    (1000, 0.001),
    (1, YEAR),
    (12_345_678, YEAR),
    (10**9 + 7, 86_400),
    (999_999_999_989, 86_400),
    (10**12, 0.001),
    (10**12, YEAR),
]
DECIMAL: list[tuple[Amount, float]] = [(0.5, 1), (2.5, 0.3), (0.001, YEAR), (99.999, 60)]
BURSTS = [(10, 1, 1), (10, 1, 25), (1, YEAR, 100), (10**12, 1, 1), (10**6, 60, 10**12)]

GRID = [
    *[
        RateLimit(KEY, capacity, window, algorithm)
        for algorithm in ALGORITHMS
        for capacity, window in WHOLE + (DECIMAL if algorithm.takes_decimals else [])
    ],
    *[
        RateLimit(KEY, capacity, window, algorithm, burst)
        for algorithm in DRAINING
        for capacity, window, burst in BURSTS
    ],
]


def name_of(limit: RateLimit) -> str:
    burst = "" if limit.burst is None else f"-burst-{limit.burst}"
    return f"{limit.algorithm}-{limit.capacity}-per-{limit.window_seconds}s{burst}"


class TestMemoryStore(Counting, StoreConformance):
    # No other process can open it.
    test_processes_are_admitted_exactly_the_capacity = None  # type: ignore[assignment]
    test_processes_that_take_while_others_collect_lose_nothing = None  # type: ignore[assignment]
    test_processes_of_all_priorities_take_the_limit_and_no_more_than_their_shares = None  # type: ignore[assignment]

    @pytest.fixture(autouse=True)
    def _size(self, request: pytest.FixtureRequest) -> None:
        # So small that it deletes idle scopes; batches have more scopes.
        self.max_scopes = 10_000 if "batches" in request.node.name else 800

    def make_store(self, clock: FakeClock) -> MemoryStore:
        return MemoryStore(clock=clock, max_scopes=self.max_scopes)

    def count_entries(self, store: Store) -> int:
        assert isinstance(store, MemoryStore)
        return len(store)


@pytest.mark.parametrize("limit", GRID, ids=name_of)
def test_definitions_of_every_size_are_exact(limit: RateLimit) -> None:
    clock = FakeClock()
    for check in CHECKS:
        check(MemoryStore(clock=clock), clock, limit)


class TestProcessStore(Counting, StoreConformance):
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

    def use_space(self, store: Store) -> None:
        assert isinstance(store, ProcessStore)
        with file_of(store).open().begin(write=True) as txn:
            txn.put(b"filler", bytes(2_000_000))

    def count_entries(self, store: Store) -> int:
        assert isinstance(store, ProcessStore)
        return count_entries(store)

    def open_store(self) -> Callable[[], Store]:
        return partial(open_process_store, self.directory / "shared", map_megabytes=4)

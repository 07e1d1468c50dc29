"""Sharing: limit sets that travel to other processes, and what one process changes for all."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.errors import NotShareable, StaleConfiguration
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore, open_process_store
from limits_app.testing import FakeClock
from tests.stores.support import MULTI_THREADED_FORK, file_of, limits_of, running, used

pytestmark = pytest.mark.filterwarnings(MULTI_THREADED_FORK)

HUNDRED = CallLimit(100, 366 * 86_400, RateLimitAlgorithm.FIXED_WINDOW)


@pytest.fixture
def shared_store(tmp_path: Path) -> Iterator[ProcessStore]:
    """A store that travels with its limit sets."""
    store = open_process_store(tmp_path, map_megabytes=2, lease_seconds=7)
    yield store
    store.close()


def attached(pipe: Connection, limits: LimitSet) -> None:
    """Use a set that has travelled here."""
    count = sum(bool(limits.try_acquire()) for _ in range(30))
    pipe.send((count, limits.config, limits.store.lease_us, used(limits)))
    assert pipe.recv() == "changed"
    pipe.send((limits.store.version(), used(limits_of(limits.store, HUNDRED))))
    try:
        limits.try_acquire()
    except StaleConfiguration:
        pipe.send("stale")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_limit_set_arrives_attached_to_the_same_state(shared_store: ProcessStore, method: str) -> None:
    mine = limits_of(shared_store, HUNDRED)
    sent = LimitSet.composed(mine.scoped, shared_store, config={"region": "eu"}, version=shared_store.version())
    assert sum(bool(mine.try_acquire()) for _ in range(20)) == 20
    with running(attached, sent, method=method) as other:
        assert other.hear() == (30, {"region": "eu"}, 7_000_000, 50)
        assert sum(bool(mine.try_acquire()) for _ in range(100)) == 50
        version = shared_store.advance_version()
        other.pipe.send("changed")
        assert other.hear() == (version, 100)
        assert other.hear() == "stale"
        assert other.ended() == 0


def test_unpickled_set_uses_the_same_store(shared_store: ProcessStore) -> None:
    limits = limits_of(shared_store, HUNDRED, RateLimit("x", 10.5, 60, RateLimitAlgorithm.GCRA), ResourceLimit("db", 2))
    again = pickle.loads(pickle.dumps(limits))
    assert again.store is shared_store
    assert list(again) == list(limits)
    assert limits.try_acquire({"x": 0.5})
    assert used(again) == used(limits) == 1


def test_a_directory_is_opened_once_per_process_whatever_it_is_called(
    shared_store: ProcessStore, tmp_path: Path
) -> None:
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(tmp_path)
    assert open_process_store(link) is shared_store
    assert open_process_store(str(tmp_path / ".." / tmp_path.name)) is shared_store
    link.unlink()


def test_a_set_in_memory_names_the_mode_to_use_instead() -> None:
    with pytest.raises(NotShareable, match="mode='process'"):
        pickle.dumps(limits_of(MemoryStore(), HUNDRED))
    with pytest.raises(TypeError, match="mode='process'"):
        pickle.dumps(LimitSet([HUNDRED]))


def test_a_process_store_with_a_clock_of_its_own_stays_where_it_is(tmp_path: Path) -> None:
    store = ProcessStore(tmp_path, map_megabytes=1, clock=FakeClock())
    with pytest.raises(NotShareable, match="clock"):
        pickle.dumps(limits_of(store, HUNDRED))
    store.close()


def test_two_directories_share_nothing(tmp_path: Path) -> None:
    stores = [ProcessStore(tmp_path / name, map_megabytes=1) for name in ("one", "two")]
    for store in stores:
        assert limits_of(store, CallLimit(1, 3600)).try_acquire()
        assert not limits_of(store, CallLimit(1, 3600)).try_acquire()
        store.close()


def test_closed_store_opens_again_when_used(process_store: ProcessStore) -> None:
    limits = limits_of(process_store, HUNDRED)
    assert limits.try_acquire()
    process_store.close()
    process_store.close()
    assert used(limits) == 1
    assert repr(process_store) == f"ProcessStore({str(process_store.directory)!r})"


def test_an_empty_set_never_touches_its_store(tmp_path: Path) -> None:
    store = ProcessStore(tmp_path, map_megabytes=1)
    store.close()
    assert LimitSet.composed([], store).try_acquire()
    assert file_of(store).environment is None

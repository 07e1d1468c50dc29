"""Limits of workers: private, shared, and pools of sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.pool import LimitPool
from limits_app.engine.limits import CallLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import open_process_store
from limits_app.workers import gather
from tests.workers.people import Clerk

SECONDS = 60
REGIONS = ["eu", "us", "asia"]
CALLS = CallLimit(5, 86_400, RateLimitAlgorithm.FIXED_WINDOW)


def test_the_init_of_a_worker_can_acquire() -> None:
    desk = ResourceLimit("desk", 1)
    with Clerk.options(limits=[desk]).init(limits_needed=1) as clerk:
        assert clerk.take(1).result(SECONDS) == 1


@pytest.mark.parametrize("limits", [None, (), [], LimitSet()])
def test_no_limits_admit_everything(limits: LimitSet | None) -> None:
    with Clerk.options(limits=limits).init() as clerk:
        assert clerk.take(1000).result(SECONDS) == 1000


@pytest.mark.parametrize("limits", [None, []])
def test_where_no_limits_are_given_no_key_is_a_mistake(limits: list[CallLimit] | None, settings: Any) -> None:
    settings.LIMITS = {**settings.LIMITS, "UNKNOWN_KEYS": "raise"}
    assert Clerk(limits_needed=1).take(3) == 3
    with Clerk.options(limits=limits).init(limits_needed=1) as clerk:
        assert clerk.take(3).result(SECONDS) == 3


def test_limits_are_private_to_each_worker() -> None:
    with Clerk.options(mode="thread", max_workers=2, limits=[CALLS]).init() as clerks:
        assert gather([clerks.take(9) for _ in range(4)], timeout=SECONDS) == [5, 5, 0, 0]


def test_a_private_set_is_copied_for_each_worker(mode: str) -> None:
    limits = LimitSet([CALLS], config={"region": "eu"})
    with Clerk.options(mode=mode, max_workers=2, limits=limits).init() as clerks:
        assert gather([clerks.region() for _ in range(2)], timeout=SECONDS) == ["eu", "eu"]
        assert gather([clerks.take(9) for _ in range(4)], timeout=SECONDS) == [4, 4, 0, 0]
    assert limits.get_stats()["call_count"]["used"] == 0


def test_private_sets_of_a_pool_are_copied_for_each_worker() -> None:
    with Clerk.options(mode="thread", max_workers=2, limits=regions(calls=2)).init() as clerks:
        assert sum(gather([clerks.take(9) for _ in range(6)], timeout=SECONDS)) == 12


@pytest.mark.parametrize("mode", ["sync", "thread", "asyncio"])
def test_a_process_set_is_no_match_for_workers_in_this_process(mode: str) -> None:
    limits = LimitSet([CALLS], shared=True, mode="process")
    for given in (limits, [limits], LimitPool([limits])):
        with pytest.raises(ValueError, match=f"mode '{mode}' has workers in this process.* mode='{mode}'"):
            Clerk.options(mode=mode, limits=given).init()


@pytest.mark.parametrize("mode", ["sync", "thread", "asyncio"])
def test_a_limit_set_is_shared_by_all_workers(mode: str) -> None:
    limits = LimitSet([CALLS], shared=True, mode="thread")
    with Clerk.options(mode=mode, max_workers=3, limits=limits).init() as clerks:
        assert sum(gather([clerks.take(3) for _ in range(6)], timeout=SECONDS)) == 5


def test_a_limit_set_in_memory_is_no_match_for_processes() -> None:
    limits = LimitSet([CALLS], shared=True, mode="thread")
    with pytest.raises(ValueError, match=r"mode 'process' cannot send .* shared=True, mode='process'"):
        Clerk.options(mode="process", limits=limits).init()


@pytest.mark.parametrize("mode", ["celery", "ray"])
@pytest.mark.parametrize("store", ["thread", "process"])
def test_limit_sets_of_one_machine_are_no_match_for_several(mode: str, store: str, tmp_path: Path) -> None:
    one = open_process_store(tmp_path, map_megabytes=2) if store == "process" else MemoryStore()
    limits = LimitSet([CALLS], store=one)
    for given in (limits, [limits, limits], LimitPool([limits])):
        with pytest.raises(ValueError, match=f"mode '{mode}' has workers on several machines.* mode='{mode}'"):
            Clerk.options(mode=mode, limits=given).init()


def test_four_processes_get_exactly_the_capacity_of_a_shared_limit(tmp_path: Path) -> None:
    calls = CallLimit(1000, 366 * 86_400, RateLimitAlgorithm.FIXED_WINDOW)
    store = open_process_store(tmp_path, map_megabytes=2)
    limits = LimitSet([calls], store=store)
    with Clerk.options(mode="process", max_workers=4, limits=limits).init() as clerks:
        admitted = gather([clerks.take(50) for _ in range(40)], timeout=SECONDS)
    assert sum(admitted) == 1000
    assert limits.get_stats()["call_count"]["used"] == 1000
    store.close()


def regions(calls: int = 10, **options: object) -> list[LimitSet]:
    limit = CallLimit(calls, 86_400, RateLimitAlgorithm.FIXED_WINDOW)
    return [LimitSet([limit], config={"region": region}, **options) for region in REGIONS]  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["sync", "thread", "asyncio"])
def test_each_worker_begins_with_another_set(mode: str) -> None:
    limit_sets = regions(shared=True, mode="thread")
    with Clerk.options(mode=mode, max_workers=3, limits=limit_sets).init() as clerks:
        assert gather([clerks.region() for _ in range(6)], timeout=SECONDS) == ["eu", "us", "asia", "us", "asia", "eu"]


def test_processes_share_the_sets_of_their_pools(tmp_path: Path) -> None:
    store = open_process_store(tmp_path, map_megabytes=2)
    limit_sets = regions(store=store)
    with Clerk.options(mode="process", max_workers=2, limits=iter(limit_sets)).init() as clerks:
        assert gather([clerks.region() for _ in range(4)], timeout=SECONDS) == ["eu", "us", "us", "asia"]
        assert sum(gather([clerks.take(20) for _ in range(4)], timeout=SECONDS)) == 26
    store.close()


def test_pool_is_shared_by_all_workers() -> None:
    pool = LimitPool(regions(calls=1, shared=True, mode="thread"))
    with Clerk.options(mode="thread", max_workers=2, limits=pool).init() as clerks:
        assert sorted(gather([clerks.region() for _ in range(3)], timeout=SECONDS)) == sorted(REGIONS)
        assert gather([clerks.take(1), clerks.take(1)], timeout=SECONDS) == [0, 0]

"""Limit pools of workers: over sets, which begin with another one in each worker, and given as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from limits_app.core.limit_pool import LimitPool
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, RateLimitAlgorithm
from limits_app.stores.process import open_process_store
from limits_app.workers import gather
from tests.workers.people import Clerk

SECONDS = 60
REGIONS = ["eu", "us", "asia"]


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


def test_a_pool_is_what_all_workers_have() -> None:
    pool = LimitPool(regions(calls=1, shared=True, mode="thread"))
    with Clerk.options(mode="thread", max_workers=2, limits=pool).init() as clerks:
        assert sorted(gather([clerks.region() for _ in range(3)], timeout=SECONDS)) == sorted(REGIONS)
        assert gather([clerks.take(1), clerks.take(1)], timeout=SECONDS) == [0, 0]

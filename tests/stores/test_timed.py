"""Stores whose calls are timed: they decide as they do, and somebody is told how long it took."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import override_settings

from limits_app.core.plan import Claim
from limits_app.core.errors import StaleConfiguration, StoreUnavailable
from limits_app.core.limits import CallLimit, ResourceLimit
from limits_app.stores.guards import Guard
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import open_process_store
from limits_app.stores.timed import TIMERS, timed
from tests.core.test_remote_stores import FarStore
from tests.stores.support import limits_of

Call = tuple[str, str, bool]


@pytest.fixture(autouse=True)
def told() -> Iterator[list[Call]]:
    """Of which calls somebody was told: alias, verb, and whether it failed."""
    calls: list[Call] = []

    def tell(alias: str, verb: str, seconds: float, *, failed: bool) -> None:
        assert 0 <= seconds < 60
        calls.append((alias, verb, failed))

    TIMERS.append(tell)
    yield calls
    TIMERS.remove(tell)


def test_a_store_is_itself_where_nobody_wants_to_know() -> None:
    store, timers = MemoryStore(), TIMERS[:]
    TIMERS.clear()
    try:
        assert timed(store, "default") is store
    finally:
        TIMERS.extend(timers)


def test_each_call_is_told_with_its_verb(told: list[Call]) -> None:
    store = timed(MemoryStore(), "fast")
    limits = limits_of(store, ResourceLimit("db", 2))
    with limits.acquire({"db": 1}):
        limits.get_stats()
    assert told == [("fast", "acquire", False), ("fast", "peek", False), ("fast", "settle", False)]
    store.reset([])
    assert store.renew([]) == []
    assert store.version() < store.advance_version()
    assert [verb for _, verb, _ in told[3:]] == ["reset", "renew", "version", "advance_version"]


def test_a_refusal_is_an_answer_and_not_a_failure(told: list[Call]) -> None:
    limits = limits_of(timed(MemoryStore(), "fast"), CallLimit(1, 60))
    assert [bool(limits.try_acquire()) for _ in range(2)] == [True, False]
    assert told == [("fast", "acquire", False)] * 2


@pytest.mark.parametrize(
    ("error", "failed"), [(StoreUnavailable("gone"), True), (StaleConfiguration("changed"), False)], ids=str
)
def test_a_store_that_cannot_do_it_has_failed(error: Exception, failed: bool, told: list[Call]) -> None:
    class Failing(MemoryStore):
        def acquire(self, claim: Claim) -> bool:
            raise error

    with pytest.raises(type(error)):
        limits_of(timed(Failing(), "bad"), CallLimit(1, 60)).try_acquire()
    assert told == [("bad", "acquire", failed)]


def test_tasks_are_told_of_under_the_same_verbs(told: list[Call]) -> None:
    store = timed(FarStore(), "far")

    async def scenario() -> None:
        limits = limits_of(store, ResourceLimit("db", 2))
        async with await limits.atry_acquire({"db": 1}):
            pass

    asyncio.run(scenario())
    assert told == [("far", "acquire", False), ("far", "settle", False)]
    assert store.remote


@override_settings(LIMITS={"STORES": {"default": {"KIND": "memory"}}})
def test_a_guard_has_its_store_timed_once(told: list[Call]) -> None:
    guard = Guard("default")
    store = guard.store()
    assert guard.store() is store
    with limits_of(store, ResourceLimit("db", 2)).acquire():
        pass
    assert [call for call in told if call[1] != "version"] == [
        ("default", "acquire", False), ("default", "settle", False)
    ]  # fmt: skip


def test_in_another_process_it_is_the_store_itself(tmp_path: Path) -> None:
    store = open_process_store(tmp_path, map_megabytes=1)
    try:
        assert pickle.loads(pickle.dumps(timed(store, "default"))) is store
    finally:
        store.close()

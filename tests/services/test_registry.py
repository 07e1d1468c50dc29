"""The store that limits use, and the signal of a lost lease."""

from __future__ import annotations

from pathlib import Path

from pytest_django import Settings

from limits_app import CallLimit, LimitSet, ResourceLimit, limits, signals
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import default_process_store
from limits_app.stores.resilient import ResilientStore
from limits_app.testing import FakeClock


def test_sets_of_mode_process_use_the_store_of_the_site(settings: Settings, tmp_path: Path) -> None:
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}, "STATE_DIR": str(tmp_path), "MAP_MEGABYTES": 1}
    gate = LimitSet([CallLimit(1, 60)], shared=True, mode="process")
    assert gate.store is default_process_store()
    assert [bool(gate.try_acquire()) for _ in range(2)] == [True, False]
    gate.store.close()


def test_other_settings_count_at_once(settings: Settings) -> None:
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}, "other": {"KIND": "memory"}}}
    first = _store_of_limits()
    settings.LIMITS = {**settings.LIMITS, "STORE": "other"}
    assert _store_of_limits() is registry.store("other")
    assert first is registry.store("default")


def test_a_lost_lease_is_told() -> None:
    heard: list[object] = []

    def hear(claim: object, **details: object) -> None:
        heard.append(claim)

    signals.lease_lost.connect(hear)
    held = LimitSet([ResourceLimit("db", 1, max_hold_seconds=1)], store=MemoryStore(clock=(clock := FakeClock())))
    acquisition = held.acquire()
    clock.advance(10)
    signals.lease_lost.disconnect(hear)
    assert heard == [acquisition]


def _store_of_limits() -> object:
    """The store that limits really use, behind its circuit breaker."""
    guarded = limits.limit_set("api", "a").store
    assert isinstance(guarded, ResilientStore)
    return guarded.inner

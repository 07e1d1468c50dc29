"""The stores of the site."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from limits_app import CallLimit, LimitSet, ResourceLimit, limits, signals
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore, default_process_store
from limits_app.stores.resilient import ResilientStore
from limits_app.testing import FakeClock


def test_an_alias_is_opened_once(settings: Settings) -> None:
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}, "second": {"KIND": "memory"}}}
    assert registry.store() is registry.store("default")
    assert registry.store("second") is not registry.store()
    assert isinstance(registry.store("second"), MemoryStore)


def test_no_such_alias_says_which_there_are(settings: Settings) -> None:
    settings.LIMITS = {}
    with pytest.raises(ImproperlyConfigured, match="has no 'other'"):
        registry.store("other")


def test_a_process_store_lies_where_the_settings_say(settings: Settings, tmp_path: Path) -> None:
    settings.LIMITS = {"STATE_DIR": str(tmp_path / "here"), "MAP_MEGABYTES": 2}
    store = registry.store()
    assert isinstance(store, ProcessStore)
    assert store.directory == tmp_path / "here"
    assert (tmp_path / "here/state/data.mdb").stat().st_size == 2 * 1024 * 1024
    store.close()


def test_a_site_has_a_place_of_its_own(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settings.LIMITS = {}
    settings.SECRET_KEY = "one site"
    mine = registry.state_directory()
    settings.SECRET_KEY = "another site"
    assert mine.parent == registry.state_directory().parent
    assert mine != registry.state_directory()
    assert mine.parent.parent == tmp_path


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

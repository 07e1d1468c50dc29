"""The memory store, where it differs from others: its lock, its clock, and interruptions."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Event

import pytest

from limits_app.engine.change_log import ALL, Change
from limits_app.engine.clock import system_us
from limits_app.engine.limits import CallLimit, ResourceLimit
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.stores.support import PATIENCE, limits_of, used


def test_a_step_waits_for_one_that_takes_long() -> None:
    inside, go_on = Event(), Event()

    def slow() -> int:
        inside.set()
        assert go_on.wait(PATIENCE)
        return system_us()

    go_on.set()
    store = MemoryStore(clock=slow)
    limits = limits_of(store, CallLimit(10, 3600))
    inside.clear()
    go_on.clear()
    with ThreadPoolExecutor(3) as executor:
        first = executor.submit(limits.try_acquire)
        assert inside.wait(PATIENCE)
        others = [executor.submit(limits.try_acquire), executor.submit(limits.get_stats)]
        # Long enough for the others to have given up trying, and to wait.
        assert not Event().wait(0.05)
        assert not any(other.done() for other in others)
        go_on.set()
        assert first.result(PATIENCE)
        assert all(other.result(PATIENCE) for other in others)
    assert used(limits) == pytest.approx(2, abs=0.01)


@pytest.mark.parametrize("interrupts", [False, True])
def test_a_thread_tries_again_when_the_step_of_another_one_has_ended(
    monkeypatch: pytest.MonkeyPatch, interrupts: bool
) -> None:
    inside, go_on, pauses = Event(), Event(), []

    def slow() -> int:
        inside.set()
        assert go_on.wait(PATIENCE)
        return system_us()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if interrupts:
            raise KeyboardInterrupt
        go_on.set()
        assert first.result(PATIENCE)

    go_on.set()
    limits = limits_of(MemoryStore(clock=slow), CallLimit(10, 3600))
    inside.clear()
    go_on.clear()
    monkeypatch.setattr("limits_app.stores.steps.sleep", pause)
    with ThreadPoolExecutor(1) as executor:
        first = executor.submit(limits.try_acquire)
        assert inside.wait(PATIENCE)
        with pytest.raises(KeyboardInterrupt) if interrupts else nullcontext():
            assert limits.try_acquire()
        go_on.set()
        assert first.result(PATIENCE)
    assert pauses == [0]
    assert used(limits) == pytest.approx(1 if interrupts else 2, abs=0.01)


def test_length_of_a_store_is_the_number_of_its_records() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    assert len(store) == 0
    assert limits_of(store, CallLimit(2, 60)).try_acquire()
    assert len(store) == 1
    with limits_of(store, ResourceLimit("db", 1), entity="holder").try_acquire():
        assert len(store) == 3
    assert len(store) == 2


def test_a_store_is_garbage_collected_with_its_users() -> None:
    store = MemoryStore()
    assert limits_of(store, ResourceLimit("db", 1)).try_acquire()
    reference = weakref.ref(store.line)
    del store
    gc.collect()
    assert reference() is None or reference().busy is False  # type: ignore[union-attr]


def test_clearing_makes_every_change_unknown() -> None:
    store = MemoryStore()
    versions = {name: store.advance_version([Change.of_client(b"somebody")], name) for name in ("", "tenant")}
    store.clear()
    for name, version in versions.items():
        assert store.changes_since(version, name) == (store.version(name), (ALL,))
        assert store.version(name) > version


def test_idle_scopes_stay_while_the_store_is_roomy(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock, max_scopes=80)
    for number in range(10):
        assert limits_of(store, CallLimit(2, 1), entity=f"early/{number}").try_acquire()
    clock.advance(3600)
    assert limits_of(store, CallLimit(2, 1), entity="late/1").try_acquire()
    assert len(store) == 9, "two were deleted for the one that came after a part of the space was in use"
    assert limits_of(store, CallLimit(2, 1), entity="late/2").try_acquire()
    assert len(store) == 10


@pytest.mark.parametrize("end", ["idle", "cleared", "changed"])
def test_set_whose_record_has_ended_sees_the_charges_of_others(clock: FakeClock, end: str) -> None:
    store = MemoryStore(clock=clock, max_scopes=8)
    early, other = [limits_of(store, CallLimit(3, 1), entity="ann") for _ in range(2)]
    assert early.try_acquire()
    assert early.try_acquire()
    if end == "idle":
        clock.advance(3600)
        for number in range(6):
            limits_of(store, CallLimit(2, 3600), entity=f"newcomer/{number}").try_acquire()
    elif end == "cleared":
        store.clear()
    else:
        other = limits_of(store, CallLimit(4, 1), entity="ann")
    assert other.try_acquire()
    assert [bool(early.try_acquire()) for _ in range(3)] == [end != "changed", end != "changed", False]
    assert bool(other.try_acquire()) is (end == "changed")
    assert not other.try_acquire()

"""A full memory store: what gives way to new scopes, and what those that find no room get."""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest

from limits_app.engine.errors import StoreFull
from limits_app.engine.keys import scope_of
from limits_app.engine.limits import CallLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import collected, counting, in_scope, limits_in
from tests.stores.support import limits_of, used

HOUR = 3600
WINDOW = CallLimit(5, HOUR, RateLimitAlgorithm.FIXED_WINDOW)


@pytest.fixture
def small(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock=clock, max_scopes=100)


def finds_room(store: MemoryStore, number: int) -> bool:
    """Whether a new scope finds room."""
    with suppress(StoreFull):
        return bool(limits_of(store, WINDOW, entity=f"{number}").try_acquire())
    return False


def test_known_scopes_are_decided_and_a_new_one_gets_an_error(
    small: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert sum(finds_room(small, number) for number in range(150)) == 100
    with pytest.raises(StoreFull, match="all 100 scopes of the memory store are in active use: raise its MAX_SCOPES"):
        limits_of(small, WINDOW, entity="new").try_acquire()
    assert used(limits_of(small, WINDOW, entity="new")) == 0
    assert sum(finds_room(small, number) for number in range(100)) == 100
    assert used(limits_of(small, WINDOW, entity="7")) == 2
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert ["75 % full: raise" in warnings[0], "is full (99 %)" in warnings[1]] == [True, True]
    assert len(warnings) == 2


def test_another_limit_rejects_a_new_scope_as_usual(small: MemoryStore) -> None:
    total = in_scope(small, scope_of("site", None), CallLimit(1, HOUR))
    clients = [in_scope(small, scope_of("site", f"{number}"), WINDOW) for number in range(2)]
    assert limits_in(small, total, clients[0]).try_acquire()
    for number in range(200):
        finds_room(small, number)
    assert not limits_in(small, total, clients[1]).try_acquire()


def test_a_scope_without_room_charges_no_other_one(small: MemoryStore) -> None:
    total = in_scope(small, scope_of("site", None), CallLimit(9, HOUR))
    assert limits_in(small, total).try_acquire()
    for number in range(200):
        finds_room(small, number)
    with pytest.raises(StoreFull):
        limits_in(small, total, in_scope(small, scope_of("site", "new"), WINDOW)).try_acquire()
    assert used(limits_in(small, total)) == 1


def test_counted_usage_gives_way_then_idle_scopes_then_nearly_idle_ones(small: MemoryStore, clock: FakeClock) -> None:
    short = CallLimit(5, 60, RateLimitAlgorithm.FIXED_WINDOW)
    for number in range(50):
        assert counting(small, short, entity=f"{number}").try_acquire()
    clock.advance(HOUR)
    for number in range(50):
        assert counting(small, short, entity=f"{number}").try_acquire()
    assert sum(finds_room(small, 1000 + number) for number in range(50)) == 50
    assert len(collected(small)) <= 50, "those of the first hour gave way"
    clock.advance(HOUR * 15 / 16 - 1)
    assert sum(finds_room(small, 2000 + number) for number in range(100)) == 50, "idle ones"
    clock.advance(2)
    assert sum(finds_room(small, 3000 + number) for number in range(100)) == 50, "nearly idle ones"


def test_permits_stay_with_their_holders(small: MemoryStore) -> None:
    with limits_of(small, ResourceLimit("db", 1), entity="holder").try_acquire():
        for number in range(300):
            finds_room(small, number)
        assert not limits_of(small, ResourceLimit("db", 1), entity="holder").try_acquire()


def test_hours_that_are_not_collected_are_bounded_too(small: MemoryStore, clock: FakeClock) -> None:
    for _ in range(10):
        for number in range(40):
            assert counting(small, CallLimit(5, 60), entity=f"{number}").try_acquire()
        clock.advance(HOUR)
    assert len(collected(small)) <= 140

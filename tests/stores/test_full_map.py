"""A full map: what is idle makes room, and where nothing is idle the error says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from limits_app.core.errors import StoreUnavailable
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.process import ProcessStore
from limits_app.testing import FakeClock
from tests.stores.support import count_entries, limits_of, used

HOUR = 3600


@pytest.fixture
def tiny(tmp_path: Path, clock: FakeClock) -> Iterator[ProcessStore]:
    """A store with the smallest map there is."""
    store = ProcessStore(tmp_path, clock=clock, map_megabytes=1)
    yield store
    store.close()


def scope(store: ProcessStore, number: int, window: float = HOUR) -> LimitSet:
    """The limits of one of many."""
    return limits_of(
        store, RateLimit("x", 10, window, RateLimitAlgorithm.SLIDING_WINDOW), CallLimit(10, window), entity=f"{number}"
    )


def fill(store: ProcessStore, window: float = HOUR) -> int:
    """Use one scope after the other until there is no room; returns how many found some."""
    found = count()

    def use_them_up() -> None:
        while scope(store, next(found), window).try_acquire({"x": 1}):
            pass

    with pytest.raises(StoreUnavailable, match=r"all 1 MB .*: raise LIMITS\['MAP_MEGABYTES'\]"):
        use_them_up()
    return next(found) - 1


def test_when_all_is_active_the_error_says_what_to_do_and_nothing_is_charged(tiny: ProcessStore) -> None:
    number = fill(tiny)
    assert number > 1000
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="in active use"):
            scope(tiny, number).try_acquire({"x": 1})
    assert used(scope(tiny, number)) == 0
    assert used(scope(tiny, 0)) == 1


def test_those_who_are_there_go_on_while_it_is_full(tiny: ProcessStore) -> None:
    number = fill(tiny)
    admitted = sum(bool(scope(tiny, one).try_acquire({"x": 1})) for one in range(0, number, 97))
    assert admitted == len(range(0, number, 97))
    assert not scope(tiny, 0).try_acquire({"x": 9})


def test_what_is_idle_makes_room(tiny: ProcessStore, clock: FakeClock) -> None:
    number = fill(tiny, window=60)
    clock.advance(60)
    for newcomer in range(number, number + 500):
        assert scope(tiny, newcomer).try_acquire({"x": 1})
    assert count_entries(tiny) < 3 * number


def test_what_is_still_counted_survives_a_full_map(tiny: ProcessStore, clock: FakeClock) -> None:
    quiet = limits_of(tiny, CallLimit(5, 366 * 86_400, RateLimitAlgorithm.FIXED_WINDOW), entity="quiet")
    held = limits_of(tiny, ResourceLimit("db", 1), entity="holder").try_acquire()
    assert sum(bool(quiet.try_acquire()) for _ in range(6)) == 5
    for _ in range(2):
        fill(tiny, window=60)
        clock.advance(60)
    assert not quiet.try_acquire()
    assert not limits_of(tiny, ResourceLimit("db", 1), entity="holder").try_acquire()
    held.release()


def test_settling_finds_room_too(tiny: ProcessStore, clock: FakeClock) -> None:
    late = [scope(tiny, -1 - number, window=1).try_acquire({"x": 1}) for number in range(50)]
    clock.advance(100)
    fill(tiny, window=60)
    clock.advance(60)
    for one in late:
        one.update({"x": 3})
        one.release()
    assert [used(one.limit_set, "x") for one in late] == [2] * 50


def test_what_could_not_be_settled_for_want_of_room_is_settled_later(tiny: ProcessStore, clock: FakeClock) -> None:
    late = [scope(tiny, -1 - number, window=1).try_acquire({"x": 1}) for number in range(50)]
    clock.advance(100)
    fill(tiny)
    without_room = []
    for one in late:
        one.update({"x": 3})
        try:
            one.release()
        except StoreUnavailable:
            without_room.append(one)
    assert without_room
    assert not any(one.claim.settled for one in without_room)
    clock.advance(2 * HOUR)
    for one in without_room:
        one.release()
    assert [used(one.limit_set, "x") for one in without_room] == [2] * len(without_room)


def test_a_reset_and_a_new_version_are_told_when_there_is_no_room(tiny: ProcessStore) -> None:
    fill(tiny)
    before = tiny.version()
    assert tiny.advance_version() == tiny.version() > before
    tiny.reset([scope(tiny, 0).scoped[0].scope.key])
    assert used(scope(tiny, 0)) == 0

"""A full map: what is idle makes room, and where nothing is idle the error says what to do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, islice
from pathlib import Path

import pytest

from limits_app import conf
from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.change_log import MOST_CHANGES, Change
from limits_app.engine.errors import StoreFull, StoreUnavailable
from limits_app.engine.limits import AnyLimit, CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.process import ProcessStore
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import collected, counting
from tests.stores.support import count_entries, for_each_entity, limits_of, used

HOUR = 3600


@pytest.fixture
def tiny(tmp_path: Path, clock: FakeClock) -> Iterator[ProcessStore]:
    """A store with the smallest map there is."""
    store = ProcessStore(tmp_path, clock=clock, map_megabytes=1)
    yield store
    store.close()


def scopes(store: ProcessStore, window: float = HOUR) -> Callable[[str], LimitSet]:
    """The limits of one of many scopes."""
    rate = RateLimit("x", 10, window, RateLimitAlgorithm.SLIDING_WINDOW)
    return for_each_entity(limits_of(store, rate, CallLimit(10, window)))


def scope(store: ProcessStore, number: int, window: float = HOUR) -> LimitSet:
    """The limits of a single one of them."""
    return scopes(store, window)(f"{number}")


def fill(store: ProcessStore, window: float = HOUR) -> int:
    """Use one scope after the other until there is no room; returns how many found some."""
    found, limits = count(), scopes(store, window)

    def use_them_up() -> None:
        while limits(f"{next(found)}").try_acquire({"x": 1}):
            pass

    with pytest.raises(StoreUnavailable, match=r"all 1 MB .*: raise LIMITS\['MAP_MEGABYTES'\]"):
        use_them_up()
    return next(found) - 1


def test_a_full_map_of_active_scopes_is_an_error_and_charges_nothing(tiny: ProcessStore) -> None:
    number = fill(tiny)
    assert number > 1000
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="in active use"):
            scope(tiny, number).try_acquire({"x": 1})
    assert used(scope(tiny, number)) == 0
    assert used(scope(tiny, 0)) == 1


def test_existing_clients_continue_while_the_map_is_full(tiny: ProcessStore) -> None:
    number = fill(tiny)
    admitted = sum(bool(scope(tiny, one).try_acquire({"x": 1})) for one in range(0, number, 97))
    assert admitted == len(range(0, number, 97))
    assert not scope(tiny, 0).try_acquire({"x": 9})


def test_idle_scopes_make_room(tiny: ProcessStore, clock: FakeClock) -> None:
    number = fill(tiny, window=60)
    clock.advance(60)
    limits = scopes(tiny)
    for newcomer in range(number, number + 500):
        assert limits(f"{newcomer}").try_acquire({"x": 1})
    assert count_entries(tiny) < 3 * number


def test_idle_scopes_stay_until_a_good_part_of_the_space_is_used(tiny: ProcessStore, clock: FakeClock) -> None:
    early, limits = 400, scopes(tiny, window=1)
    for number in range(early):
        assert limits(f"{number}").try_acquire({"x": 1})
    clock.advance(3600)
    written = count_entries(tiny)
    for number in range(early, early + 100):
        assert limits(f"{number}").try_acquire({"x": 1})
    assert count_entries(tiny) > written
    clock.advance(3600)
    for number in range(early + 100, 10 * early):
        assert limits(f"{number}").try_acquire({"x": 1})
        clock.advance(1)
    assert count_entries(tiny) < 6 * written


def test_uncollected_counts_survive_a_full_map(tiny: ProcessStore, clock: FakeClock) -> None:
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


def test_settlement_that_finds_a_full_map_is_made_later(tiny: ProcessStore, clock: FakeClock) -> None:
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


def test_a_reset_and_a_new_version_are_announced_in_a_full_map(tiny: ProcessStore) -> None:
    fill(tiny)
    before = tiny.version()
    assert tiny.advance_version() == tiny.version() > before
    known = 0
    for place in range(MOST_CHANGES):
        earlier = tiny.version()
        latest = tiny.advance_version([change := Change.of_client(b"\1" + place.to_bytes(7))])
        changes = tiny.changes_since(earlier)
        assert changes in (None, (latest, (change,))), "the log gives way"
        known += changes is not None
    assert known
    tiny.reset([scope(tiny, 0).scoped[0].scope.key])
    assert used(scope(tiny, 0)) == 0


def flood(store: ProcessStore, attempts: int, *, limits: tuple[AnyLimit, ...] = (CallLimit(5, HOUR),)) -> int:
    """Send one request for each of many new scopes, which count usage; returns how many of them found room."""
    admitted, new = 0, for_each_entity(counting(store, *limits))
    for number in range(attempts):
        with suppress(StoreFull):
            admitted += bool(new(f"new {number}").try_acquire())
    return admitted


def test_counted_usage_gives_way_first_and_scopes_in_use_never(
    tiny: ProcessStore, caplog: pytest.LogCaptureFixture
) -> None:
    drained = RateLimit("x", 7, 1000, RateLimitAlgorithm.TOKEN_BUCKET)
    known = [counting(tiny, drained, QuotaLimit("q", 9, "month"), entity=f"known {number}") for number in range(20)]
    for number, limits in enumerate(known):
        assert limits.try_acquire({"x": 1 + number % 7, "q": 2})
    held = limits_of(tiny, ResourceLimit("db", 2), entity="holder").try_acquire()
    admitted = flood(tiny, 15_000)
    # With the labels of usage there would be room for less than 8000.
    assert 10_000 < admitted < 15_000
    assert len(collected(tiny)) < 1000
    assert [used(limits, "x") for limits in known] == [1 + number % 7 for number in range(20)]
    assert [used(limits, "q") for limits in known] == [2] * 20
    assert all(limits.try_acquire({"q": 7}) for limits in known)
    assert not any(limits.try_acquire({"q": 1}) for limits in known)
    held.release()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert ["is 75 % full: raise" in warnings[0], "is full (87 %): counted usage" in warnings[1]] == [True, True]
    assert len(warnings) == 2


def test_a_megabyte_holds_so_many_clients_with_usage_that_the_default_holds_200_000(tiny: ProcessStore) -> None:
    needed = -(-200_000 // conf.MAP_MEGABYTES.default)
    limits = for_each_entity(counting(tiny, CallLimit(5, HOUR)))
    for number in range(needed):
        assert limits(f"ip:203.0.113.{number}").try_acquire()
    assert len(collected(tiny)) == needed


def test_new_clients_are_admitted_while_usage_is_counted(tiny: ProcessStore) -> None:
    assert flood(tiny, 8000) > 7980


def test_counts_are_collected_from_a_full_file(tiny: ProcessStore) -> None:
    flood(tiny, 9000)
    before = tiny.collect_counts()
    assert before is not None
    assert tiny.collect_counts() == before, "it waits in the full file"
    tiny.forget_counts(before.name)
    assert len(collected(tiny)) > 500


def test_known_scopes_are_decided_hour_after_hour_while_the_file_is_full(tiny: ProcessStore, clock: FakeClock) -> None:
    limits = (CallLimit(5, 100 * HOUR),)
    assert flood(tiny, 13_000, limits=limits) < 13_000
    for _ in range(3):
        clock.advance(HOUR)
        assert flood(tiny, 1000, limits=limits) == 1000


@pytest.mark.parametrize("algorithm", list(RateLimitAlgorithm))
def test_scopes_give_way_when_a_sixteenth_of_their_time_is_left(
    tiny: ProcessStore, clock: FakeClock, algorithm: RateLimitAlgorithm
) -> None:
    limits = for_each_entity(limits_of(tiny, RateLimit("x", 4, 160, algorithm)))

    def finds_room(number: int) -> bool:
        with suppress(StoreFull):
            return bool(limits(f"{number}").try_acquire({"x": 4}))
        return False

    rejected = list(islice((number for number in count() if not finds_room(number)), 100))
    clock.advance(149.9)
    assert not any(finds_room(number) for number in rejected)
    clock.advance(0.2)
    assert all(finds_room(number) for number in rejected)


def test_a_file_that_known_scopes_have_filled_has_room_again(tiny: ProcessStore, clock: FakeClock) -> None:
    growing = RateLimit("x", 10**6, HOUR, RateLimitAlgorithm.SLIDING_WINDOW)
    new, limits = count(), for_each_entity(limits_of(tiny, growing))
    with suppress(StoreFull):
        while limits(f"{next(new)}").try_acquire({"x": 1}):
            pass
    without_room = 0
    for number in range(4500):
        clock.advance(0.2)
        try:
            assert limits(f"{number % 200}").try_acquire({"x": 1})
        except StoreFull:
            without_room += 1
    assert without_room > 10
    assert used(limits("7"), "x") > 10
    clock.advance(2 * HOUR)
    assert limits("one more").try_acquire({"x": 1})

"""Collecting counts from a store in memory: the work for each count does not grow with those that wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from limits_app.engine import Rejected, Times
from limits_app.engine.limits import CallLimit
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import collected, counting, rejections_in

HOUR = 3600
FEW, MANY = 3_000, 12_000
CLIENTS = 100


class Name(str):
    """A name that counts how often a table looks it up or stores it."""

    __slots__ = ()
    lookups = 0

    def __hash__(self) -> int:
        Name.lookups += 1
        return super().__hash__()


def collect_hours(store: MemoryStore, clock: FakeClock, waiting: int) -> None:
    for _ in range(waiting // CLIENTS):
        for number in range(CLIENTS):
            assert counting(store, CallLimit(5, 60), entity=Name(number)).try_acquire()
        clock.advance(HOUR)
    Name.lookups = 0
    assert len(collected(store)) == waiting


def collect_rejections(store: MemoryStore, _clock: FakeClock, waiting: int) -> None:
    Name.lookups = 0
    # Counted too: since Python 3.14 tuples keep their hash, and nothing is looked up afterwards.
    some = {Rejected(number, "api", "entity", Name(number), "calls"): Times(1, 0, 0) for number in range(waiting)}
    store.add_rejections(some)
    assert len(rejections_in(store)) == waiting


@pytest.mark.parametrize("collect", [collect_hours, collect_rejections])
def test_a_count_is_collected_with_as_much_work_where_many_wait(
    collect: Callable[[MemoryStore, FakeClock, int], None], clock: FakeClock
) -> None:
    lookups = []
    for waiting in (FEW, MANY):
        collect(MemoryStore(clock=clock), clock, waiting)
        lookups.append(Name.lookups / waiting)
    few, many = lookups
    assert 0 < many <= 1.1 * few

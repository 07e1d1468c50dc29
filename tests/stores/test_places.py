"""Records that are asked for often stand side by side in the file, and every record stands in one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import lmdb
import pytest

from limits_app.core.keys import scope_of, short_key
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, Limit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.process import ProcessStore, places
from limits_app.stores.process.places import HOT, Places, scope_in
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import limits_in, scoped
from tests.stores.support import limits_of, used

HOUR = 3600
NUMBER = b"hot"
Entries = dict[bytes, bytes]


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[ProcessStore]:
    made = ProcessStore(tmp_path, clock=clock, map_megabytes=2)
    yield made
    made.close()


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> int:
    """Every second one becomes hot, and few can be."""
    monkeypatch.setattr(places, "_ASKED_UNTIL_HOT", 2)
    monkeypatch.setattr(places, "_MOST_HOT", 4)
    return 4


def stored(store: ProcessStore) -> Entries:
    with store._file.open().begin() as txn:
        return {bytes(key): bytes(value) for key, value in txn.cursor()}


def hot(entries: Entries) -> list[bytes]:
    """The scopes of hot records."""
    found = [scope for key in entries if key.startswith(HOT) and (scope := scope_in(key)) is not None]
    assert int.from_bytes(entries.get(NUMBER, b"")) == len(found)
    return found


def records(entries: Entries) -> list[bytes]:
    """The scopes of all records."""
    return [scope for key in entries if (scope := scope_in(key)) is not None]


def test_a_scope_that_is_asked_for_often_is_hot(store: ProcessStore) -> None:
    limits = limits_of(store, CallLimit(100, HOUR))
    for number in range(15):
        assert limits.try_acquire()
        assert hot(stored(store)) == []
        assert used(limits) == number + 1
    for number in range(15, 20):
        assert limits.try_acquire()
        assert hot(stored(store)) == [short_key(scope_of("tests", "someone").key)]
        assert used(limits) == number + 1
    assert len(records(stored(store))) == 1


@pytest.mark.parametrize(
    "limits",
    [
        [CallLimit(10**4, HOUR)],
        [CallLimit(10**4, HOUR), RateLimit("tokens", 10**4, HOUR), ResourceLimit("db", 2)],
        [CallLimit(10**4, HOUR, RateLimitAlgorithm.SLIDING_WINDOW)],
    ],
    ids=["one", "three", "log"],
)
def test_no_more_are_hot_than_have_room_and_nobody_is_forgotten(
    store: ProcessStore, little_room: int, limits: list[Limit]
) -> None:
    people = [limits_of(store, *limits, entity=f"user:{number}") for number in range(40)]
    random, asked = Random(1), Counter[int]()
    for _ in range(500):
        number = random.randrange(len(people))
        amounts = {"tokens": 3} if len(limits) > 1 else None
        with people[number].try_acquire(amounts) as acquired:
            assert acquired
            acquired.update({"tokens": 1} if amounts else {})
        asked[number] += 1
        assert len(hot(stored(store))) <= little_room
    assert len(hot(stored(store))) == little_room
    assert len(records(stored(store))) == len(set(records(stored(store)))) == len(asked)
    assert [used(one) for one in people] == [asked[number] for number in range(len(people))]


def test_who_asks_with_others_is_hot_too(store: ProcessStore, little_room: int) -> None:
    parts = [scoped(store, CallLimit(100, HOUR), entity=who) for who in ("tenant", "user")]
    family = limits_in(store, *parts)
    for _ in range(20):
        assert family.try_acquire()
    assert len(hot(stored(store))) == len(records(stored(store))) == 2
    assert [used(limits_in(store, part)) for part in parts] == [20, 20]


def test_a_refusal_leaves_everybody_where_they_are(store: ProcessStore, little_room: int) -> None:
    limits = limits_of(store, CallLimit(1, HOUR))
    assert limits.try_acquire()
    before = stored(store)
    for _ in range(5):
        assert not limits.try_acquire()
    assert stored(store) == before


def test_an_idle_hot_scope_is_forgotten(store: ProcessStore, clock: FakeClock, little_room: int) -> None:
    def use(*entities: str) -> None:
        for entity in entities:
            assert limits_of(store, CallLimit(10, 1), entity=entity).try_acquire()

    use(*["first"] * 4, *["second"] * 4, *["third"] * 4)
    assert len(hot(stored(store))) == 3
    clock.advance(HOUR)
    use(*[f"newcomer {number}" for number in range(9)])
    left = stored(store)
    assert hot(left) == []
    assert NUMBER not in left


def test_a_reset_finds_who_is_hot(store: ProcessStore, little_room: int) -> None:
    limits: LimitSet = limits_of(store, CallLimit(10, HOUR))
    for _ in range(9):
        assert limits.try_acquire()
    assert len(hot(stored(store))) == 1
    store.reset([limits.scoped[0].scope.key])
    assert used(limits) == 0


def test_a_scope_that_begins_like_those_that_are_hot_is_no_neighbour(tmp_path: Path, little_room: int) -> None:
    found, others = Places(), [bytes([number] * 16) for number in range(1, 6)]
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as txn:
        zero = bytes(16)
        found.put(txn, zero, b"zero")
        for scope in others:
            found.put(txn, scope, b"there")
            while found.find(txn, scope)[0] == scope:
                found.put(txn, scope, scope)
        assert found.find(txn, zero) == (zero, b"zero")
        assert sum(found.find(txn, scope)[0] == scope for scope in others) == 1
        for scope in [*others, zero]:
            found.remove(txn, scope)
        assert txn.stat()["entries"] == 0

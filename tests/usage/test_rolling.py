"""What stores have counted becomes snapshots of hours and days, each count exactly once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connections, transaction

from limits_app import limits as site_limits
from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.amounts import NOTHING
from limits_app.engine.counting import Batch, Count, Rejected, Times
from limits_app.engine.keys import Scope, member_scope, scope_of, shared_scope
from limits_app.engine.limits import CallLimit, LimitDefinition, RateLimit
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.models import BucketKind, CollectedBatch, Denial, UsagePeriod, UsageSnapshot
from limits_app.models.usage import MAX_SUM
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from limits_app.usage.rollup import add, roll_up
from tests.stores.database.databases import ALIAS
from tests.usage.tables import missing

HOUR = 3600
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def clock() -> FakeClock:
    clock = FakeClock()
    clock.advance(NOON.timestamp() - clock() / 1_000_000)
    return clock


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock=clock)


def counting(store: MemoryStore, scope: Scope, *limits: LimitDefinition) -> LimitSet:
    return LimitSet.composed([ScopedLimits(scope, schema_of(limits, store.lease_us, counts_usage=True))], store)


def snapshots(period: UsagePeriod = UsagePeriod.HOUR) -> list[tuple[datetime, str, str, str, int]]:
    found = UsageSnapshot.objects.filter(period=period).order_by("start", "entity", "key")
    return [(one.start, one.bucket, one.entity, one.key, one.admitted_milli) for one in found]


@pytest.mark.django_db
def test_hours_and_days_sum_up_admitted_amounts(store: MemoryStore, clock: FakeClock) -> None:
    limits = counting(store, scope_of("api", "user:1"), CallLimit(1000, HOUR), RateLimit("tokens", 1000, HOUR))
    for _ in range(3):
        with limits.acquire({"tokens": 10}) as acquisition:
            acquisition.update({"tokens": 4})
        roll_up(store)
    clock.advance(HOUR)
    assert limits.try_acquire(NOTHING)
    roll_up(store)
    assert snapshots() == [
        (NOON, "entity", "user:1", "call_count", 3_000),
        (NOON, "entity", "user:1", "tokens", 12_000),
        (NOON + timedelta(hours=1), "entity", "user:1", "call_count", 1_000),
    ]
    assert snapshots(UsagePeriod.DAY) == [
        (NOON.replace(hour=0), "entity", "user:1", "call_count", 4_000),
        (NOON.replace(hour=0), "entity", "user:1", "tokens", 12_000),
    ]


@pytest.mark.django_db
def test_buckets_are_distinguished(store: MemoryStore) -> None:
    limit = CallLimit(10, HOUR)
    scopes = [
        scope_of("api", None),
        shared_scope("api", "call_count"),
        member_scope("api", "eu"),
        scope_of("api", "eu"),
    ]
    for scope in scopes:
        assert counting(store, scope, limit).try_acquire()
    assert roll_up(store) == 4
    assert sorted(row[1:3] for row in snapshots()) == [
        (BucketKind.ENTITY, ""),
        (BucketKind.ENTITY, "eu"),
        (BucketKind.MEMBER, "eu"),
        (BucketKind.SHARED, ""),
    ]


@pytest.mark.django_db
@pytest.mark.parametrize("entity", ["a\0b", "\ud800", "x" * 255, "\0" * 255, "\U0001f9c0:'\"%s"])
def test_any_identifier_of_an_entity_can_be_stored(store: MemoryStore, entity: str) -> None:
    assert counting(store, scope_of("api", entity), CallLimit(10, HOUR)).try_acquire()
    roll_up(store)
    assert [row[-1] for row in snapshots()] == [1_000]


@pytest.mark.django_db
def test_nothing_counted_is_nothing_done(store: MemoryStore) -> None:
    assert roll_up(store) == 0
    assert not CollectedBatch.objects.exists()


@pytest.mark.django_db
def test_a_batch_that_was_added_and_not_forgotten_is_not_added_again(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = counting(store, scope_of("api", "user:1"), CallLimit(1000, HOUR))
    limits.try_acquire()
    with monkeypatch.context() as killed:
        killed.setattr(store, "forget_counts", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            roll_up(store)
    limits.try_acquire()
    assert roll_up(store) == 0
    assert roll_up(store) == 1
    assert snapshots() == [(NOON, "entity", "user:1", "call_count", 2_000)]


@pytest.mark.django_db(transaction=True)
def test_a_batch_that_could_not_be_added_is_added_later(store: MemoryStore) -> None:
    counting(store, scope_of("api", "user:1"), CallLimit(1000, HOUR)).try_acquire()
    with missing("limits_app_usagesnapshot"), pytest.raises(Exception, match="limits_app_usagesnapshot"):
        roll_up(store)
    roll_up(store)
    assert snapshots() == [(NOON, "entity", "user:1", "call_count", 1_000)]


@pytest.mark.django_db(transaction=True)
def test_it_refuses_to_be_part_of_another_transaction(store: MemoryStore) -> None:
    counting(store, scope_of("api", "user:1"), CallLimit(1000, HOUR)).try_acquire()
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
        roll_up(store)
    roll_up(store)
    assert snapshots() == [(NOON, "entity", "user:1", "call_count", 1_000)]


@pytest.mark.django_db
def test_many_scopes_take_several_batches_and_after_its_time_it_leaves_the_rest_for_later(store: MemoryStore) -> None:
    for number in range(2_100):
        counting(store, scope_of("api", f"user:{number}"), CallLimit(1000, HOUR)).try_acquire()
    assert roll_up(store, seconds=0) == 1_000
    assert roll_up(store) == 1_100
    assert UsageSnapshot.objects.filter(period=UsagePeriod.HOUR).count() == 2_100
    assert CollectedBatch.objects.count() == 3


class _Collected:
    """A store that gives out batches, each until it is forgotten."""

    def __init__(self, *batches: Batch) -> None:
        self.batches = [*batches]

    def collect_counts(self, namespace: str = "", collector: int = 0) -> Batch | None:
        return next(iter(self.batches), None)

    def forget_counts(self, name: str, namespace: str = "") -> None:
        self.batches = [batch for batch in self.batches if batch.name != name]


def _counts(*amounts: tuple[str, int, int], name: str) -> Batch:
    """A batch of amounts by entity and hour after noon."""
    noon = int(NOON.timestamp()) // HOUR
    counts = [Count("api", entity, False, None, noon + hour, {"cost": milli}) for entity, hour, milli in amounts]
    return Batch(name, counts, is_full=True)


@pytest.mark.django_db
def test_unstorable_counts_do_not_stop_others(caplog: pytest.LogCaptureFixture) -> None:
    never = 10**8  # hours: beyond the calendar
    amounts = [(f"user:{number}", never if number in {3, 8} else 0, 1_000 + number) for number in range(11)]
    minutes = {f"user:{number}": never * 60 if number == 4 else int(NOON.timestamp()) // 60 for number in range(6)}
    rejections = {
        Rejected(minute, "api", "entity", entity, "cost"): Times(2, 0, 0) for entity, minute in minutes.items()
    }
    first = _counts(*amounts, name="x" * 64)._replace(rejections=rejections)
    store = _Collected(first, _counts(("user:0", 0, 50), name="next"))
    assert roll_up(store) == 10
    assert store.batches == []
    assert sorted(row[-1] for row in snapshots()) == [0, 1_001, 1_002, 1_004, 1_005, 1_006, 1_007, 1_009, 1_010, 1_050]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "a count of usage cannot be stored and is dropped"
    ] * 3
    assert {denial.entity: denial.count for denial in Denial.objects.all()} == dict.fromkeys(
        minutes.keys() - {"user:4"}, 2
    )
    assert roll_up(_Collected(first)) == 0, "each part was added once"


def _roll(store: MemoryStore) -> int:
    try:
        return roll_up(store)
    finally:
        connections[ALIAS].close()


@pytest.mark.usefixtures("site_database")
def test_concurrent_roll_ups_count_each_batch_once() -> None:
    store = MemoryStore()
    expected: Counter[str] = Counter()
    rolled = 0
    with ThreadPoolExecutor(4) as threads:
        for turn in range(10):
            entity = ["user:1", "tenant:käse", "a\0b"][turn % 3]
            counting(store, scope_of("api", entity), CallLimit(1000, HOUR)).try_acquire()
            expected[entity.replace("\0", "\\x00")] += 1_000
            rolled += sum(threads.map(_roll, [store] * 4))
    found = UsageSnapshot.objects.filter(period=UsagePeriod.DAY)
    assert {one.entity: one.admitted_milli for one in found} == expected
    assert rolled == 10


@pytest.mark.usefixtures("site_database")
def test_sums_end_at_the_largest_that_a_database_stores(caplog: pytest.LogCaptureFixture) -> None:
    huge = 5 * 10**18
    add(_counts(("many", 0, huge), ("many", 0, huge), ("days", 0, huge), ("days", 1, huge), name="in the batch"))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    add(_counts(("stored", 0, MAX_SUM - 70), ("back", 0, -huge), ("exact", 0, MAX_SUM - 70), name="first"))
    add(_counts(("stored", 0, 71), ("back", 0, -huge), ("exact", 0, 70), ("days", 0, -3), name="second"))
    add(_counts(("stored", 0, MAX_SUM), ("exact", 0, -30), ("days", 1, 9), name="third"))
    hours = {(entity, start.hour): milli for start, _, entity, _, milli in snapshots()}
    assert hours == {
        ("back", 12): -MAX_SUM,
        ("days", 12): huge - 3,
        ("days", 13): huge + 9,
        ("exact", 12): MAX_SUM - 30,
        ("many", 12): MAX_SUM,
        ("stored", 12): MAX_SUM,
    }
    days = {entity: milli for _, _, entity, _, milli in snapshots(UsagePeriod.DAY)}
    assert days == {
        "back": -MAX_SUM,
        "days": MAX_SUM,
        "exact": MAX_SUM - 30,
        "many": MAX_SUM,
        "stored": MAX_SUM,
    }
    (used,) = site_limits.usage(period="hour", since=NOON)
    assert used.admitted >= MAX_SUM // 1_000

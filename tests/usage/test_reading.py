"""What the snapshots say, summed up, and who was rejected by which limit, minute by minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from limits_app import limits
from limits_app.engine.errors import InvalidRequest
from limits_app.engine.limits import CallLimit
from limits_app.models import BucketKind, Denial, UsagePeriod, UsageSnapshot
from limits_app.models.usage import MAX_SUM
from limits_app.services.usage import uses
from limits_app.usage.reading import used_resources
from tests.stores.database.databases import ALIAS

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SINCE = {"since": NOON - timedelta(days=1)}
TIME = {"since": NOON - timedelta(days=1), "until": NOON + timedelta(days=1)}


def put(entity: str = "user:1", admitted: int = 1, refused: int = 0, **fields: Any) -> None:
    """A snapshot of an hour; amounts in units."""
    usual: dict[str, Any] = {"period": UsagePeriod.HOUR, "start": NOON, "resource": "api", "key": "call_count"}
    UsageSnapshot.objects.create(
        **{**usual, "entity": entity, "admitted_milli": admitted * 1000, "refused": refused, **fields}
    )


def hourly(*args: Any, **kwargs: Any) -> list[Any]:
    return limits.usage(*args, period="hour", **TIME, **kwargs)


def test_all_that_was_admitted_of_a_limit_is_one_sum() -> None:
    put("user:1", 10, 2)
    put("user:2", 20, 3)
    put("user:1", 500, key="tokens")
    assert [(one.key, one.admitted, one.refused) for one in hourly()] == [("tokens", 500, 0), ("call_count", 30, 5)]
    assert {(one.resource, one.entity, one.start) for one in hourly()} == {(None, None, None)}


@pytest.mark.parametrize(
    ("amounts", "total"),
    [
        ([2**62, 2**62], MAX_SUM),
        ([MAX_SUM, MAX_SUM, -5], MAX_SUM),
        ([MAX_SUM, -MAX_SUM, 7_000], 7_000),
        ([MAX_SUM - 807, 800], MAX_SUM - 7),
        ([-3_000, 2**33, -(2**33)], -3_000),
        ([-MAX_SUM, -MAX_SUM], -MAX_SUM),
    ],
)
def test_enormous_amounts_have_a_sum(amounts: list[int], total: int) -> None:
    for number, milli in enumerate(amounts):
        put(f"user:{number}", admitted_milli=milli)
    put("user:1", 40, key="tokens")
    sums = {one.key: one.admitted for one in hourly()}
    assert sums == {"call_count": total // 1_000 if total % 1_000 == 0 else total / 1_000, "tokens": 40}


def test_usage_is_distinguished_by_resource_entity_and_period() -> None:
    put("user:1", 10)
    put("user:2", 20)
    put("user:1", 5, resource="reports", start=NOON + timedelta(hours=1))
    assert [(one.resource, one.admitted) for one in hourly(by="resource")] == [("api", 30), ("reports", 5)]
    assert [(one.entity, one.admitted) for one in hourly(by="entity")] == [("user:2", 20), ("user:1", 15)]
    assert [(one.start, one.admitted) for one in hourly(by=["period", "limit"])] == [
        (NOON + timedelta(hours=1), 5), (NOON, 30)
    ]  # fmt: skip
    assert len(hourly(by=("resource", "entity", "period"))) == 3


def test_top_consumers_of_a_limit_are_first() -> None:
    for number in range(5):
        put(f"user:{number}", number)
        put(f"user:{number}", 100, key="tokens")
    top = hourly(by="entity", key="call_count", most=2)
    assert [(one.entity, one.admitted) for one in top] == [("user:4", 4), ("user:3", 3)]


def test_buckets_of_different_kinds_are_never_added_up() -> None:
    put("", 10)
    put("", 10, bucket=BucketKind.SHARED)
    put("eu", 10, bucket=BucketKind.MEMBER)
    assert sorted(one.bucket for one in hourly()) == ["entity", "member", "shared"]


def test_only_chosen_rows_are_summed_up() -> None:
    put("user:1", 1)
    put("", 2)
    put("user:1", 4, resource="reports")
    put("a\\x00", 8, resource="reports")
    assert [one.admitted for one in hourly("api")] == [3]
    assert [one.admitted for one in hourly(entity="user:1")] == [5]
    assert [one.admitted for one in hourly(entity="")] == [2]
    assert [one.admitted for one in hourly(entity="a\0")] == [8]
    assert hourly(key="tokens") == []


def test_a_period_counts_where_it_begins() -> None:
    for hours in range(4):
        put(start=NOON + timedelta(hours=hours))
    put(period=UsagePeriod.DAY, start=NOON.replace(hour=0))
    found = limits.usage(period="hour", since=NOON + timedelta(hours=1), until=NOON + timedelta(hours=3))
    assert [one.admitted for one in found] == [2]
    assert [one.admitted for one in limits.usage(**TIME)] == [1]


def test_without_a_time_it_is_the_latest() -> None:
    now = timezone.now().replace(minute=0)
    put(start=now - timedelta(hours=49))
    put(start=now - timedelta(hours=40))
    assert [one.admitted for one in limits.usage(period="hour")] == [1]
    before = limits.usage(period="hour", until=now - timedelta(hours=45))
    assert [one.admitted for one in before] == [1]
    assert limits.usage() == []


def test_times_without_a_time_zone_are_accepted(settings: Settings) -> None:
    settings.USE_TZ = False
    put(start=datetime(2026, 3, 1, 12))  # noqa: DTZ001 - without
    found = limits.usage(period="hour", until=datetime(2026, 3, 1, 13))  # noqa: DTZ001 - without
    assert [one.admitted for one in found] == [1]


def test_thousandths_are_units() -> None:
    put(admitted_milli=1_500, key="tokens")
    assert [one.admitted for one in hourly()] == [1.5]


def test_the_refused_share_is_that_of_calls() -> None:
    put(admitted=30, refused=10)
    put(admitted=30, refused=10, key="tokens")
    put(admitted=0, resource="new")
    shares = {(one.resource, one.key): one.refused_share for one in hourly(by="resource")}
    assert shares == {("api", "call_count"): 0.25, ("api", "tokens"): None, ("new", "call_count"): None}


def test_a_use_is_plain_data_for_json() -> None:
    put(admitted=3, refused=1)
    assert [one.as_dict() for one in hourly(by=("period", "entity"))] == [
        {
            "bucket": "entity",
            "key": "call_count",
            "resource": None,
            "entity": "user:1",
            "plan": None,
            "below": None,
            "start": "2026-03-01T12:00:00+00:00",
            "admitted": 3,
            "rejected": 1,
            "rejected_share": 0.25,
            "cost": None,
        }
    ]
    assert hourly()[0].as_dict()["start"] is None


def test_a_part_of_it_is_asked_for_alone(django_assert_num_queries: Any) -> None:
    for number in range(5):
        put(f"user:{number}", number)
    found = uses(period="hour", by="entity", **TIME)
    with django_assert_num_queries(2):
        assert len(found) == 5
        assert [one.entity for one in found[1:3]] == ["user:3", "user:2"]


def test_a_time_before_all_times_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="until must be later than the start of the calendar"):
        limits.usage(until=datetime(1, 1, 2, tzinfo=UTC))


@pytest.mark.parametrize("wrong", [{"by": "user"}, {"by": ["entity", "x"]}, {"period": "week"}], ids=str)
def test_words_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="must be"):
        limits.usage(**wrong)


@pytest.mark.parametrize("asked", [{"most": 0}, {"since": "yesterday"}, {"until": 5}], ids=str)
@pytest.mark.parametrize("read", [limits.denials, limits.usage])
def test_invalid_options_are_invalid_requests(read: Any, asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(asked))):
        read(**asked)


def put_denial(entity: str = "user:1", count: int = 1, minute: datetime = NOON, **fields: Any) -> None:
    usual: dict[str, Any] = {
        "resource": "api",
        "key": "call_count",
        "first": minute,
        "last": minute + timedelta(seconds=1),
    }
    Denial.objects.create(**{**usual, "entity": entity, "count": count, "minute": minute, **fields})


@pytest.mark.usefixtures("site")
def test_written_rejections_can_be_read() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 3600)])
    for _ in range(4):
        limits.try_acquire("api", entity="user:1")
    limits.roll_up()
    found = limits.denials("api", entity="user:1")
    assert sum(one.count for one in found) == 3
    assert {(one.bucket, one.entity, one.key) for one in found} == {(BucketKind.ENTITY, "user:1", "call_count")}
    assert all(one.minute <= one.first <= one.last for one in found)


def test_rejections_are_sorted_by_latest_minute_and_count() -> None:
    put_denial("user:1", 9, NOON - timedelta(minutes=1))
    put_denial("user:2", 1)
    put_denial("user:3", 5)
    assert [one.entity for one in limits.denials(**SINCE)] == ["user:3", "user:2", "user:1"]
    assert [one.entity for one in limits.denials(**SINCE, most=1)] == ["user:3"]


def test_refusals_are_chosen_by_resource_entity_limit_and_time() -> None:
    put_denial("user:1")
    put_denial("user:1", key="tokens")
    put_denial("user:1", resource="reports")
    put_denial("", bucket=BucketKind.SHARED)
    put_denial("user:1", minute=NOON + timedelta(minutes=1))
    until = NOON + timedelta(minutes=1)
    assert len(limits.denials(**SINCE)) == 5
    assert [one.resource for one in limits.denials("reports", **SINCE)] == ["reports"]
    assert [one.key for one in limits.denials(key="tokens", **SINCE)] == ["tokens"]
    assert [one.bucket for one in limits.denials(entity="", **SINCE)] == [BucketKind.SHARED]
    assert len(limits.denials(**SINCE, until=until)) == 4
    assert len(limits.denials(since=until)) == 1


def test_the_default_is_the_last_two_days() -> None:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    put_denial("user:1", minute=now - timedelta(hours=47))
    put_denial("user:2", minute=now - timedelta(hours=49))
    assert [one.entity for one in limits.denials()] == ["user:1"]


def test_a_refusal_is_plain_data_where_that_is_wanted() -> None:
    put_denial("user:1", 2)
    [one] = limits.denials(**SINCE)
    assert one.as_dict() == {
        "minute": "2026-03-01T12:00:00+00:00",
        "resource": "api",
        "bucket": "entity",
        "entity": "user:1",
        "key": "call_count",
        "count": 2,
        "first": "2026-03-01T12:00:00+00:00",
        "last": "2026-03-01T12:00:01+00:00",
    }


@pytest.mark.usefixtures("site_database")
def test_used_resources_are_named_once_and_in_order() -> None:
    assert used_resources(3) == []
    for resource in ("mail", "", "api/b", "api/a", "mail"):
        put(f"user:{UsageSnapshot.objects.count()}", resource=resource, period=UsagePeriod.DAY)
    put(resource="by hour only")
    with CaptureQueriesContext(connections[ALIAS]) as queries:
        assert used_resources(9) == ["api/a", "api/b", "mail"]
    assert len(queries) == 1
    assert used_resources(2) == ["api/a", "api/b"]

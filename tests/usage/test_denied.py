"""Who was refused by which limit, minute by minute."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from limits_app import limits
from limits_app.core.errors import InvalidRequest
from limits_app.core.limits import CallLimit
from limits_app.models import Bucket, Denial
from limits_app.testing import fresh_limits
from limits_app.usage.denial_counter import denials

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SINCE = {"since": NOON - timedelta(days=1)}
SECOND = timedelta(seconds=1)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def site() -> Iterator[None]:
    with fresh_limits():
        yield
    denials.clear()


def put(entity: str = "user:1", count: int = 1, minute: datetime = NOON, **fields: Any) -> None:
    usual: dict[str, Any] = {"resource": "api", "key": "call_count", "first": minute, "last": minute + SECOND}
    Denial.objects.create(**{**usual, "entity": entity, "count": count, "minute": minute, **fields})


@pytest.mark.usefixtures("site")
def test_what_was_refused_can_be_read_when_it_is_written() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 3600)])
    for _ in range(4):
        limits.try_acquire("api", entity="user:1")
    denials.flush()
    found = limits.denials("api", entity="user:1")
    assert sum(one.count for one in found) == 3
    assert {(one.bucket, one.entity, one.key) for one in found} == {(Bucket.ENTITY, "user:1", "call_count")}
    assert all(one.minute <= one.first <= one.last for one in found)


def test_the_latest_minute_comes_first_and_in_it_who_was_refused_most() -> None:
    put("user:1", 9, NOON - timedelta(minutes=1))
    put("user:2", 1)
    put("user:3", 5)
    assert [one.entity for one in limits.denials(**SINCE)] == ["user:3", "user:2", "user:1"]
    assert [one.entity for one in limits.denials(**SINCE, most=1)] == ["user:3"]


def test_refusals_are_chosen_by_resource_entity_limit_and_time() -> None:
    put("user:1")
    put("user:1", key="tokens")
    put("user:1", resource="reports")
    put("", bucket=Bucket.SHARED)
    put("user:1", minute=NOON + timedelta(minutes=1))
    until = NOON + timedelta(minutes=1)
    assert len(limits.denials(**SINCE)) == 5
    assert [one.resource for one in limits.denials("reports", **SINCE)] == ["reports"]
    assert [one.key for one in limits.denials(key="tokens", **SINCE)] == ["tokens"]
    assert [one.bucket for one in limits.denials(entity="", **SINCE)] == [Bucket.SHARED]
    assert len(limits.denials(**SINCE, until=until)) == 4
    assert len(limits.denials(since=until)) == 1


def test_nothing_said_is_the_last_two_days() -> None:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    put("user:1", minute=now - timedelta(hours=47))
    put("user:2", minute=now - timedelta(hours=49))
    assert [one.entity for one in limits.denials()] == ["user:1"]


def test_a_refusal_is_plain_data_where_that_is_wanted() -> None:
    put("user:1", 2)
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


@pytest.mark.parametrize("asked", [{"most": 0}, {"since": "yesterday"}, {"until": 5}], ids=str)
def test_what_cannot_be_asked_is_an_invalid_request(asked: dict[str, Any]) -> None:
    [name] = asked
    with pytest.raises(InvalidRequest, match=name):
        limits.denials(**asked)
    with pytest.raises(InvalidRequest, match=name):
        limits.usage(**asked)

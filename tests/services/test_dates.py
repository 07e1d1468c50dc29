"""Policies that hold between dates or at weekly hours: they count at once, whatever is kept."""

from __future__ import annotations

from asyncio import gather
from collections.abc import Callable
from datetime import datetime, timedelta
from threading import Thread
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, connection
from django.db.models import QuerySet
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, Settings

from limits_app import CallLimit, InvalidLimit, LimitExceeded, LimitTimeout, RateLimit, limits
from limits_app.models import AuditEvent, Policy, Pool, PoolMember
from limits_app.policies import resolve
from limits_app.testing import FakeClock
from tests.services.wall import NOW, Wall

pytestmark = pytest.mark.usefixtures("wall")

HOUR = timedelta(hours=1)


def capacity() -> float:
    """What holds for everybody at the moment."""
    [limit] = limits.limit_set("api")
    return limit.capacity


def put(calls: int, **options: Any) -> Policy:
    return limits.set_resource_limits("api", [CallLimit(calls, 60)], **options)


def test_dates_count_at_the_moment_they_come(wall: Wall, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    put(10)
    put(20, valid_from=NOW + HOUR, valid_until=NOW + 2 * HOUR)
    assert capacity() == 10
    wall.advance(minutes=59, seconds=59.999999)
    with django_assert_num_queries(0):
        assert capacity() == 10
    wall.advance(microseconds=1)
    with django_assert_num_queries(1):
        assert [capacity(), capacity()] == [20, 20]
    wall.advance(hours=1, microseconds=-1)
    assert capacity() == 20
    wall.advance(microseconds=1)
    assert capacity() == 10
    wall.advance(days=1000)
    with django_assert_num_queries(0):
        assert capacity() == 10


def test_dates_count_where_a_pool_serves_the_resource(wall: Wall) -> None:
    policy = put(2)
    put(4, valid_from=NOW + HOUR, valid_until=NOW + 2 * HOUR)
    policy.resource.pool = Pool.objects.create(name="regions")
    policy.resource.save()
    PoolMember.objects.create(pool=policy.resource.pool, name="eu")
    admitted = []
    for _ in range(3):
        admitted.append(sum(bool(limits.try_acquire("api", entity="user:1")) for _ in range(5)))
        wall.advance(hours=1)
    assert admitted == [2, 2, 0]


def test_use_is_kept_across_a_date(wall: Wall) -> None:
    put(10)
    put(20, valid_from=NOW + HOUR)
    for _ in range(10):
        limits.acquire("api")
    assert not limits.try_acquire("api")
    wall.advance(hours=1)
    assert limits.status("api").limits["call_count"]["used"] == 10
    assert limits.try_acquire("api")


def test_weekly_hours_count_by_the_clock_of_their_zone(wall: Wall) -> None:
    put(10)
    put(99, weekly_hours="wed 17:00-22:00; sat,sun", time_zone="Europe/Berlin")
    assert capacity() == 10
    wall.advance(hours=4)
    assert capacity() == 99
    wall.advance(hours=5)
    assert capacity() == 10
    wall.advance(days=2, hours=2)
    assert capacity() == 99


def test_hours_without_a_zone_go_by_that_of_the_site(settings: Settings) -> None:
    settings.TIME_ZONE = "America/St_Johns"
    assert put(1, weekly_hours="mon").time_zone == "America/St_Johns"


def test_hours_on_the_day_on_which_clocks_are_changed(wall: Wall) -> None:
    put(10)
    put(99, weekly_hours="sun 01:30-02:30", time_zone="Europe/Berlin")
    wall.moment = datetime.fromisoformat("2026-10-25T00:00+02:00")
    seen = []
    for _ in range(20):
        seen.append(capacity())
        wall.advance(minutes=15)
    # The hour from two to three comes twice.
    assert seen == [10] * 6 + [99] * 4 + [10] * 2 + [99] * 2 + [10] * 6


@pytest.mark.parametrize("flag", ["blocked", "unlimited"])
def test_a_freeze_ends_by_itself(flag: str, wall: Wall) -> None:
    put(1)
    limits.set_resource_limits("api", [], effect=flag, valid_from=NOW, valid_until=NOW + HOUR)
    assert [bool(limits.try_acquire("api")) for _ in range(3)] == [flag == "unlimited"] * 3
    wall.advance(hours=1)
    assert [bool(limits.try_acquire("api")) for _ in range(2)] == [True, False]


def test_a_policy_date_admits_a_waiting_request(wall: Wall, clock: FakeClock) -> None:
    limits.set_resource_limits("api", [], effect="blocked", valid_from=NOW - HOUR, valid_until=NOW + 30 * HOUR / 3600)
    put(1)
    admitted: list[bool] = []
    thread = Thread(target=lambda: admitted.append(bool(limits.acquire("api", timeout=None))))
    limits.check("api")
    thread.start()
    _until(limits_line_is_busy)
    wall.advance(seconds=30)
    clock.advance(30)
    thread.join(timeout=20)
    assert admitted == [True]


@pytest.mark.parametrize("options", [{}, {"valid_from": NOW - HOUR, "valid_until": NOW + HOUR}], ids=["always", "now"])
@pytest.mark.parametrize("pooled", [False, True])
def test_a_block_longer_than_the_timeout_rejects_immediately(options: Any, *, pooled: bool) -> None:
    policy = limits.set_resource_limits("api", [], effect="blocked", **options)
    if pooled:
        policy.resource.pool = Pool.objects.create(name="regions")
        policy.resource.save()
    several = {} if options else {"api": {}, "other": {}}
    for ask in (
        lambda: limits.acquire("api", timeout=60),
        lambda: limits.acquire(several or "api", timeout=60),
        lambda: limits.acquire("api", timeout=60, idempotency_key="one"),
        lambda: async_to_sync(limits.aacquire)("api", timeout=60),
    ):
        with pytest.raises(LimitExceeded, match="blocked") as refused:
            ask()
        assert not isinstance(refused.value, LimitTimeout)


@pytest.mark.parametrize("asynchronously", [False, True])
def test_a_pool_without_members_is_not_waited_for(*, asynchronously: bool) -> None:
    Pool.objects.create(name="regions")
    regions = limits.pool("regions")
    with pytest.raises(LimitExceeded, match="blocked") as refused:
        async_to_sync(regions.aacquire)() if asynchronously else regions.acquire()
    assert not isinstance(refused.value, LimitTimeout)
    with pytest.raises(LimitTimeout):
        regions.acquire(timeout=0)


def test_a_policy_date_admits_a_request_that_waits_for_a_pool(wall: Wall, clock: FakeClock) -> None:
    policy = limits.set_resource_limits(
        "api", [], effect="blocked", valid_from=NOW - HOUR, valid_until=NOW + 30 * HOUR / 3600
    )
    pool = Pool.objects.create(name="regions")
    PoolMember.objects.create(pool=pool, name="eu")
    policy.resource.pool = pool
    policy.resource.save()
    limits.check("api")

    async def wait() -> bool:
        return bool(await limits.aacquire("api", timeout=60, idempotency_key="one"))

    async def pass_time() -> None:
        wall.advance(seconds=30)
        clock.advance(30)

    async def both() -> bool:
        admitted, _ = await gather(wait(), pass_time())
        return admitted

    assert async_to_sync(both)() is True


def test_limits_before_a_date_apply_while_the_database_is_unavailable(
    wall: Wall, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    def unreachable(*args: object) -> Any:
        raise OperationalError("connection refused")

    put(10)
    put(20, valid_from=NOW + HOUR)
    assert capacity() == 10
    wall.advance(hours=1)
    with connection.execute_wrapper(unreachable):
        assert [capacity(), capacity()] == [10, 10]


@pytest.mark.parametrize(
    ("begins", "ends", "overlaps"),
    [
        (-2, 0, False),
        (-2, 1, True),
        (-2, None, True),
        (0, 1, True),
        (1, 2, True),
        (1, None, True),
        (2, 3, False),
        (3, None, False),
    ],
)
def test_dates_of_one_scope_do_not_overlap(begins: int, ends: int | None, overlaps: bool) -> None:
    put(1)
    put(2, valid_from=NOW, valid_until=NOW + 2 * HOUR)
    other = {"valid_from": NOW + begins * HOUR, "valid_until": None if ends is None else NOW + ends * HOUR}
    limits.set_system_limits([CallLimit(3, 60)], **other)
    if begins == 0:
        put(3, **other)  # the same beginning is the same policy, said anew
        assert Policy.objects.filter(resource__isnull=False).count() == 2
    elif overlaps:
        with pytest.raises(InvalidLimit, match="It overlaps with the policy that applies from 2026-03-04 12:00"):
            put(3, **other)
    else:
        put(3, **other)


def test_hours_of_one_scope_do_not_overlap() -> None:
    put(1)
    put(2, weekly_hours="mon 09:00-12:00")
    put(3, weekly_hours="mon 12:00-13:00")
    with pytest.raises(InvalidLimit, match="overlaps with the policy that applies mon 09:00-12:00 UTC"):
        put(4, weekly_hours="mon 11:00-12:00")
    QuerySet.update(Policy.objects.filter(weekly_hours="mon 09:00-12:00"), weekly_hours="broken")
    put(4, weekly_hours="mon 11:00-12:00")


def test_hours_that_were_written_past_validation_never_hold(caplog: pytest.LogCaptureFixture) -> None:
    put(10)
    put(99, weekly_hours="mon-sun")
    QuerySet.update(Policy.objects.exclude(weekly_hours=""), weekly_hours="whenever")  # as SQL of one's own may
    assert capacity() == 10
    assert "never applies, because its hours are invalid" in caplog.text


def test_what_is_listed_and_taken_back_always_holds() -> None:
    put(99, valid_from=NOW)
    put(50, weekly_hours="mon")
    assert limits.list_resources() == {}
    assert limits.delete_resource_limits("api") is False
    put(10)
    assert limits.list_resources() == {"api": (CallLimit(10, 60),)}
    assert limits.delete_resource_limits("api") is True
    assert capacity() == 99


def test_sites_without_time_zones_have_dates_too(settings: Settings, wall: Wall) -> None:
    settings.USE_TZ = False
    settings.TIME_ZONE = "Europe/Berlin"
    put(10)
    put(20, valid_from=NOW + HOUR, valid_until=NOW + 2 * HOUR)
    assert Policy.objects.get(valid_from__isnull=False).valid_from == datetime(2026, 3, 4, 14)  # noqa: DTZ001 - so it is stored
    assert capacity() == 10
    wall.advance(hours=1)
    assert capacity() == 20
    wall.advance(hours=1)
    assert capacity() == 10


def test_boost_raises_the_named_limits_until_it_ends(wall: Wall) -> None:
    wall.moment = timezone.now()
    limits.set_resource_limits("api", [CallLimit(1, 60), RateLimit("tpm", 5, 60)])
    policy = limits.grant_boost("user:1", "api", [CallLimit(3, 60)], timezone.now() + HOUR, "a demo", actor="ann")
    wall.moment = timezone.now()
    assert {limit.key: limit.capacity for limit in limits.limit_set("api", "user:1")} == {"call_count": 3, "tpm": 5}
    assert {limit.key: limit.capacity for limit in limits.limit_set("api", "user:2")} == {"call_count": 1, "tpm": 5}
    wall.advance(hours=1)
    assert {limit.key: limit.capacity for limit in limits.limit_set("api", "user:1")} == {"call_count": 1, "tpm": 5}
    event = AuditEvent.objects.get(object_type="policy", verb="create", reason="a demo")
    assert (event.actor, event.after["extends"]) == ("ann", True)
    assert event.after["valid_until"] == policy.valid_until.isoformat()


def test_a_second_boost_at_the_same_time_is_refused() -> None:
    until = timezone.now() + HOUR
    limits.set_system_limits([CallLimit(1, 60)])
    limits.grant_boost("user:1", None, [CallLimit(3, 60)], until, "one")
    with pytest.raises(InvalidLimit, match="overlaps"):
        limits.grant_boost("user:1", None, [CallLimit(4, 60)], until, "two")
    limits.grant_boost("user:1", "api", [CallLimit(4, 60)], until, "another scope")


def limits_line_is_busy() -> bool:
    return bool(resolve("api", None).resolved.limit_set.store.line.busy)


def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        pass

"""Of one-time clients only the heaviest keep rows of their own; totals stay the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.sessions.backends.db import SessionStore
from django.db.models import Sum
from django.test import RequestFactory
from pytest_django import Settings

from limits_app.engine.counting import Batch, Count, Rejected, Times, hour_of
from limits_app.integrations.identity import (
    entity_of_account,
    entity_of_header,
    entity_of_key,
    entity_of_request,
    entity_of_session,
    normalize_entity,
)
from limits_app.models import BucketKind, CollectedBatch, Denial, Entity, UsagePeriod, UsageSnapshot
from limits_app.models.fields import in_site_time
from limits_app.models.prefixes import OF_REQUESTS, each_of
from limits_app.models.usage import MAX_SUM
from limits_app.services.combinations import combined_name
from limits_app.usage.one_time_clients import fold
from limits_app.usage.rollup import add
from tests.docs.pages import DOCS, rows

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1, minutes=6)
"""When the hour from noon is folded."""
NEVER = datetime(2026, 3, 1, 13, 4, tzinfo=UTC)
"""Just before."""

Total = tuple[int, int]


def add_usage(amounts: dict[str, int], *, name: str = "first", at: datetime = NOON, key: str = "call_count") -> None:
    """Roll up what clients have used, in units."""
    hour = hour_of(round(at.timestamp() * 1_000_000))
    counts = [Count("api", entity, False, None, hour, {key: 1_000 * units}) for entity, units in amounts.items()]
    add(Batch(name, counts, is_full=False))
    CollectedBatch.objects.filter(name=name).update(collected_at=in_site_time(at + timedelta(minutes=1)))


def add_rejections(numbers: dict[str, int], *, name: str = "rejected", at: datetime = NOON) -> None:
    """Roll up the rejections of clients in a minute."""
    seconds = at.timestamp()
    rejections = {
        Rejected(round(seconds) // 60, "api", "entity", entity, "call_count"): Times(
            number, seconds + place, seconds + place + number, f"id-{place}"
        )
        for place, (entity, number) in enumerate(numbers.items())
    }
    add(Batch(name, [], is_full=False, rejections=rejections))
    CollectedBatch.objects.filter(name=name).update(collected_at=in_site_time(at + timedelta(minutes=1)))


def used(period: UsagePeriod = UsagePeriod.HOUR) -> dict[str, int]:
    """Units of each client, with `*` behind the kind of those that were folded."""
    rows = UsageSnapshot.objects.filter(period=period)
    return {row.entity + "*" * (row.bucket == BucketKind.OTHERS): row.admitted_milli // 1_000 for row in rows}


def total(period: UsagePeriod) -> Total:
    sums = UsageSnapshot.objects.filter(period=period).aggregate(used=Sum("admitted_milli"), refused=Sum("refused"))
    return sums["used"] or 0, sums["refused"] or 0


@pytest.mark.django_db
def test_clients_beyond_the_heaviest_are_added_up_by_kind() -> None:
    add_usage({f"ip:10.0.0.{number}": number for number in range(1, 9)} | {"key:a": 1, "key:b": 20, "account:c": 1})
    add_usage({"user:1": 1, "": 1, "team:x": 1}, name="second")
    assert fold(now=LATER, hour_kept=3, day_kept=4) == 8 + 7
    kept = {"ip:10.0.0.7": 7, "ip:10.0.0.8": 8, "key:b": 20, "user:1": 1, "": 1, "team:x": 1}
    assert used() == kept | {"ip:*": sum(range(1, 7)), "key:*": 1, "account:*": 1}
    assert used(UsagePeriod.DAY) == kept | {"ip:10.0.0.6": 6, "ip:*": sum(range(1, 6)), "key:*": 1, "account:*": 1}


@pytest.mark.django_db
def test_clients_that_a_request_can_invent_are_folded(rf: RequestFactory) -> None:
    request = rf.get("/", headers={"X-Device": "seven"})
    request.session = SessionStore()
    request.session["seen"] = 1
    request.session.create()
    invented = [entity_of_header(request, "X-Device"), entity_of_session(request), entity_of_account("ann")]
    invented += [combined_name("ip:192.0.2.1", [b"query", b"q"]), entity_of_request(rf.get("/")), entity_of_key("k")]
    invented += [
        normalize_entity("x" * 256),
        "get:q:shoes",
        "post:email:ann@example.com",
        "ratelimit:eu",
        "throttle:t_1",
    ]
    add_usage({entity: 1 for entity in invented if entity})
    assert fold(now=LATER, hour_kept=0, day_kept=0) == 2 * len(invented)
    assert set(used()) == {each_of(prefix) for prefix in OF_REQUESTS}


def test_the_page_on_usage_lists_the_prefixes_that_are_folded() -> None:
    listed = [name for prefixes, _ in rows(DOCS / "usage.md", "One-time clients") for name in prefixes.split(", ")]
    assert sorted(listed) == sorted(f"`{prefix}`" for prefix in OF_REQUESTS)


@pytest.mark.django_db
def test_sums_of_those_that_are_folded_end_at_the_largest_that_is_stored() -> None:
    most = MAX_SUM // 1_000
    add_usage({"ip:192.0.2.1": most, "ip:192.0.2.2": most - 1, "ip:192.0.2.3": 30})
    fold(now=LATER, hour_kept=1, day_kept=1)
    assert used() == {"ip:192.0.2.1": most, "ip:*": most}
    assert used(UsagePeriod.DAY) == used()


@pytest.mark.django_db
def test_exactly_the_number_that_is_kept_stays() -> None:
    add_usage({f"ip:10.0.0.{number}": 1 for number in range(3)})
    assert fold(now=LATER, hour_kept=3, day_kept=3) == 0
    assert len(used()) == 3


@pytest.mark.django_db
def test_clients_with_a_row_are_not_folded() -> None:
    Entity.objects.create(identifier="ip:10.0.0.1")
    add_usage({f"ip:10.0.0.{number}": number for number in range(1, 5)})
    fold(now=LATER, hour_kept=1, day_kept=1)
    assert used() == {"ip:10.0.0.1": 1, "ip:10.0.0.4": 4, "ip:*": 5}


@pytest.mark.django_db
def test_the_heaviest_of_each_limit_are_kept_and_those_with_most_rejections() -> None:
    add_usage({f"ip:10.0.0.{number}": 10 * number for number in range(1, 5)})
    add_usage({f"ip:10.0.0.{number}": 1_000 * (5 - number) for number in range(1, 5)}, name="tokens", key="tokens")
    add_rejections({"ip:10.0.0.1": 7, "ip:10.9.9.9": 8})
    fold(now=LATER, hour_kept=3, day_kept=3)
    rows = UsageSnapshot.objects.filter(period=UsagePeriod.HOUR, bucket=BucketKind.ENTITY).values_list("entity", "key")
    assert {*rows} == {("ip:10.0.0.4", "call_count"), ("ip:10.9.9.9", "call_count"), ("ip:10.0.0.1", "tokens")}


@pytest.mark.django_db
def test_the_current_hour_is_exact(settings: Settings) -> None:
    amounts = {f"ip:10.0.0.{number}": 1 for number in range(5)}
    add_usage(amounts)
    assert fold(now=NEVER, hour_kept=1, day_kept=1) == 0
    assert used() == amounts
    settings.LIMITS = {"USAGE": "all"}
    assert fold(now=LATER, hour_kept=1, day_kept=1) == 0


@pytest.mark.django_db
def test_later_counts_are_folded_with_the_next_call() -> None:
    for turn in range(3):
        add_usage({f"ip:10.0.{turn}.{number}": number for number in range(1, 5)}, name=str(turn))
        fold(now=LATER, hour_kept=2, day_kept=2)
        assert fold(now=LATER, hour_kept=2, day_kept=2) == 0, "nothing is left"
        assert [sum(used(period).values()) for period in UsagePeriod] == [10 * (turn + 1)] * 2
        assert [len(used(period)) for period in UsagePeriod] == [3, 3]


@pytest.mark.django_db
def test_an_hour_that_begins_while_the_last_one_is_collected_is_folded_later() -> None:
    add_usage({f"ip:10.0.0.{number}": 1 for number in range(3)})
    CollectedBatch.objects.update(collected_at=in_site_time(NOON + timedelta(hours=1, minutes=1)))
    fold(now=LATER, hour_kept=1, day_kept=9)
    assert CollectedBatch.objects.get().unfolded_since == NOON + timedelta(hours=1)
    fold(now=LATER + timedelta(hours=1), hour_kept=1, day_kept=9)
    assert CollectedBatch.objects.get().unfolded_since is None


@pytest.mark.django_db
def test_rejections_keep_their_times_and_ids() -> None:
    add_rejections({"ip:10.0.0.1": 5, "ip:10.0.0.2": 1, "ip:10.0.0.3": 2, "user:1": 1})
    add_rejections({"ip:10.0.0.2": 1}, name="next", at=NOON + timedelta(minutes=59))
    fold(now=LATER, hour_kept=1, day_kept=1)
    rows = {(row.minute, row.bucket, row.entity): row for row in Denial.objects.all()}
    others = rows.pop((NOON, BucketKind.OTHERS, "ip:"))
    assert (others.count, others.first, others.last) == (3, NOON + timedelta(seconds=1), NOON + timedelta(seconds=4))
    assert {*others.request_ids.split()} == {"id-1", "id-2"}
    assert {key[0::2]: row.count for key, row in rows.items()} == {
        (NOON, "ip:10.0.0.1"): 5,
        (NOON, "user:1"): 1,
        (NOON + timedelta(minutes=59), "ip:"): 1,
    }


@pytest.mark.usefixtures("site_database")
def test_a_day_of_many_addresses_is_a_few_thousand_rows() -> None:
    for hour in range(2):
        at = NOON + timedelta(hours=hour)
        clients = {f"ip:10.{hour}.{number >> 8}.{number & 255}": 1 for number in range(2_500)}
        add_usage(clients | {"ip:192.0.2.1": 50 + hour}, name=f"usage {hour}", at=at)
        add_rejections(clients | {"ip:192.0.2.1": 9}, name=f"rejections {hour}", at=at)
    before = [total(period) for period in UsagePeriod]
    fold(now=LATER + timedelta(hours=1))
    assert [total(period) for period in UsagePeriod] == before
    assert UsageSnapshot.objects.filter(period=UsagePeriod.HOUR).count() == 2 * (1_000 + 1)
    assert UsageSnapshot.objects.filter(period=UsagePeriod.DAY).count() == 3_000 + 1
    assert Denial.objects.count() == 2 * (1_000 + 1)
    assert used(UsagePeriod.DAY)["ip:192.0.2.1"] == 101

"""The pages of the admin about limits: what they say, whom they let in, and that looking changes nothing."""

from __future__ import annotations

import csv
import json
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.core.cache.backends.locmem import LocMemCache
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, Settings

from limits_app import CallLimit, RateLimit, ResourceLimit, limits
from limits_app.admin.pages import common
from limits_app.engine.amounts import NOTHING
from limits_app.models import (
    AuditEvent,
    BucketKind,
    CollectedBatch,
    Endpoint,
    Entity,
    Limit,
    Policy,
    Pool,
    PoolMember,
    Price,
    Resource,
    UsageSnapshot,
)
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.admin.browsing import policy_form
from tests.admin.conftest import Visitor
from tests.admin.pages.snapshots import used
from tests.docs.pages import ROOT
from tests.opened import put_store
from tests.services.failing import FailingStore

EXPLAIN = "limits_app_explain"
USAGE = "limits_app_usagesnapshot_changelist"
CLIENT = "limits_app_client"
LIVE = "limits_app_live"
STATE = "limits_app_live_state"
PREVIEW = "limits_app_preview"


def get(client: Client, page: str, **query: Any) -> Any:
    """Ask for a page."""
    return client.get(reverse(f"admin:{page}"), query)


def words(response: Any) -> str:
    """The text of a page, without markup."""
    assert response.status_code == 200
    return re.sub(r"\s+", " ", re.sub(r"<script.*?</script>|<[^>]*>", " ", response.content.decode(), flags=re.DOTALL))


def chart(response: Any) -> Any:
    """What the chart of a page draws."""
    found = re.search(r'id="limits-chart-data"[^>]*>(.*?)</script>', response.content.decode(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_a_page_shows_the_way_to_those_others_that_may_be_seen(visitor: Visitor) -> None:
    response = get(visitor("view_policy"), EXPLAIN, resource="api")
    assert reverse(f"admin:{EXPLAIN}") in response.content.decode()
    assert reverse(f"admin:{LIVE}") not in response.content.decode()
    assert "There are no limits, so all requests are allowed." in words(response)
    assert "There are no resources yet" in words(get(visitor("view_policy"), EXPLAIN))


def test_an_explanation_shows_the_source_and_use_of_each_limit(admin_client: Client) -> None:
    limits.set_system_limits([CallLimit.per_minute(100)])
    limits.set_resource_limits("api", [CallLimit.per_minute(5), RateLimit.per_hour("tokens", 1000)])
    with limits.acquire("api", entity="user:1", requested={"tokens": 900}) as acquisition:
        acquisition.update({"tokens": 900})
    response = get(admin_client, EXPLAIN, resource="api", entity="user:1")
    page = words(response)
    assert "The next request is allowed." in page
    assert "1 of 5 used, 4 left" in page
    assert "900 of 1,000 used, 100 left" in page
    assert "overrides everyone on each resource" in page
    for policy in Policy.objects.all():
        assert reverse("admin:limits_app_policy_change", args=[policy.pk]) in response.content.decode()
    assert 'class="limits-bar limits-bar--near"' in response.content.decode()


def test_an_explanation_names_the_binding_limit(admin_client: Client) -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(1)])
    limits.acquire("api", entity="user:1").release()
    page = words(get(admin_client, EXPLAIN, resource="api", entity="user:1"))
    assert "The next request is rejected by the limit of user:1: 1 request per minute on api;" in page
    assert "at its limit" in page
    assert "available in 60 s" in page


@pytest.mark.parametrize(
    ("resource", "counted", "limit"),
    [("api", "each", "1 request per hour on api"), (None, "total", "1 request per hour over all resources together")],
)
def test_an_explanation_names_the_team_whose_limit_rejects(
    admin_client: Client, resource: str | None, counted: str, limit: str
) -> None:
    limits.set_entity("acme")
    for number in (1, 2):
        limits.set_entity(f"user:{number}", parent="acme", cascade=True)
    limits.set_entity_limits("acme", [CallLimit.per_hour(1)], resource=resource, counted=counted)
    limits.acquire("api", entity="user:1").release()
    page = words(get(admin_client, EXPLAIN, resource="api", entity="user:2"))
    assert f"The next request is rejected by the limit of team acme: {limit};" in page


def test_an_explanation_calls_what_a_boost_raises_boosted(admin_client: Client) -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(1)])
    limits.set_entity_limits("user:2", [CallLimit.per_minute(3)], resource="api", extends=True)
    limits.grant_boost("user:1", "api", [CallLimit.per_minute(2)], timezone.now() + timedelta(hours=1), "fair")
    boosted, joined = [words(get(admin_client, EXPLAIN, resource="api", entity=f"user:{number}")) for number in (1, 2)]
    assert ("boosted" in boosted, "applies too" in boosted) == (True, False)
    assert ("boosted" in joined, "applies too" in joined) == (False, True)


def test_an_explanation_shows_the_chain_and_blocks(admin_client: Client) -> None:
    parent = Entity.objects.create(identifier="tenant:acme", blocked=True)
    Entity.objects.create(identifier="user:1", parent=parent, cascade=True)
    limits.set_entity_limits("user:1", [ResourceLimit("slots", 2)], resource="api", reason="a trial")
    page = words(get(admin_client, EXPLAIN, resource="api", entity="user:1"))
    assert "Also charged: tenant:acme" in page
    assert "All requests are blocked." in page
    assert "2 slots at the same time" in page


def test_an_explanation_shows_pools_and_trials(admin_client: Client) -> None:
    pool = Pool.objects.create(name="regions")
    member = PoolMember.objects.create(pool=pool, name="eu")
    Limit.from_definition(member, CallLimit.per_minute(5)).save()
    Resource.objects.create(name="api", pool=pool)
    limits.set_resource_limits("api", [CallLimit.per_minute(1)], enforcement="shadow")
    limits.acquire("api").release()
    page = words(get(admin_client, EXPLAIN, resource="api"))
    assert "Served by the pool regions eu would serve " in page
    assert "shadow mode" in page
    assert "Would reject (shadow mode)" in page


def test_an_explanation_reports_dates_hours_and_rollouts(admin_client: Client) -> None:
    now, day = datetime.now(UTC), timedelta(1)
    limits.set_resource_limits("api", [], effect="unlimited", valid_from=now - day, valid_until=now + day)
    limits.set_resource_limits("api", ["credits=5/day@UTC"], rollout_percent=50)
    limits.set_resource_limits("api", [], effect="blocked", weekly_hours="mon-sun", time_zone="UTC")
    page = words(get(admin_client, EXPLAIN, resource="api"))
    for said in ("for 50 % of the entities", "at weekly hours", "until", "The effective limits may change at"):
        assert said in page


def test_the_cool_down_of_an_upstream_is_explained(admin_client: Client) -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(5)])
    limits.report_upstream("api", retry_after=1000)
    page = words(get(admin_client, EXPLAIN, resource="api"))
    assert "The next request is rejected: its upstream cools down for" in page


def test_a_policy_until_the_end_of_the_calendar_is_explained(admin_client: Client, settings: Settings) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    last = datetime.max.replace(tzinfo=UTC)
    limits.set_resource_limits("api", [CallLimit.per_minute(5)], valid_until=last)
    page = words(get(admin_client, EXPLAIN, resource="api"))
    assert "The effective limits may change at 9999-12-31 23:59 (UTC)" in page


@pytest.mark.parametrize(
    "query",
    [{"resource": "no such name"}, {"resource": "api", "entity": "x" * 300}, {"resource": "api", "plan": "x" * 65}],
)
def test_an_explanation_that_fails_shows_an_error(query: dict[str, str], admin_client: Client) -> None:
    response = get(admin_client, EXPLAIN, **query)
    assert "limits-verdict--unknown" in response.content.decode()


def test_a_limit_without_free_permits_names_the_release_it_waits_for(admin_client: Client) -> None:
    limits.set_resource_limits("api", [ResourceLimit("slots", 1)])
    found = limits.limit_set("api")
    with ThreadPoolExecutor(1) as another:  # who holds a permit would not be refused it
        another.submit(found.acquire).result()
        page = words(get(admin_client, EXPLAIN, resource="api"))
    assert "rejected until slots is released" in page


def test_an_entity_without_recorded_usage_may_be_misspelled(admin_client: Client) -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(5)])
    used("api", "user:7", "call_count", 1)
    hint = "No request has used the identifier “gina” so far: check the spelling."
    assert hint in words(get(admin_client, EXPLAIN, resource="api", entity="gina"))
    assert "No request has used" not in words(get(admin_client, EXPLAIN, resource="api", entity="user:7"))


def test_bars_alone_can_be_asked_for(admin_client: Client) -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(5)])
    page = get(admin_client, EXPLAIN, resource="api", fragment="1").content.decode()
    assert 'id="limit-0-0"' in page
    assert "<html" not in page


def test_an_entity_without_a_resource_is_asked_on_which(admin_client: Client) -> None:
    Resource.objects.create(name="reports/export")
    page = get(admin_client, EXPLAIN, entity="user:1&2").content.decode()
    assert "?resource=reports%2Fexport&amp;entity=user%3A1%262" in page


def test_the_usage_page_sums_up_one_limit(admin_client: Client) -> None:
    used("api", "user:1", "call_count", 90, refused=10)
    used("api", "user:2", "call_count", 5, hours_ago=1)
    used("reports", "user:1", "call_count", 5)
    used("api", "", "tokens", 1234.5, bucket=BucketKind.SHARED)
    used("api", "eu", "tokens", 1, bucket=BucketKind.MEMBER)
    response = get(admin_client, USAGE, span="day")
    page = words(response)
    assert "The chart needs JavaScript." in page
    assert "allowed requests 100 rejections 10 rejected share 9.1 %" in page
    drawn = chart(response)
    assert (drawn["admitted"][-1], drawn["admitted"][-2]) == (95, 5)
    assert (sum(drawn["refused"]), len(drawn["times"])) == (10, 24)
    of_tokens = words(get(admin_client, USAGE, key="tokens", resource="api"))
    assert "allowed tokens 1,235.5 rejections 0 rejected share -" in of_tokens
    assert "shared by all clients" in of_tokens
    assert "eu (member of the pool)" in of_tokens


@pytest.mark.parametrize(("span", "periods"), [("day", 24), ("week", 7), ("year", 365), ("x", 7)])
def test_usage_is_shown_over_the_chosen_time(span: str, periods: int, admin_client: Client) -> None:
    used("api", "user:1", "call_count", 7)
    response = get(admin_client, USAGE, span=span)
    drawn = chart(response)
    assert (len(drawn["times"]), drawn["admitted"][-1]) == (periods, 7)


def test_usage_can_be_shown_of_one_resource_and_entity(admin_client: Client) -> None:
    used("api", "user:1", "call_count", 3)
    used("api", "user:2", "call_count", 4)
    used("reports", "", "call_count", 5)
    assert "allowed requests 3 " in words(get(admin_client, USAGE, entity="user:1"))
    page = words(get(admin_client, USAGE, resource="reports"))
    assert "allowed requests 5 " in page
    assert "No user (whole site)" in page
    assert "Nothing was used" not in words(get(admin_client, USAGE, resource="nothing", key="call_count"))


@pytest.mark.parametrize(
    ("query", "periods", "admitted"),
    [
        ({"span": "yesterday"}, 24, 5),
        ({"span": "today"}, None, 7),
        ({"from": "2 days ago", "to": "1 day ago"}, 2, 5),
        ({"to": "1 day ago"}, 1, 5),
        ({"from": "1 day ago"}, 2, 12),
        ({"from": "1 day ago", "to": "2 days ago"}, 0, 0),
        ({"from": "x"}, 0, 0),
        ({"from": "2026-02-30"}, 0, 0),
        ({"from": "2020-01-01"}, 0, 0),
    ],
)
def test_usage_of_days(
    query: dict[str, str], periods: int | None, admitted: int, admin_client: Client, settings: Settings
) -> None:
    settings.TIME_ZONE = "UTC"
    now = datetime.now(UTC)
    used("api", "user:1", "call_count", 7)
    used("api", "user:1", "call_count", 5, hours_ago=now.hour + 1)
    days = {f"{back} day{'s' * (back > 1)} ago": f"{now - timedelta(days=back):%Y-%m-%d}" for back in (1, 2)}
    response = get(admin_client, USAGE, **{name: days.get(value, value) for name, value in query.items()})
    if periods == 0:
        assert "limits-verdict--unknown" in response.content.decode()
        return
    drawn = chart(response)
    assert len(drawn["times"]) == (now.hour + 1 if periods is None else periods)
    assert sum(drawn["admitted"]) == admitted


@pytest.mark.parametrize(
    ("first", "last", "days"),
    [
        ("2026-10-01", "2026-10-31", "2026-10"),
        ("2026-10-01", "2026-10-30", "2026-10-01-to-2026-10-30"),
        ("2026-10-01", "2026-11-30", "2026-10-01-to-2026-11-30"),
        ("2025-10-02", "2025-11-01", "2025-10-02-to-2025-11-01"),
    ],
)
@pytest.mark.parametrize(("file", "name"), [("csv", "usage"), ("spend", "spend")])
def test_file_of_usage_is_named_by_its_time(
    file: str, name: str, first: str, last: str, days: str, admin_client: Client
) -> None:
    response = get(admin_client, USAGE, format=file, **{"from": first, "to": last})
    assert response["Content-Disposition"] == f'attachment; filename="{name}-{days}.csv"'


def test_usage_is_summed_for_each_client_with_its_name_and_its_resources(admin_client: Client) -> None:
    Entity.objects.create(identifier="user:1", name="Gina")
    used("api", "user:1", "call_count", 6, refused=1)
    used("reports", "user:1", "call_count", 4)
    used("api", "=cmd", "call_count", 3)
    response = get(admin_client, USAGE)
    assert (
        "user:1 (Gina) Client user:1 Boost user:1 Block user:1 Limit user:1 Why rejected? user:1 (Gina) 10 1 9.1 %"
        in words(response)
    )
    UsageSnapshot.objects.filter(resource="reports").update(plan="gold")
    file = csv_of(admin_client)
    assert file[0] == (
        [
            "from",
            "to",
            "client",
            "name",
            "plan",
            "resource",
            "limit",
            "allowed",
            "rejections",
            "by_members",
            "cost",
            "currency",
        ]
    )
    assert [row[2:] for row in file[1:]] == [
        ["user:1", "Gina", "", "api", "requests", "6", "1", "", "", ""],
        ["user:1", "Gina", "gold", "reports", "requests", "4", "0", "", "", ""],
        ["'=cmd", "", "", "api", "requests", "3", "0", "", "", ""],
    ]
    of_client = words(get(admin_client, USAGE, entity="user:1"))
    assert "user:1 (Gina)" in of_client
    assert "Clients that used most" not in of_client
    assert [row[5:] for row in csv_of(admin_client, entity="user:1")[1:]] == [
        ["api", "requests", "6", "1", "", "", ""],
        ["reports", "requests", "4", "0", "", "", ""],
    ]


def test_files_and_pages_have_the_cost_of_usage(admin_client: Client) -> None:
    Entity.objects.create(identifier="user:1", name="Gina")
    month = timezone.now().astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    last_month = (month - timedelta(days=1)).replace(day=1)
    for unit, amount in (("input_tokens", "2.5"), ("output_tokens", "10")):
        Price.objects.create(resource="llm/*", unit=unit, amount=Decimal(amount), currency="usd", valid_from=last_month)
    row = {"resource": "llm/large", "entity": "user:1", "period": "day", "plan": "pro"}
    for start, tokens in ((last_month, 300), (month, 200)):
        UsageSnapshot.objects.create(**row, start=start, key="input_tokens", admitted_milli=tokens * 10**6)
        UsageSnapshot.objects.create(**row, start=start, key="output_tokens", admitted_milli=tokens)
    UsageSnapshot.objects.create(**row | {"plan": ""}, start=last_month, key="input_tokens", refused=3)
    assert [row[2:] for row in csv_of(admin_client, span="last_month")[1:]] == [
        ["user:1", "Gina", "pro", "llm/large", "input_tokens", "300000", "3", "", "0.75", "usd"],
        ["user:1", "Gina", "pro", "llm/large", "output_tokens", "0.3", "0", "", "0.000003", "usd"],
    ]
    assert csv_of(admin_client, span="last_month", format="spend") == [
        ["from", "to", "client", "name", "by_members", "cost", "currency"],
        [f"{last_month:%Y-%m-%dT%H:%MZ}", f"{month:%Y-%m-%dT%H:%MZ}", "user:1", "Gina", "", "0.750003", "usd"],
    ]
    page = get(admin_client, USAGE, span="last_month")
    assert "Spend 0.75 USD Client Cost user:1 (Gina) 0.75 USD" in words(page)
    assert "0.75" not in words(get(admin_client, CLIENT, entity="user:1"))
    used("llm/large", "user:1", "output_tokens", 200)
    assert "Spent in these days: " in words(get(admin_client, CLIENT, entity="user:1"))


def test_the_file_of_last_month_has_every_client_of_that_month_and_nothing_else(admin_client: Client) -> None:
    first = timezone.now().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    last_of_month = first - timedelta(days=1)
    for number in range(20):
        row = {"period": "day", "resource": "api", "key": "call_count", "bucket": "entity", "entity": f"key:{number}"}
        UsageSnapshot.objects.create(**row, start=last_of_month, admitted_milli=7000 + number, refused=2)
        UsageSnapshot.objects.create(**row, start=first, admitted_milli=1000, refused=0)
    begin = last_of_month.replace(day=1)
    file = csv_of(admin_client, span="last_month")
    assert len(file) == 21
    assert {(row[0], row[1]) for row in file[1:]} == {(f"{begin:%Y-%m-%dT%H:%MZ}", f"{first:%Y-%m-%dT%H:%MZ}")}
    assert {row[8] for row in file[1:]} == {"2"}


@pytest.mark.parametrize("language", ["en", "de"])
def test_the_file_has_the_words_of_the_pages(admin_client: Client, language: str) -> None:
    rule = Endpoint.objects.create(name="reports", path="/api/reports/*", limits="60/min")
    rule.refresh_from_db()
    used(rule.limits_resource, "user:1", "call_count", 6)
    used("api", "user:1", "tokens", 5)
    admin_client.cookies["django_language"] = language
    assert [row[5:7] for row in csv_of(admin_client)[1:]] == [["/api/reports/*", "requests"], ["api", "tokens"]]


def csv_of(browser: Client, **query: str) -> list[list[str]]:
    """The rows of the file of the page."""
    return [*csv.reader(get(browser, USAGE, **{"format": "csv"} | query).content.decode().splitlines())]


def test_an_empty_usage_page_shows_one_message_and_no_link_to_limits(admin_client: Client) -> None:
    page = get(admin_client, USAGE)
    assert words(page).count("Usage has never been rolled up.") == 1
    assert "Nothing was used" not in words(page)
    assert 'name="key"' not in page.content.decode()
    CollectedBatch.objects.create(name="one")
    page = get(admin_client, USAGE)
    assert words(page).count("There was no usage in this time.") == 1
    assert "when usage was last summed up" in words(page)


@pytest.mark.parametrize("name", ["resource", "entity", "key"])
def test_the_usage_page_rejects_filters_that_databases_cannot_store(name: str, admin_client: Client) -> None:
    used("api", "user:1", "tokens", 400)
    page = words(get(admin_client, USAGE, **{"resource": "api", name: "a\0"}))
    assert "A text cannot contain the character NUL: remove it." in page
    assert "400" not in page


def test_the_usage_page_begins_with_a_limit_that_admitted_something(admin_client: Client) -> None:
    used("api", "user:1", "blocked", 0, refused=50)
    used("api", "user:1", "tokens", 400, refused=2)
    used("api", "user:1", "calls", 4, refused=3)
    page = get(admin_client, USAGE)
    assert page.context["keys"] == ["call_count", "tokens", "blocked"]
    assert page.context["key"] == "call_count"


def test_usage_of_many_takes_14_queries_at_most(
    admin_client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(30):
        used(f"resource{number % 5}", f"user:{number}", "call_count", number)
    with django_assert_max_num_queries(14):
        get(admin_client, USAGE)


@pytest.mark.parametrize("page", [USAGE, LIVE])
def test_pages_work_without_time_zones(page: str, admin_client: Client, settings: Any) -> None:
    settings.USE_TZ = False
    assert get(admin_client, page).status_code == 200


def test_the_live_state_has_totals_and_the_tightest_limits(admin_client: Client) -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(4), RateLimit.per_hour("tokens", 100)])
    Entity.objects.create(identifier="user:1")
    for entity, times in (("user:1", 3), ("user:2", 1), (None, 2)):
        for _ in range(times):
            limits.acquire("api", entity=entity, requested=NOTHING).release()
        used("api", entity or "", "call_count", times, refused=times)
    used("elsewhere", "eu", "tokens", 1, bucket=BucketKind.MEMBER)
    state = get(admin_client, STATE).json()
    assert state["totals"] == {"call_count": {"admitted": 6, "refused": 6}, "tokens": {"admitted": 1, "refused": 0}}
    found = re.findall(
        r"<h3>(.*?)</h3>.*?class=\"limits-source\">(.*?)</span>.*?<strong>(.*?)</strong>", state["tightest"], re.DOTALL
    )
    assert found[:3] == [
        ("user:1", "requests on api", "3"),
        ("No user (whole site)", "requests on api", "2"),
        ("user:2", "requests on api", "1"),
    ]
    assert state["known"] is True
    assert f"{reverse(f'admin:{EXPLAIN}')}?resource=api&amp;entity=user%3A1" in state["tightest"]


def test_users_without_permission_to_explain_get_no_link_to_it(visitor: Visitor) -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(4)])
    used("api", "user:1", "call_count", 1)
    tightest = get(visitor("view_usagesnapshot"), STATE).json()["tightest"]
    assert "<h3>user:1</h3>" in tightest
    assert reverse(f"admin:{EXPLAIN}") not in tightest


def test_the_live_state_shows_an_unavailable_store(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(4)])
    used("api", "user:1", "call_count", 1)

    store = FailingStore(MemoryStore())
    put_store(monkeypatch, store)
    store.down = True
    state = get(admin_client, STATE).json()
    assert state["known"] is False
    assert "<h3>" not in state["tightest"]


class _Slower(LocMemCache):
    """A second takes a minute, since a busy machine may take longer than a second for two requests."""

    def add(self, key: str, value: object, timeout: float, **options: Any) -> bool:
        return super().add(key, value, 60 * timeout, **options)


@pytest.mark.django_db(transaction=True)
def test_live_state_and_the_page_of_usage_roll_up_at_most_once_a_second(
    admin_client: Client, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    recent = _Slower("limits_app.tests", {})
    monkeypatch.setattr(common, "_RECENT", recent)
    clock.advance(seconds=datetime.now(UTC).timestamp() - clock() / 1_000_000)
    limits.set_resource_limits("api", [CallLimit.per_minute(4)])
    for _ in range(2):
        limits.acquire("api", entity="user:1").release()
        assert get(admin_client, STATE).json()["totals"] == {"call_count": {"admitted": 1, "refused": 0}}
    recent.clear()
    assert sum(chart(get(admin_client, USAGE))["admitted"]) == 2


CALLS = {"kind": "call", "key": "call_count", "capacity": 1, "window_seconds": 60, "algorithm": "token_bucket"}


def test_a_preview_lists_clients_that_would_be_rejected_and_saves_nothing(admin_client: Client) -> None:
    resource = Resource.objects.create(name="api")
    used("api", "user:1", "call_count", 600, hours_ago=3)
    used("api", "user:2", "call_count", 10, hours_ago=3)
    events = AuditEvent.objects.count()
    per_hour = CALLS | {"capacity": 100, "window_seconds": 3600}
    response = admin_client.post(reverse(f"admin:{PREVIEW}"), policy_form(per_hour, resource=resource.pk))
    page = words(response)
    assert "1 client would have been rejected" in page
    assert "There are more." not in page
    assert "user:1" in page
    assert "user:2" not in page
    assert sum(chart(response)["admitted"]) + sum(chart(response)["refused"]) == 600
    assert (Policy.objects.count(), Limit.objects.count(), AuditEvent.objects.count()) == (0, 0, events)


def test_a_preview_of_a_saved_policy_leaves_it_as_it_is(admin_client: Client) -> None:
    limits.set_resource_limits("api", [CallLimit.per_hour(1000)])
    policy = Policy.objects.get()
    limit = policy.limits.get()
    used("api", "", "call_count", 600)
    row = CALLS | {"id": limit.pk, "capacity": 60, "window_seconds": 3600}
    form = policy_form(
        row, {"kind": "resource", "key": "slots", "capacity": 3}, existing=1, resource=policy.resource_id
    )
    form["enforcement"] = "shadow"
    page = words(admin_client.post(reverse(f"admin:{PREVIEW}") + f"?policy={policy.pk}", form))
    assert "the site itself" in page
    assert "The policy is not enforced" in page
    assert "Concurrency limits cannot be previewed from hourly usage: slots" in page
    limit.refresh_from_db()
    assert (limit.text, policy.limits.count()) == ("1000/h", 1)


def test_a_preview_shows_that_no_client_would_be_rejected(admin_client: Client) -> None:
    resource = Resource.objects.create(name="api")
    form = policy_form(CALLS, resource=resource.pk)
    assert "No request would have been rejected" in words(admin_client.post(reverse(f"admin:{PREVIEW}"), form))


def test_a_preview_shows_the_errors_of_the_form(admin_client: Client) -> None:
    bad = policy_form(CALLS | {"capacity": -1}, effect="nonsense")
    page = words(admin_client.post(reverse(f"admin:{PREVIEW}"), bad))
    assert "The form has errors, so there is no preview" in page
    page = words(admin_client.post(reverse(f"admin:{PREVIEW}"), policy_form()))
    assert "Add at least one limit" in page


def test_a_preview_needs_permission_to_save(visitor: Visitor, admin_client: Client) -> None:
    limits.set_resource_limits("api", [CallLimit.per_hour(1000)])
    policy = Policy.objects.get()
    address = reverse(f"admin:{PREVIEW}")
    adding, changing = visitor("view_usagesnapshot", "add_policy"), visitor("view_usagesnapshot", "change_policy")
    form = policy_form(CALLS)
    assert [one.post(address, form).status_code for one in (adding, changing)] == [200, 403]
    edit = f"{address}?policy={policy.pk}"
    assert [one.post(edit, form).status_code for one in (adding, changing)] == [403, 200]


def test_a_preview_that_is_opened_again_without_its_fields_leads_to_the_form(admin_client: Client) -> None:
    policy = limits.set_resource_limits("api", [CallLimit.per_hour(1000)])
    address = reverse(f"admin:{PREVIEW}")
    change = reverse("admin:limits_app_policy_change", args=[policy.pk])
    found = [admin_client.get(address + query).headers["location"] for query in (f"?policy={policy.pk}", "?policy=x")]
    assert found == [change, reverse("admin:limits_app_policy_add")]


@pytest.mark.parametrize("model", ["resource", "entity", "policy"])
def test_lists_and_forms_lead_to_the_pages(model: str, admin_client: Client) -> None:
    limits.set_entity_limits("user:1&2", [CallLimit.per_minute(5)], resource="api")
    row = {"resource": Resource, "entity": Entity, "policy": Policy}[model].objects.get()  # type: ignore[attr-defined]
    listed = admin_client.get(reverse(f"admin:limits_app_{model}_changelist")).content.decode()
    form = admin_client.get(reverse(f"admin:limits_app_{model}_change", args=[row.pk])).content.decode()
    assert reverse("admin:limits_app_explain") in listed
    resource = "" if model == "entity" else "api"
    entity = "" if model == "resource" else "user%3A1%262"
    assert f"{reverse('admin:limits_app_explain')}?resource={resource}&amp;entity={entity}" in form
    assert (reverse(f"admin:{PREVIEW}") in form) is (model == "policy")


def test_no_page_has_scripts_or_styles_inside() -> None:
    app = ROOT / "limits_app"
    for source in [*(app / "templates").rglob("*.html"), *(app / "admin").rglob("*.py")]:
        text = source.read_text()
        for inline in ("<style", " style=", " onclick=", "<script>"):
            assert inline not in text, source

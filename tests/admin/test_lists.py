"""Lists: what is used of each row in one look, and quick however many rows there are."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import path, reverse
from django.utils import timezone
from django.views import View
from pytest_django import Settings

from limits_app import limits
from limits_app.engine.limits import CallLimit, RateLimit
from limits_app.models import AuditEvent, Endpoint, Entity, Limit, Policy, Pool, PoolMember, Resource, UsageSnapshot
from limits_app.stores import registry
from project.urls import urlpatterns
from tests.admin.browsing import act, address, changelist, policy_form, said
from tests.admin.pages.snapshots import used
from tests.admin.rows import fill
from tests.opened import put_store
from tests.services.failing import FailingStore

TPM = RateLimit("tpm", 1000, 60)


def text(response: Any) -> str:
    assert response.status_code == 200
    return " ".join(response.content.decode().split())


def test_a_list_shows_used_and_remaining_amounts_of_each_limit(admin_client: Client) -> None:
    limits.set_resource_limits("api", [TPM], shared=["tpm"])
    limits.set_entity_limits("user:1", [RateLimit("tpm", 50, 60)], resource="api")
    limits.acquire("api", entity="user:1", requested={"tpm": 10})
    limits.acquire("api", requested={"tpm": 250})
    assert "tpm: 10 of 50 used, 40 left" in text(changelist(admin_client, "entity"))
    for model in ("resource", "policy"):
        assert "tpm (shared): 250 of 1,000 used, 750 left" in text(changelist(admin_client, model))
    assert 'value="0.250"' in text(changelist(admin_client, "resource"))


def test_a_list_shows_the_source_of_limits(admin_client: Client) -> None:
    limits.set_system_limits([TPM])
    limits.set_resource_limits("api", [TPM], enforcement="shadow")
    Entity.objects.create(identifier="user:1", blocked=True)
    assert "everyone on each resource, everyone on this resource (shadow mode)" in text(
        changelist(admin_client, "resource")
    )
    entities = text(changelist(admin_client, "entity"))
    assert '<td class="field-status">Blocked</td><td class="field-in_use">-</td>' in entities


def test_the_list_of_policies_shows_the_state_of_each(admin_client: Client) -> None:
    limits.set_system_limits([TPM])
    limits.set_resource_limits("api", [TPM])
    limits.set_resource_limits("some", [TPM], rollout_percent=1)
    limits.set_resource_limits("mail", [TPM], enforcement="off")
    limits.set_resource_limits("tried", [TPM], enforcement="shadow", rollout_percent=50)
    limits.set_entity_limits("user:1", [TPM], resource="api", enforcement="shadow")
    limits.set_entity_limits("user:2", [TPM], resource="api", rollout_percent=0)
    limits.set_entity_limits("user:3", [TPM], extends=True)
    limits.set_entity_limits("user:4", [TPM], resource="api", valid_from=timezone.now() + timedelta(days=1))
    limits.boost("user:3", "api", 2, timezone.now() + timedelta(days=1), "a sale")
    page = text(changelist(admin_client, "policy"))
    chip = '<td class="field-status"><span class="limits-chip{}">{}'
    for words in ("Active</span>", "Active, 1 %</span>", "Boost until"):
        assert chip.format(" limits-chip--on", words) in page
    for words in ("Not rolled out that far, 0 %</span>", "Off</span>", "Shadow mode</span>", "Not in force now (from"):
        assert chip.format("", words) in page
    assert chip.format("", "Shadow mode, 50 %</span>") in page
    assert "counted for each" in page


def test_boosts_are_listed_after_permanent_policies(admin_client: Client) -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(4)])
    limits.set_resource_limits("zoo", [CallLimit.per_minute(4)])
    limits.boost_each("user:1", 2, timezone.now() + timedelta(days=1), "a launch", plan="")
    rows = changelist(admin_client, "policy").context["cl"].result_list
    is_boosted = [row.extends for row in rows]
    assert is_boosted == sorted(is_boosted)
    assert set(is_boosted) == {False, True}


def test_a_resource_and_an_entity_lead_to_their_policies(admin_client: Client) -> None:
    limits.set_resource_limits("api", [TPM])
    limits.set_entity_limits("user:1", [TPM], resource="api")
    limits.set_entity_limits("user:1", [TPM], resource="mail")
    for row, own in ((Resource.objects.get(name="api"), 2), (Entity.objects.get(), 2)):
        page = text(admin_client.get(address(f"{row._meta.model_name}_change", row.pk)))
        [link] = re.findall(r'<a href="([^"]*/policy/\?[^"]*)">Policies</a>', page)
        found = admin_client.get(link).context["cl"].result_list
        assert len(found) == own < Policy.objects.count()
        assert all(row in (one.resource, one.entity) for one in found)


def test_the_list_of_policies_shows_subjects_and_limits_in_words(admin_client: Client) -> None:
    ada = User.objects.create_user("ada")
    limits.set_system_limits([TPM])
    limits.set_resource_limits("api", "60/min connections=5")
    limits.set_entity_limits(f"user:{ada.pk}", "1000/day")
    page = text(changelist(admin_client, "policy"))
    for words in ("Each client, on each resource", "Each client on api", f"user:{ada.pk} (ada), on each resource"):
        assert f">{words}</a>" in page
    for words in ("60 requests per minute", "5 connections at the same time", "1,000 requests per day"):
        assert f"<div>{words}</div>" in page


def test_clients_at_a_limit_and_rejected_ones_come_first_in_one_line_each(admin_client: Client) -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 50, 60), CallLimit(5, 60)])
    limits.set_resource_limits("mail", [TPM])
    for name in ("user:1", "user:2", "user:3", "user:4"):
        Entity.objects.create(identifier=name)
    limits.acquire("api", entity="user:3", requested={"tpm": 50})
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    UsageSnapshot.objects.create(period="hour", start=hour, resource="mail", key="tpm", entity="user:2", refused=3)
    rows = rows_of(admin_client, "entity")
    assert [row.identifier for row in rows] == ["user:3", "user:2", "user:1", "user:4"]
    page = text(changelist(admin_client, "entity"))
    assert page.count("<meter") == len(rows)
    assert '<td class="field-status">At its limit</td>' in page
    assert rows_of(admin_client, "entity", "?o=1")[0].identifier == "user:1"


@pytest.mark.parametrize(("most_counted", "shown"), [(110, 110), (10_000, 120)])
def test_rejected_clients_come_first_and_each_client_once_however_long_the_list_is(
    most_counted: int, shown: int, admin_client: Client, count_at_most: Callable[[int], None]
) -> None:
    fill(entities=120, policies=0, resources=1)
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    for number in (40, 90, 100):
        name = f"user:{number:07}"
        UsageSnapshot.objects.create(period="hour", start=hour, resource="mail", key="tpm", entity=name, refused=3)
    count_at_most(most_counted)
    pages = [[row.pk for row in rows_of(admin_client, "entity", f"?p={page}")] for page in (1, 2, 3)]
    others = [number for number in range(1, 121) if number not in {40, 90, 100}]
    assert [number for page in pages for number in page] == [40, 90, 100, *others][:shown]


def test_only_a_list_that_is_filtered_or_searched_offers_all_rows(admin_client: Client) -> None:
    limits.set_entity_limits("tenant:acme", "5/min")
    limits.set_entity_limits("tenant:other", "5/min")
    assert "Show all" not in changelist(admin_client, "entity").content.decode()
    for query in ("?q=acme", "?blocked__exact=0"):
        assert "Show all" in changelist(admin_client, "entity", query).content.decode()


def test_the_page_that_asks_for_a_deletion_has_the_menu(admin_client: Client) -> None:
    row = Entity.objects.create(identifier="tenant:acme")
    page = admin_client.get(address("entity_delete", row.pk))
    assert [entry["label"] for entry in page.context["menu"]["entries"] if entry["is_here"]] == ["Clients"]
    assert 'class="limits-tabs"' in page.content.decode()


def test_an_unused_resource_shows_a_note(admin_client: Client) -> None:
    limits.set_resource_limits("api", [TPM])
    assert '<td class="field-in_use">nothing in use</td>' in text(changelist(admin_client, "resource"))
    limits.acquire("api", requested={"tpm": 7})
    assert "tpm: 7 of 1,000 used" in text(changelist(admin_client, "resource"))


def test_clients_are_blocked_and_unblocked_from_the_list(admin_client: Client) -> None:
    rows = [Entity.objects.create(identifier=name) for name in ("user:8", "user:9")]
    for action, is_blocked in (("block_entities", True), ("unblock_entities", False)):
        assert b"Selected rows" in act(admin_client, action, *rows).content
        act(admin_client, action, *rows, confirmed="1", reason="asked")
        assert {*Entity.objects.values_list("blocked", flat=True)} == {is_blocked}
    last = AuditEvent.objects.latest("number")
    assert (last.source, last.reason) == ("admin", "asked")


def test_a_block_of_oneself_from_the_list_needs_a_confirmation(admin_client: Client, admin_user: User) -> None:
    row = Entity.objects.create(identifier=f"user:{admin_user.pk}")
    page = act(admin_client, "block_entities", row, confirmed="1", reason="asked")
    assert "confirm_block" in page.context["form"].errors
    assert not Entity.objects.get().blocked


def test_a_resource_shows_its_busiest_entity(admin_client: Client) -> None:
    limits.set_resource_limits("api", [TPM])
    for name, amount in (("user:1", 10), ("user:2", 900)):
        limits.acquire("api", entity=name, requested={"tpm": amount})
        used("api", name, "tpm", amount)
    page = text(changelist(admin_client, "resource"))
    assert "Busiest: user:2" in page
    assert "tpm: 900 of 1,000 used, 100 left" in page
    assert "user:1" not in page


def test_the_list_of_entities_has_dashes_for_no(admin_client: Client) -> None:
    Entity.objects.create(identifier="user:1", blocked=True)
    Entity.objects.create(identifier="user:2", unlimited=True)
    Entity.objects.create(identifier="user:3")
    blocked = Entity.objects.create(identifier="user:4")
    Policy.objects.create(entity=blocked, resource=Resource.objects.create(name="api"), effect="blocked")
    page = text(changelist(admin_client, "entity"))
    for words in ("Blocked", "Unlimited", "-", "Blocked (policy)"):
        assert f'<td class="field-status">{words}</td>' in page
    assert "icon-no" not in page


def test_an_identifier_that_no_request_had_is_hinted_at(admin_client: Client) -> None:
    fields = {"name": "", "parent": "", "metadata": "{}"}
    done = admin_client.post(address("entity_add"), {**fields, "identifier": "customer before"})
    assert len(said(done)) == 1  # no usage is counted, so nothing is known
    used("api", "tenant:acme", "tpm", 1)
    for name in ("customer acme", "tenant:acme"):
        done = admin_client.post(address("entity_add"), {**fields, "identifier": name})
    hints = [one for one in said(done) if "No request has used the identifier" in one]
    assert hints == ["No request has used the identifier “customer acme” so far: check the spelling."]


def test_a_second_rule_on_the_same_path_is_warned_of(admin_client: Client) -> None:
    api = Resource.objects.create(name="api")
    rule = {
        "path": "/admin/",
        "resource": api.pk,
        "amounts": "{}",
        "counted_by": "entity",
        "stop": "on",
        "enabled": "on",
    }
    for name, order in (("first", 1), ("second", 2)):
        done = admin_client.post(address("endpoint_add"), {**rule, "name": name, "order": order})
    [warning] = [one for one in said(done) if "never applies" in one]
    assert "The rule “first” comes first and skips later rules" in warning


@pytest.mark.parametrize(
    ("methods", "messages"),
    [
        ("PUT", ["This rule counts PUT only. The view answers GET, POST too."]),
        ("GET,POST", []),
        ("", []),
    ],
)
def test_methods_that_a_rule_does_not_count_are_named(admin_client: Client, methods: str, messages: list[str]) -> None:
    rule = {"name": "r", "view_name": "forms", "limits": "5/min", "amounts": "{}", "counted_by": "entity"}
    with override_settings(ROOT_URLCONF=(path("form/", Form.as_view(), name="forms"), *urlpatterns)):
        done = admin_client.post(address("endpoint_add"), {**rule, "methods": methods, "enabled": "on", "order": 1})
    assert [one for one in said(done) if "counts" in one] == messages


def test_rule_for_some_methods_of_a_function_view_is_warned_of(admin_client: Client) -> None:
    rule = {"name": "r", "view_name": "admin:index", "limits": "5/min", "amounts": "{}", "counted_by": "entity"}
    done = admin_client.post(address("endpoint_add"), {**rule, "methods": "POST", "enabled": "on", "order": 1})
    [warning] = [one for one in said(done) if "counts" in one]
    assert warning.startswith("The view answers every method, and this rule counts POST only: leave the methods empty")


@pytest.mark.parametrize("counted_by", ["header", "session"])
@pytest.mark.parametrize("has_other", [False, True])
def test_rule_by_what_clients_choose_is_warned_of(admin_client: Client, counted_by: str, has_other: bool) -> None:
    if has_other:
        Endpoint.objects.create(name="by address", path="/search/", limits="9/min", counted_by="ip")
    header = "X-Device" if counted_by == "header" else ""
    rule = {"name": "r", "path": "/search/", "limits": "5/min", "amounts": "{}", "counted_by": counted_by}
    done = admin_client.post(address("endpoint_add"), {**rule, "header": header, "enabled": "on", "order": 1})
    assert any("has no limit" in message for message in said(done)) is not has_other


def test_other_urls_of_the_view_of_a_rule_are_named(admin_client: Client) -> None:
    rule = {"name": "r", "path": "/form/", "limits": "5/min", "amounts": "{}", "counted_by": "entity"}
    form = Form.as_view()
    with override_settings(ROOT_URLCONF=(path("form/", form), path("form/<slug:kind>", form), *urlpatterns)):
        done = admin_client.post(address("endpoint_add"), {**rule, "enabled": "on", "order": 1})
    [note] = [message for message in said(done) if "counts" in message]
    assert note.startswith("This rule counts /form/ only. The view answers /form/<slug:kind> too: name the view")


class Form(View):
    """A view that answers GET and POST."""

    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    post = get


def test_a_blocked_system_names_the_policies_that_replace_it(admin_client: Client) -> None:
    limits.set_resource_limits("api", [TPM])
    limits.set_resource_limits("more", [TPM], extends=True)
    done = admin_client.post(address("policy_add"), policy_form(effect="blocked"))
    [warning] = [one for one in said(done) if "override this block" in one]
    assert "Other policies override this block: resource api. Count usage together to block everything." in warning


def test_a_list_shows_a_note_where_nothing_is_set(admin_client: Client) -> None:
    Resource.objects.create(name="api")
    page = text(changelist(admin_client, "resource"))
    assert '<td class="field-in_use"><div>unlimited</div></td>' in page
    assert "no limits" in page


def test_an_entity_is_shown_on_the_resources_of_its_policies_and_else_on_the_first(admin_client: Client) -> None:
    for name in ("a", "b", "c", "d", "e"):
        limits.set_resource_limits(name, [TPM])
    limits.set_entity_limits("user:1", [TPM], resource="e")
    later = {"valid_from": timezone.now() + timedelta(days=1)}
    limits.set_entity_limits("user:1", [CallLimit(1, 60)], resource="e", **later)  # type: ignore[typeddict-item]
    Entity.objects.create(identifier="user:2")
    found = {row.identifier: [state.resource for state in row.states] for row in rows_of(admin_client, "entity")}
    assert found == {"user:1": ["e"], "user:2": ["a", "b", "c"]}


def rows_of(client: Client, model: str, query: str = "") -> list[Any]:
    rows: list[Any] = changelist(client, model, query).context["cl"].result_list
    return rows


@pytest.mark.parametrize("model", ["policy", "resource", "entity"])
def test_a_list_shows_unknown_use_while_the_store_is_unavailable(
    model: str, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits.set_resource_limits("api", [TPM], shared=["tpm"])
    Entity.objects.create(identifier="user:1")
    failing = FailingStore(registry.store("default"))
    failing.down = True
    put_store(monkeypatch, failing)
    assert "unknown of 1,000" in text(changelist(admin_client, model))


@pytest.mark.parametrize("model", ["policy", "resource", "entity"])
def test_an_invalid_limit_is_left_out_of_lists(model: str, admin_client: Client) -> None:
    limits.set_resource_limits("api", [TPM])
    Entity.objects.create(identifier="user:1")
    QuerySet.update(Limit.objects.all(), key="a b")
    shown = text(changelist(admin_client, model))
    assert "unknown" not in shown
    assert ("&#x27;a b&#x27;=&#x27;1000/min&#x27;" in shown) is (model == "policy")


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("auditevent", ["actor", "source", "source__exact", "verb__exact"]),
        ("policy", ["kind", "effect__exact", "scope", "holds", "reason", "resource__name"]),
    ],
)
def test_unstorable_text_is_ignored_as_a_filter(model: str, names: list[str], admin_client: Client) -> None:
    for name in names:
        answer = admin_client.get(address(f"{model}_changelist"), {name: "a\0"})
        assert (answer.status_code, answer.headers["location"]) == (302, address(f"{model}_changelist") + "?e=1")
    assert "Null characters are not allowed." in text(admin_client.get(address(f"{model}_changelist"), {"q": "\0"}))


@pytest.mark.parametrize(("model", "field"), [("policy", "resource"), ("policy", "entity"), ("resource", "pool")])
def test_search_for_unstorable_text_finds_nothing(model: str, field: str, admin_client: Client) -> None:
    limits.set_entity_limits("user:1", [TPM], resource="api")
    Pool.objects.create(name="eu")
    query = {"app_label": "limits_app", "model_name": model, "field_name": field}
    found = [admin_client.get("/admin/autocomplete/", {**query, "term": term}).json() for term in ("", "\0")]
    assert [len(one["results"]) for one in found] == [1, 0]


MOST_QUERIES = 16
"""Two are about users, who are found and shown by their names.

Three are not of the list: the emergency switch of the menu, and, which a process keeps, the URL rules and who is
blocked or exempt.
"""


@pytest.mark.parametrize(
    ("model", "query"),
    [
        ("entity", ""),
        ("entity", "?q=user:00001"),
        ("entity", "?q=Grace&o=1"),
        ("entity", "?p=2"),
        ("policy", ""),
        ("policy", "?q=user:00001"),
        ("policy", "?q=api/00007&scope=entity_on_resource&kind=rate"),
        ("policy", "?holds=now"),
        ("resource", ""),
    ],
)
def test_number_of_queries_of_a_list_is_constant(
    model: str, query: str, visitor: Any, count_at_most: Callable[[int], None], django_assert_max_num_queries: Any
) -> None:
    count_at_most(200)
    fill(entities=250, policies=230, resources=20)
    tomorrow = timezone.now() + timedelta(days=1)
    Policy.objects.filter(pk__gt=225).update(valid_from=timezone.now(), valid_until=tomorrow)
    client = visitor("view_policy", "view_entity", "view_resource", "boost_policy", "reset_resource")
    with django_assert_max_num_queries(MOST_QUERIES):
        assert len(rows_of(client, model, query)) > 0


@pytest.mark.parametrize(("direction", "order"), [("", ("description", "pk")), ("-", ("-description", "-pk"))])
def test_equal_rows_are_sorted_in_the_direction_of_the_column(
    direction: str, order: tuple[str, str], admin_client: Client
) -> None:
    column = 1 + [*admin.site.get_model_admin(Resource).list_display].index("description")
    page = changelist(admin_client, "resource", f"?o={direction}{column}")
    assert page.context["cl"].queryset.query.order_by == order


def test_a_long_list_shows_that_its_count_is_capped(admin_client: Client, count_at_most: Callable[[int], None]) -> None:
    count_at_most(60)
    fill(entities=100, policies=1, resources=1)
    page = changelist(admin_client, "entity")
    assert "the first 60: search or filter for others" in text(page)
    assert (page.context["cl"].result_count, len(page.context["cl"].result_list)) == (60, 50)
    assert len(rows_of(admin_client, "entity", "?p=2")) == 10
    assert "the first" not in text(changelist(admin_client, "resource"))


@pytest.mark.parametrize(("counted", "left"), [(5, 10), (100, 0)])
def test_all_rows_are_never_more_than_a_list_has_counted(
    counted: int, left: int, admin_client: Client, count_at_most: Callable[[int], None]
) -> None:
    count_at_most(counted)
    fill(entities=10, policies=1, resources=1)
    done = act(admin_client, "delete_selected", Entity.objects.all()[0], select_across="1", post="yes")
    assert Entity.objects.count() == left
    assert any("list is truncated" in words for words in said(done)) is (left > 0)


def test_a_long_list_is_searched_for_beginnings_and_a_short_one_for_parts(
    admin_client: Client, count_at_most: Callable[[int], None]
) -> None:
    Entity.objects.create(identifier="tenant:acme", name="Acme")
    Entity.objects.create(identifier="user:1", name="Ada")

    def found(query: str) -> list[str]:
        return [row.identifier for row in rows_of(admin_client, "entity", f"?q={query}")]

    assert (found("acme"), found("Ad")) == (["tenant:acme"], ["user:1"])
    count_at_most(1)
    assert (found("cme"), found("aCME"), found("Ad"), found("tenant"), found("Tenant")) == (
        [],
        ["tenant:acme"],
        ["user:1"],
        ["tenant:acme"],
        [],
    )


def test_long_list_of_policies_is_searched_for_beginnings_of_their_subjects(
    admin_client: Client, count_at_most: Callable[[int], None]
) -> None:
    count_at_most(5)
    fill(entities=7, policies=9, resources=2)

    def found(query: str) -> set[str]:
        return {str(row) for row in rows_of(admin_client, "policy", f"?q={query}")}

    assert found("api/00002") == {str(row) for row in Policy.objects.filter(resource__name="api/00002")}
    assert found("user:0000001") == {str(row) for row in Policy.objects.filter(entity__identifier="user:0000001")}
    assert found("Ada") == {str(row) for row in Policy.objects.filter(entity__name__startswith="Ada")} != set()
    assert found("da") == found("nobody") == set()


def test_a_long_list_of_policies_is_sorted_without_their_names_unless_it_is_asked_for(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, count_at_most: Callable[[int], None]
) -> None:
    zoo, api = (Resource.objects.create(name=name) for name in ("zoo", "api"))
    for resource in (zoo, api, None):
        Policy.objects.create(resource=resource, effect="blocked")

    def second(query: str = "") -> list[str]:
        return [row.resource.name for row in rows_of(admin_client, "policy", f"?p=2{query}")]

    monkeypatch.setattr(admin.site.get_model_admin(Policy), "list_per_page", 1)
    assert second() == ["api"]
    count_at_most(2)
    assert second() == ["zoo"], "the first of those that were made"
    column = 1 + [*admin.site.get_model_admin(Policy).list_display].index("whom")
    assert second(f"&o={column}") == ["api"]


@pytest.mark.parametrize(
    ("holds", "found"),
    [("now", ["now"]), ("to_come", ["later"]), ("ended", ["past"]), ("dates", ["now", "later", "past"])],
)
def test_boosts_are_listed_by_when_they_hold(holds: str, found: list[str], admin_client: Client) -> None:
    now, day = timezone.now(), timedelta(days=1)
    api = Resource.objects.create(name="api")
    spans = {
        "past": (now - 3 * day, now - 2 * day),
        "now": (now - day, now + day),
        "later": (now + 2 * day, now + 3 * day),
    }
    for name, (begins_at, ends_at) in spans.items():
        Policy.objects.create(resource=api, effect="blocked", valid_from=begins_at, valid_until=ends_at, reason=name)
    assert {row.reason for row in rows_of(admin_client, "policy", f"?holds={holds}")} == {*found}


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Los_Angeles"])
def test_policies_that_hold_until_the_end_of_the_calendar_are_listed_and_edited(
    zone: str, admin_client: Client, settings: Settings
) -> None:
    settings.TIME_ZONE = zone
    first, last = (moment.replace(tzinfo=UTC) for moment in (datetime.min, datetime.max))  # noqa: DTZ901 - it is there
    policy = limits.set_resource_limits("api", [CallLimit.per_minute(5)], valid_from=first, valid_until=last)
    for query in ("", "?holds=now", "?holds=dates"):
        assert "Each client on api" in changelist(admin_client, "policy", query).content.decode()
    form = admin_client.get(address("policy_change", policy.pk))
    shown = form.context["adminform"].form
    [(began, _), (ends, _)] = [
        shown.fields[name].widget.decompress(getattr(policy, name)) for name in ("valid_from", "valid_until")
    ]
    assert (began.year, ends.year) == (1, 9999)


@pytest.mark.parametrize("query", ["when__gte=9999-12-31T23:59:59-14:00", "when__lt=0001-01-01T00:00:00%2B14:00"])
def test_dates_beyond_the_calendar_filter_nothing(query: str, admin_client: Client) -> None:
    listed = changelist(admin_client, "auditevent", f"?{query}")
    assert listed.redirect_chain == [(f"{address('auditevent_changelist')}?e=1", 302)]


def test_an_end_that_databases_cannot_store_is_rejected(admin_client: Client, settings: Settings) -> None:
    settings.TIME_ZONE = "America/Los_Angeles"
    form = policy_form(effect="blocked", valid_until_0="9999-12-31", valid_until_1="23:59:59")
    refused = admin_client.post(address("policy_add"), form)
    assert refused.context["adminform"].form.errors == {"valid_until": ["Enter a valid date."]}
    assert admin_client.post(address("policy_add"), form | {"valid_until_1": "15:59:59"}).status_code == 302
    assert Policy.objects.get().valid_until == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_policies_are_filtered_by_kinds_of_limits(admin_client: Client) -> None:
    limits.set_resource_limits("api", [TPM])
    limits.set_resource_limits("mail", [CallLimit(1, 60)])
    found = [str(row) for row in rows_of(admin_client, "policy", "?kind=call")]
    assert found == ["resource mail"]


def test_history_of_an_object_has_changes_from_outside_the_admin(
    admin_client: Client, visitor: Callable[..., Client]
) -> None:
    limits.set_resource_limits("api", [TPM], reason="what our contract says")
    limits.set_resource_limits("other", [TPM], reason="something else")
    history = address("policy_history", Policy.objects.get(resource__name="api").pk)
    page = text(admin_client.get(history, follow=True))
    assert "what our contract says" in page
    assert "something else" not in page
    assert "what our contract says" not in text(visitor("view_policy").get(history))
    assert admin_client.get(address("policy_history", 999)).status_code == 302


def test_the_history_of_a_part_is_reported_by_its_page(admin_client: Client) -> None:
    member = PoolMember.objects.create(pool=Pool.objects.create(name="regions"), name="eu")
    assert admin_client.get(address("poolmember_history", member.pk)).status_code == 200


def test_no_page_asks_the_database_to_convert_time_zones(admin_client: Client, settings: Settings) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    limits.set_resource_limits("api", [CallLimit(1, 60)])
    limits.set_entity_limits("user:1", [CallLimit(1, 60)], resource="api")
    used("api", "user:1", "call_count", 200)
    links, pages = [reverse("admin:index")], set[str]()
    with CaptureQueriesContext(connection) as queries:
        while links:
            page = links.pop()
            if page.partition("?")[0] not in pages:
                pages.add(page.partition("?")[0])
                response = admin_client.get(page, follow=True)
                body = "" if response.streaming else response.content.decode()
                links += map(unescape, re.findall(r'href="(/admin/limits_app/[^"#]*)"', body))
    assert len(pages) > 40
    # MySQL and MariaDB have no time zones where their tables were not loaded.
    assert [query["sql"] for query in queries if re.search("django_(datetime|time)_", query["sql"])] == []

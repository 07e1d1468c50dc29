"""The form of a limit: what it makes, what it reads back, what it says before, and what it says about mistakes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import Group, Permission, User
from django.core import signing
from django.test import Client
from django.urls import path
from django.utils import timezone
from django.utils.translation import override
from rest_framework.views import APIView

from limits_app import limited, limits
from limits_app.models import AuditEvent, Candidate, Endpoint, Entity, Plan, PlanGroup, Policy, Resource
from limits_app.policies import dropped_keys
from limits_app.services.limit_words import limit_in_words
from project.urls import urlpatterns as site_urls
from tests.admin.pages.snapshots import used

pytestmark = pytest.mark.django_db(transaction=True)

URL = "/admin/limits_app/limitsentry/limit/"


@pytest.fixture
def admin() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def post(client: Client, address: str = URL, **fields: Any) -> Any:
    """Send the form as a browser does, with the first row set to 100 requests per minute."""
    row = {"number_1": "100", "unit_1": "requests", "per_1": "min"}
    return client.post(
        address, {"who": "user", "shadow": "", "counts_members": "on", "lifts_each": "on", **row, **fields}
    )


def save(client: Client, address: str = URL, **fields: Any) -> Any:
    """Send the form, again with what it says is to be read first."""
    response = post(client, address, **fields)
    if response.status_code == 200 and (effect := response.context["effect"]) is not None and effect.seen:
        response = post(client, address, **fields, seen=effect.seen)
    assert response.status_code == 302, response.context["form"].errors
    return response


def shown(client: Client, page: str) -> str:
    """What a page says."""
    return client.get(page).content.decode()


def described(client: Client, address: str = URL, **fields: Any) -> str:
    """What follows while one types."""
    return post(client, address, **fields, _effect="1").content.decode()


API = {"target": "api"}
DB = {"target": "db", "per_1": ""}
EVERYTHING = {"target": ""}
ACME = API | {"who": "entity", "entity": "tenant:acme"}
TOKENS = {"number_2": "1M", "unit_2": "tokens", "per_2": "day"}
TOGETHER = DB | {"who": "together", "unit_1": "connections"}


@pytest.mark.parametrize(
    ("fields", "policy", "sentence"),
    [
        (API | {"who": "client"}, "resource api", "Each client may make 100 requests per minute on api."),
        (API | {"who": "user"}, "pattern user:* on api", "Each user may make 100 requests per minute on api."),
        (ACME, "entity tenant:acme on api", "tenant:acme may make 100 requests per minute on api."),
        (ACME | {"number_1": "1"}, "entity tenant:acme on api", "tenant:acme may make 1 request per minute on api."),
        (
            EVERYTHING | {"who": "plan", "plan": "pro"},
            "plan pro in total",
            "Each member of “pro” may make 100 requests per minute over all resources together.",
        ),
        (
            EVERYTHING | {"who": "client"},
            "system in total",
            "Each client may make 100 requests per minute over all resources together.",
        ),
        (
            EVERYTHING | {"who": "address"} | TOKENS,
            "pattern ip:* in total",
            "Each IP address may make 100 requests per minute and use 1,000,000 tokens per day "
            "over all resources together.",
        ),
        (
            API | {"who": "user", "number_1": "400k", "unit_1": "tokens"},
            "pattern user:* on api",
            "Each user may use 400,000 tokens per minute (on average, up to 800,000 within one minute) on api.",
        ),
        (
            EVERYTHING | {"who": "team", "entity": "team:x", "number_1": "1M", "unit_1": "tokens", "per_1": "day"},
            "entity team:x in total",
            "All members of team:x together may use 1,000,000 tokens per day over all resources together.",
        ),
        (TOGETHER, "resource db", "All clients together may hold 100 connections at the same time on db."),
        (
            DB | {"who": "client", "number_1": "5"},
            "resource db",
            "Each client may hold 5 requests at the same time on db.",
        ),
    ],
)
def test_a_sentence_is_a_policy_and_is_read_back(admin: Client, fields: Any, policy: str, sentence: str) -> None:
    Plan.objects.create(name="pro")
    Entity.objects.create(identifier="user:1", parent=Entity.objects.create(identifier="team:x"))
    page = save(admin, **fields).url
    made = Policy.objects.get(effect="limits")
    assert str(made) == policy
    shown = admin.get(page)
    assert sentence in shown.content.decode()
    assert sentence in described(admin, f"{URL}?policy={made.pk}", **shown.context["form"].initial)
    before = [limit.notation() for limit in made.limits.all()]
    save(admin, f"{URL}?policy={made.pk}", **shown.context["form"].initial)
    assert Policy.objects.get(effect="limits").pk == made.pk
    assert [limit.notation() for limit in made.limits.all()] == before


@pytest.mark.parametrize(
    ("per", "limit"),
    [
        ("day", "calls=100/day@Europe/Berlin"),
        ("week", "calls=100/week@Europe/Berlin"),
        ("month", "calls=100/month@Europe/Berlin"),
        ("billing-month", "calls=100/month@Europe/Berlin:from=client"),
        ("h", "calls=100/h:sliding_window"),
        ("", "calls=100:permits"),
    ],
)
def test_days_weeks_and_months_are_those_of_the_calendar(admin: Client, settings: Any, per: str, limit: str) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    save(admin, **API, per_1=per)
    assert str(Policy.objects.get().limits.get()) == limit


@pytest.mark.parametrize(
    ("text", "label", "after"),
    [
        ("calls=10/min", "per minute, with bursts", "calls=20/min"),
        ("calls=10/5min:fixed_window", "per 5 minutes, with bursts", "calls=20/5min:fixed_window"),
        ("tokens=10/min:sliding_window", "per minute, without bursts", "tokens=20/min:sliding_window"),
        ("calls=10/min:burst=40", "per minute, with bursts", "calls=20/min:burst=40"),
        ("tokens=10/day@Asia/Tokyo", "per day, Asia/Tokyo", "tokens=20/day@Asia/Tokyo"),
        ("tokens=10/week@UTC:from=sun", "per week from Sunday", "tokens=20/week@UTC:from=sun"),
        ("tokens=10/30min:session", "per 30 minutes", "tokens=20/30min:session"),
        ("slots=10:hold=5min", "at a time", "slots=20:hold=5min"),
    ],
)
def test_changing_the_number_keeps_the_other_options_of_a_limit(
    admin: Client, text: str, label: str, after: str
) -> None:
    policy = limits.set_resource_limits("api", text)
    address = f"{URL}?policy={policy.pk}"
    form = admin.get(address).context["form"]
    assert label in dict(form["per_1"].field.choices).values()
    save(admin, address, **form.initial | {"number_1": "20"})
    assert str(policy.limits.get()) == after


def test_a_url_is_limited_by_a_rule_with_its_limits(admin: Client) -> None:
    save(admin, target="/api/*", shadow="1", reason="too much traffic")
    rule = Endpoint.objects.get()
    assert (rule.path, rule.counted_by, rule.limits) == ("/api/*", "user", "calls=100/min:sliding_window")
    assert Policy.objects.get().enforcement == "shadow"
    assert AuditEvent.objects.filter(object_type="endpoint", reason="too much traffic", actor="root").exists()
    save(admin, f"{URL}?rule={rule.pk}", target="/api/*", who="address", number_1="5")
    rule.refresh_from_db()
    assert (rule.counted_by, rule.limits) == ("ip", "calls=5/min:sliding_window")
    assert Policy.objects.get().enforcement == "enforce"


def test_what_it_made_may_become_something_else(admin: Client) -> None:
    save(admin, target="/api/*")
    rule = Endpoint.objects.get()
    save(admin, f"{URL}?rule={rule.pk}", target="api", who="client")
    assert not Endpoint.objects.exists()
    assert str(Policy.objects.get()) == "resource api"


@pytest.mark.parametrize("who", [{"who": "entity", "entity": "tenant:acme"}, {"who": "plan", "plan": "pro"}])
def test_a_client_and_a_plan_have_their_own_limit_of_a_url(admin: Client, who: dict[str, str]) -> None:
    save(admin, target="/api/ping/", **who)
    rule, policy = Endpoint.objects.get(), Policy.objects.get()
    assert rule.resource == policy.resource
    assert rule.counted_by == "entity"
    assert str(policy) in {"entity tenant:acme on url-api-ping", "plan pro on url-api-ping"}
    save(admin, target="/api/ping/", **who, number_1="7")
    assert Policy.objects.get().pk == policy.pk


def test_a_limit_with_an_end_leaves_the_lasting_one(admin: Client) -> None:
    save(admin, target="/api/ping/", number_1="10")
    rule = Endpoint.objects.get()
    day = timezone.localdate() + timedelta(days=3)
    said = described(admin, target="/api/ping/", number_1="20", ends="date", last_day=day)
    assert "Until then it replaces: 10 requests per minute." in said
    save(admin, f"{URL}?rule={rule.pk}", target="/api/ping/", number_1="20", ends="date", last_day=day)
    lasting, temporary = Policy.objects.order_by("pk")
    assert (lasting.valid_until, str(lasting.limits.get())) == (None, "calls=10/min:sliding_window")
    assert temporary.valid_until is not None
    assert timezone.localtime(temporary.valid_until).date() == day
    form = admin.get(f"{URL}?policy={temporary.pk}").context["form"]
    assert (form.initial["target"], form.initial["who"], form.initial["ends"]) == ("/api/ping/", "user", "same")
    save(admin, f"{URL}?policy={temporary.pk}", **form.initial | {"number_1": "30"})
    temporary.refresh_from_db()
    assert str(temporary.limits.get()) == "calls=30/min:sliding_window"
    assert timezone.localtime(temporary.valid_until).date() == day


@pytest.mark.parametrize(
    ("fields", "field", "error"),
    [
        ({**API, "who": "entity"}, "entity", "This field is required."),
        ({**API, "who": "plan"}, "plan", "This field is required."),
        ({"target": "/a/", "number_1": ""}, "number_1", "Enter how much, such as 60."),
        ({"target": "/a/", "number_1": "lots"}, "number_1", "Enter a number, such as 60, 1,000 or 1M."),
        ({"target": "/a/", "number_1": "0"}, "number_1", "Enter a number"),
        ({"target": "/a/", "number_1": "1.000"}, "number_1", "Enter a number"),
        ({"target": "/a/", "number_1": "2.5", "per_1": "day"}, "number_1", "Enter a whole number."),
        ({"target": "api", "who": "together", "per_1": "billing-month"}, "per_1", "have no billing date"),
        ({"target": "/a/", "unit_1": "tok=ens"}, "unit_1", "A unit is one word"),
        ({"target": "/a/", "number_2": "5", "per_2": "h"}, "unit_2", "There is another limit of “requests” above"),
        ({"target": "/no route<"}, "target", "unmatched"),
        ({"target": "no name"}, "target", "“no name” is not a resource"),
        ({**API, "ends": "date"}, "last_day", "This field is required."),
        ({**API, "ends": "date", "last_day": "2001-01-01"}, "last_day", "The end must be in the future."),
        ({**API, "ends": "date", "last_day": "soon"}, "last_day", "Enter a valid date."),
    ],
)
def test_a_mistake_is_named_at_its_field_and_nothing_is_made(
    admin: Client, fields: Any, field: str, error: str
) -> None:
    response = post(admin, **fields)
    assert response.status_code == 200
    assert error in str(response.context["form"].errors.get(field))
    assert error in response.content.decode().replace("&quot;", '"')
    assert [model.objects.count() for model in (Policy, Endpoint, Resource)] == [0, 0, 0]


def test_a_limit_that_exists_is_replaced_once_that_was_shown(admin: Client) -> None:
    policy = limits.set_resource_limits("api", ["calls=5/min"])
    response = post(admin, **API, who="client")
    assert "Replaces: 5 requests per minute." in response.content.decode()
    assert "Nothing has been saved so far." in response.content.decode()
    assert limits.list_resources()["api"][0].capacity == 5
    save(admin, **API, who="client")
    assert Policy.objects.get().pk == policy.pk
    assert limits.list_resources()["api"][0].capacity == 100


def test_a_limit_does_not_become_another_one_that_exists(admin: Client) -> None:
    limits.set_resource_limits("api", ["calls=5/min"])
    other = limits.set_resource_limits("db", ["calls=6/min"])
    response = post(admin, f"{URL}?policy={other.pk}", **API, who="client", seen="x")
    seen = response.context["effect"].seen
    response = post(admin, f"{URL}?policy={other.pk}", **API, who="client", seen=seen)
    assert "Edit them instead." in response.content.decode()
    assert limits.list_resources()["api"][0].capacity == 5


@pytest.mark.parametrize(
    ("fields", "warning"),
    [
        ({"target": "admin/"}, "Nothing has used the resource “admin/” so far"),
        ({"target": "/api/pong/"}, "No URL of this site matches “/api/pong/”."),
        ({"target": "api", "who": "entity", "entity": "ann"}, "No request has used the identifier “ann” so far"),
        ({"target": "api", "who": "entity", "entity": "Acm"}, "Did you mean: tenant:acme (Acme Inc.)?"),
    ],
)
def test_a_likely_misspelling_is_shown_before_saving(admin: Client, fields: Any, warning: str) -> None:
    Entity.objects.create(identifier="tenant:acme", name="Acme Inc.")
    limits.set_resource_limits("api", ["calls=5/min"])
    used("api", "user:7", "call_count", 1)
    assert warning in described(admin, **fields)
    assert warning in post(admin, **fields).content.decode()
    assert Policy.objects.count() == 1
    assert not Endpoint.objects.exists()
    page = save(admin, **fields).url
    assert Policy.objects.count() == 2
    assert warning not in described(admin, page, **fields)


@pytest.mark.parametrize(
    "fields", [{"target": "/admin/*"}, {"who": "entity", "entity": "user:7"}, {"who": "entity", "entity": "key:*"}]
)
def test_limit_of_known_names_is_saved_immediately(admin: Client, fields: Any) -> None:
    used("other", "user:7", "call_count", 1)
    assert post(admin, **fields).status_code == 302


def test_preview_while_typing_saves_nothing(admin: Client) -> None:
    said = described(admin, **API, who="client")
    assert "Each client may make 100 requests per minute on api." in said
    assert "matches 1 URL" in described(admin, target="/api/ping/", number_1="")
    assert not Policy.objects.exists()
    checked = post(admin, **API, who="client", _check="1").content.decode()
    assert "Each client may make 100 requests per minute on api." in checked
    assert not Policy.objects.exists()


def test_the_effect_on_recorded_usage_is_shown(admin: Client) -> None:
    limits.set_resource_limits("api", ["calls=50/min"])
    used("api", "user:7", "call_count", 9, hours_ago=2)
    used("api", "key:7", "call_count", 9, hours_ago=2)
    assert "Last 7 days: 1 client would have been rejected." in described(admin, **API, number_1="3", per_1="h")
    assert "Last 7 days: 1 client would have been rejected." in described(admin, **API, number_1="3", per_1="day")
    assert "Last 7 days: no client would have been rejected." in described(admin, **API, number_1="300", per_1="h")
    bursts = "Last 7 days: no hour was above it. Short bursts are not seen: use “Try first”."
    for number in ("3", "50"):
        assert bursts in described(admin, **API, number_1=number, per_1="min")
    unknown = "Last 7 days: nothing was recorded, so “Try first” shows what it would reject."
    assert unknown in described(admin, target="/api/ping/")
    assert unknown in described(admin, **API, who="address"), "others were counted on api"
    assert unknown in described(admin, **API, unit_1="tokens"), "another unit was counted"
    assert unknown in described(admin, **API, who="entity", entity="user:8")
    assert unknown in described(admin, target="mail", who="together")


def test_boosts_that_are_lower_than_a_limit_are_named(admin: Client) -> None:
    limits.set_resource_limits("api", ["calls=10/min"])
    tomorrow = timezone.now() + timedelta(days=1)
    limits.boost("user:7", "api", 2, tomorrow, "help")
    limits.boost("key:8", "api", 9, tomorrow, "help")
    lower = "These clients have a boost that is lower than this limit, until it ends: user:7."
    assert lower in described(admin, **API, who="client", number_1="30", unit_1="calls")
    assert "user:7, key:8." in described(admin, **API, who="client", number_1="99", unit_1="calls")
    assert lower in described(admin, **API, who="user", number_1="99", unit_1="calls")
    for fields in ({"number_1": "19"}, {"number_1": "30", "who": "together"}, {"number_1": "19", "per_1": "h"}):
        assert "lower than this limit" not in described(admin, **API | {"who": "client", "unit_1": "calls"} | fields)


def test_boosts_of_resources_are_not_compared_with_a_total(admin: Client) -> None:
    limits.set_system_limits(["calls=10/min"])
    limits.boost("user:7", None, 2, timezone.now() + timedelta(days=1), "help")
    assert "lower than this limit" in described(admin, target="/api/ping/", number_1="30", unit_1="calls")
    assert "lower than this limit" not in described(admin, **EVERYTHING, number_1="30", unit_1="calls")


@pytest.mark.parametrize(("who", "is_said"), [("user", True), ("client", False), ("address", False)])
def test_a_limit_of_each_user_says_how_others_count(admin: Client, who: str, *, is_said: bool) -> None:
    said = described(admin, target="/api/ping/", who=who)
    assert ("Requests without a log-in count by IP address." in said) == is_said


def test_code_only_resources_and_names_of_clients_are_suggested(admin: Client) -> None:
    Entity.objects.create(identifier="tenant:acme", name="Acme Inc.")
    used("reports.export", "user:7", "call_count", 1)
    limited("only.in-code")
    page = admin.get(URL).content.decode()
    assert '<option value="reports.export">' in page
    assert '<option value="only.in-code">' in page
    assert '<option value="/api/ping/">' in page
    assert "Acme Inc. (tenant:acme)" in described(admin, who="entity", entity="Acme I")


class Reports(APIView):
    throttle_scope = "reports.scope"


urlpatterns = [*site_urls, path("api/reports/", Reports.as_view())]


@pytest.mark.urls(__name__)
def test_scopes_of_throttles_in_code_are_suggested(admin: Client) -> None:
    page = admin.get(URL).content.decode()
    assert '<option value="reports.scope">' in page
    assert '<option value="/api/reports/">' in page


def test_a_total_for_a_team_counts_its_members_unless_disabled(admin: Client) -> None:
    team = Entity.objects.create(identifier="team:x")
    for number in range(3):
        Entity.objects.create(identifier=f"user:{number}", parent=team, cascade=number == 0)
    fields = {**EVERYTHING, "who": "team", "entity": "team:x"}
    said = described(admin, **fields)
    assert (
        "team:x has 3 members: user:0, user:1, user:2. The use of 2 of them does not count for it now, and will."
        in said
    )
    assert admin.get(f"{URL}?entity=team:x&who=team").context["form"]["counts_members"].value() is True
    save(admin, **fields, counts_members="")
    assert team.children.filter(cascade=True).count() == 1
    address = f"{URL}?policy={Policy.objects.get().pk}"
    page = admin.get(address)
    assert page.context["form"]["counts_members"].value() is False
    assert "team:x may make 100 requests per minute over all resources together." in page.content.decode()
    save(admin, address, **fields)
    assert team.children.filter(cascade=True).count() == 3


def test_a_team_gets_its_members_with_its_limit(admin: Client) -> None:
    Entity.objects.create(identifier="key:ci", name="CI")
    fields = {**EVERYTHING, "who": "team", "entity": "team:x", "number_1": "1M", "unit_1": "tokens", "per_1": "day"}
    assert "team:x has no members, so only its own requests count: enter its members." in described(admin, **fields)
    blank = admin.get(URL).content.decode()
    for name in ("entity", "members", "counts_members", "plan"):
        assert f'id="id_{name}_helptext"' in blank
    assert post(admin, **fields).context["is_unread"]
    fields["members"] = "key:ci, key:web\r\n  key:web \n"
    said = described(admin, **fields)
    assert "Added as members: key:ci (CI), key:web." in said
    assert "has no members" not in said
    page = save(admin, **fields).url
    members = Entity.objects.filter(parent__identifier="team:x", cascade=True)
    assert {*members.values_list("identifier", flat=True)} == {"key:ci", "key:web"}
    assert "All members of team:x together may use 1,000,000 tokens per day" in admin.get(page).content.decode()
    admin.post(page, {"_undo": admin.get(page).context["undo"]})
    assert [*Entity.objects.values_list("identifier", "name", "parent")] == [("key:ci", "CI", None)]


def three_users() -> list[Client]:
    """Three users who are logged in, and who the team `acme` is to have as members."""
    clients = []
    for name in ("amber", "basil", "cedar"):
        clients.append(Client())
        clients[-1].force_login(User.objects.create_user(name))
    return clients


TOTAL_OF_ACME = {"target": "", "who": "team", "entity": "acme", "members": "amber\nbasil\ncedar", "number_1": "5"}
LIFTED = "The limits of each client do not apply to acme as a whole."


def statuses(clients: list[Client], path: str = "/api/ping/") -> list[int]:
    """The statuses of one request of each client."""
    return [client.get(path).status_code for client in clients]


@pytest.mark.urls(__name__)
@pytest.mark.parametrize("who", ["user", "client"])
def test_members_of_a_new_team_share_its_total_and_not_the_limits_of_each_client(admin: Client, who: str) -> None:
    users = three_users()
    save(admin, target="/api/ping/", who=who, number_1="2")
    assert LIFTED in described(admin, **TOTAL_OF_ACME)
    page = save(admin, **TOTAL_OF_ACME).url
    assert LIFTED in shown(admin, page)
    amber, basil, cedar = users
    assert statuses([amber, basil, cedar, amber]) == [200] * 4  # as one client, they could make 2
    assert statuses([amber]) == [429]  # each member keeps its own limit
    assert statuses([basil, cedar]) == [200, 429]  # 5 for the team
    link = limits.explain("api", entity="acme").chain[0]
    assert (link.verdicts[0].policy.effect, link.verdicts[0].status) == ("unlimited", "counts")


@pytest.mark.urls(__name__)
def test_members_of_a_team_share_the_limits_of_each_client_where_that_is_chosen(admin: Client) -> None:
    amber, basil, cedar = three_users()
    save(admin, target="/api/ping/", number_1="2")
    said = described(admin, **TOTAL_OF_ACME, lifts_each="")
    assert LIFTED not in said
    assert "Other limits of each client apply to acme as a whole, as to one client." in said
    save(admin, **TOTAL_OF_ACME, lifts_each="")
    assert not Policy.objects.filter(effect="unlimited").exists()
    assert statuses([amber, basil, cedar]) == [200, 200, 429]


def test_a_team_without_the_limits_of_each_client_is_undone_as_a_whole(admin: Client) -> None:
    three_users()
    page = save(admin, **TOTAL_OF_ACME, reason="one contract").url
    lifting = Policy.objects.get(effect="unlimited")
    assert (lifting.entity.identifier, lifting.resource, lifting.reason) == ("acme", None, "one contract")
    assert AuditEvent.objects.filter(object_type="policy", object_id=lifting.pk).count() == 1
    admin.post(page, {"_undo": admin.get(page).context["undo"]})
    assert not Policy.objects.exists()
    assert not Entity.objects.filter(identifier="acme").exists()


def test_a_change_of_a_total_keeps_lifts_or_restores_the_limits_of_each_client(admin: Client) -> None:
    three_users()
    save(admin, **TOTAL_OF_ACME)
    address = f"{URL}?policy={Policy.objects.get(effect='limits').pk}"
    assert admin.get(address).context["form"]["lifts_each"].value() is True
    fields = {**TOTAL_OF_ACME, "members": ""}
    for ticked, count in (("on", 1), ("", 0), ("on", 1)):
        save(admin, address, **fields, lifts_each=ticked)
        assert Policy.objects.filter(effect="unlimited").count() == count
        assert admin.get(address).context["form"]["lifts_each"].value() is bool(count)


@pytest.mark.parametrize("has_own", [True, False])
def test_a_team_that_exists_keeps_the_limits_that_it_has(admin: Client, *, has_own: bool) -> None:
    team = Entity.objects.create(identifier="acme")
    Entity.objects.create(identifier="user:70", parent=team, cascade=not has_own)
    if has_own:
        limits.set_entity_limits("acme", ["calls=60/min"])
    fields = {**TOTAL_OF_ACME, "members": ""}
    assert LIFTED not in described(admin, **fields)
    save(admin, **fields)
    assert not Policy.objects.filter(effect="unlimited").exists()


def test_the_page_of_a_limit_of_a_team_shows_its_members(admin: Client) -> None:
    three_users()
    page = save(admin, **TOTAL_OF_ACME).url
    users = User.objects.in_bulk(["amber", "basil", "cedar"], field_name="username")
    names = ", ".join(f"user:{users[name].pk} ({name})" for name in ("amber", "basil", "cedar"))
    assert f'<span class="limits-note">Members: {names}</span>' in shown(admin, page)
    assert "Members:" not in shown(admin, URL)
    assert "A name of your choice, such as “tenant:acme”; a new one is created." in shown(admin, URL)


def test_the_form_names_totals_of_each_client_that_still_apply_to_a_team(admin: Client) -> None:
    three_users()
    still = "Those over all resources together still apply to acme as to one client."
    assert still not in described(admin, **TOTAL_OF_ACME)
    limits.set_system_limits(["calls=500/min"], counted="total")
    assert still in described(admin, **TOTAL_OF_ACME)


@pytest.mark.parametrize("team", ["team:x", "acme"])
def test_a_team_that_has_no_members_so_far_is_a_team_when_it_is_opened_again(admin: Client, team: str) -> None:
    page = save(admin, **EVERYTHING, who="team", entity=team).url
    assert admin.get(page).context["form"]["who"].value() == "team"
    later = f"{URL}?policy={Policy.objects.get().pk}"
    assert admin.get(later).context["form"]["who"].value() == ("team" if team == "team:x" else "entity")


def test_the_members_of_a_large_team_are_named_as_far_as_they_are_few(admin: Client) -> None:
    team = Entity.objects.create(identifier="team:x")
    for number in range(12):
        Entity.objects.create(identifier=f"key:{number:02}", name="CI", parent=team, cascade=True)
    said = described(admin, **EVERYTHING, who="team", entity="team:x")
    assert "team:x has 12 members: key:00 (CI), key:01 (CI)," in said
    assert "key:09 (CI), …." in said


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ("key:other", "“key:other” is a member of team:y: remove it there first."),
        ("key:*", "“key:*” cannot be a member of team:x."),
        ("team:x", "“team:x” cannot be a member of team:x."),
        ("team:y", "An entity cannot be its own ancestor"),
        ("\n".join(f"user:{number}" for number in range(101)), "Add at most 100 members at once."),
    ],
)
def test_invalid_members_are_named_at_their_field(admin: Client, members: str, problem: str) -> None:
    above = Entity.objects.create(identifier="team:y")
    Entity.objects.create(identifier="key:other", parent=above)
    Entity.objects.create(identifier="team:x", parent=above)
    fields = {**EVERYTHING, "who": "team", "entity": "team:x", "members": members}
    response = post(admin, **fields)
    if response.context["effect"] is not None:
        response = post(admin, **fields, seen=response.context["effect"].seen)
    assert problem in str(response.context["form"].errors["members"])
    assert not Policy.objects.exists()
    assert Entity.objects.count() == 3


def test_members_need_the_permission_to_change_clients(client: Client) -> None:
    user = User.objects.create_user("staff", is_staff=True)
    names = ["add_policy", "add_resource", "add_endpoint", "register_entity"]
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    client.force_login(user)
    fields = {**EVERYTHING, "who": "team", "entity": "team:x", "members": "key:ci"}
    assert post(client, **fields).status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="change_entity"))
    assert post(client, **fields).status_code == 302


REPLACING: dict[str, tuple[dict[str, Any], str]] = {
    "a_resource": (API | {"who": "client"}, "900 tokens per hour (Each client, on each resource)"),
    "users": (API, "7 connections at the same time (Each client on api)"),
    "one_client": (ACME, "7 connections at the same time (Each client on api)"),
    "a_plan": (API | {"who": "plan", "plan": "new"}, "7 connections at the same time (Each client on api)"),
    "a_url": ({"target": "/api/ping/"}, "900 tokens per hour (Each client, on each resource)"),
    "a_total": (
        EVERYTHING | {"who": "entity", "entity": "user:7"},
        "5,000 pages per hour (Each user, over all resources together)",
    ),
    "for_a_time": (ACME | {"ends": "friday"}, "7 connections at the same time (Each client on api)"),
}


@pytest.mark.parametrize("name", REPLACING)
def test_replaced_limits_are_listed_before_saving_and_kept_on_request(admin: Client, name: str) -> None:
    fields, others = REPLACING[name]
    limits.set_system_limits("600/min tokens=900/h")
    limits.set_entity_limits("user:*", "calls=6000/h pages=5000/h", counted="total")
    if name != "a_resource":
        limits.set_resource_limits("api", "60/min connections=7")
    said = described(admin, **fields)
    assert f"These limits no longer apply to them, because it replaces broader ones completely: {others}" in said
    first = post(admin, **fields)
    assert first.context["is_unread"]
    page = post(admin, **fields, keep="on", seen=first.context["effect"].seen).url
    made = Policy.objects.latest("pk")
    assert [*dropped_keys(made)] == []
    copies = str([limit_in_words(limit.definition()) for limit in made.limits.all()])
    assert made.extends is not (others.partition(" (")[0] in copies)
    admin.post(page, {"_undo": admin.get(page, follow=True).context.get("undo") or ""})
    seen = post(admin, **fields).context["effect"].seen
    post(admin, **fields, seen=seen)
    assert [key for key, _level in dropped_keys(Policy.objects.latest("pk"))], "without the box they are replaced"


def test_a_billing_month_is_saved_with_the_billing_date_of_its_client(admin: Client, settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    fields = {**ACME, "per_1": "billing-month"}
    assert "tenant:acme has no billing date of its own" in described(admin, **fields)
    assert "has no billing date" not in described(admin, **fields, billing_date="2026-01-15")
    page = save(admin, **fields, billing_date="2026-01-15").url
    client = Entity.objects.get(identifier="tenant:acme")
    assert client.billing_from == datetime(2026, 1, 14, 23, tzinfo=UTC)
    assert str(admin.get(page).context["form"]["billing_date"].value()) == "2026-01-15"
    at = datetime(2026, 1, 15, 9, tzinfo=UTC)
    limits.set_entity("tenant:acme", billing_from=at)
    save(admin, page, **fields, billing_date="2026-01-15")
    save(admin, page, **fields, billing_date="")
    save(admin, page, **fields | {"per_1": "month"}, billing_date="2026-01-20")
    client.refresh_from_db()
    assert client.billing_from == at, "the same day, no day, and a calendar month leave it as it is"
    form = post(admin, **API, per_1="billing-month", billing_date="2026-01-15").context["form"]
    assert "Choose one client or a team" in str(form.errors["billing_date"])


def test_a_plan_is_made_with_its_groups(admin: Client) -> None:
    group, other = Group.objects.create(name="free"), Group.objects.create(name="gold")
    PlanGroup.objects.create(plan=Plan.objects.create(name="gold"), group=other)
    fields = {**EVERYTHING, "who": "plan", "plan": "free", "number_1": "1,000", "per_1": "day"}
    assert "The plan “free” will be created." in described(admin, **fields)
    response = post(admin, **fields, groups=[group.pk, other.pk])
    assert "The group “gold” is on the plan “gold”" in str(response.context["form"].errors["groups"])
    page = save(admin, **fields, groups=[group.pk]).url
    assert "1,000 requests per day over all resources together. It is the plan of the user groups: free." in shown(
        admin, page
    )
    assert str(Policy.objects.get()) == "plan free in total"
    assert PlanGroup.objects.get(group=group).plan.name == "free"


def test_that_groups_can_be_on_a_plan_is_said_also_without_any(admin: Client) -> None:
    sentence = "The users of a group can be on a plan: this site has no groups so far."
    assert sentence in shown(admin, URL)
    Group.objects.create(name="free")
    assert sentence not in shown(admin, URL)


def test_groups_are_taken_off_a_plan_where_its_limit_is_changed(admin: Client) -> None:
    first, second = (Group.objects.create(name=name) for name in ("free", "trial"))
    plan = Plan.objects.create(name="free")
    for group in (first, second):
        PlanGroup.objects.create(plan=plan, group=group)
    policy = limits.set_plan_limits("free", "calls=1000/day", counted="total")
    fields = {**EVERYTHING, "who": "plan", "plan": "free", "number_1": "900", "per_1": "day"}
    page = f"{URL}?policy={policy.pk}"
    assert admin.get(page).context["form"]["groups"].value() == [first.pk, second.pk]
    save(admin, **fields | {"number_1": "950"})
    assert PlanGroup.objects.count() == 2, "a new limit of the plan leaves its groups"
    page = save(admin, page, **fields, groups=[second.pk]).url
    assert "It is no longer the plan of the user groups: free." in shown(admin, page)
    assert [row.group for row in plan.groups.all()] == [second]


@pytest.mark.parametrize(
    "fields",
    [
        {"target": "/api/ping/"},
        {"target": "/api/ping/", "shadow": "1"},
        {"target": "/api/ping/", "who": "plan", "plan": "free"},
        {"target": "api"},
        {"target": "", "who": "team", "entity": "team:x"},
    ],
)
def test_saved_limit_is_undone(admin: Client, fields: Any) -> None:
    Entity.objects.create(identifier="user:1", parent=Entity.objects.create(identifier="team:x"))
    models = (Policy, Endpoint, Resource, Entity, Plan)
    before = [model.objects.count() for model in models]
    page = save(admin, **fields).url
    token = admin.get(page).context["undo"]
    assert admin.post(page, {"_undo": token}).status_code == 302
    assert [model.objects.count() for model in models] == before
    assert not Entity.objects.filter(cascade=True).exists()


def test_a_change_of_a_rule_is_undone_as_a_whole(admin: Client) -> None:
    save(admin, target="/api/ping/", number_1="10")
    rule = Endpoint.objects.get()
    page = save(admin, f"{URL}?rule={rule.pk}", target="/api/ping/", number_1="20", shadow="1").url
    token = admin.get(page).context["undo"]
    admin.post(page, {"_undo": token})
    rule.refresh_from_db()
    policy = Policy.objects.get()
    assert rule.limits == "calls=10/min:sliding_window"
    assert (str(policy.limits.get()), policy.enforcement) == ("calls=10/min:sliding_window", "enforce")


def test_only_ten_minutes_are_for_undo(admin: Client) -> None:
    page = save(admin, **API).url
    token = admin.get(page).context["undo"]
    with time_machine.travel(timezone.now() + timedelta(seconds=601)):
        assert admin.get(page).context["undo"] == ""
        admin.post(page, {"_undo": token})
        assert Policy.objects.exists()
    forged = signing.dumps([1, 9], salt="another")
    admin.post(page, {"_undo": forged})
    assert Policy.objects.exists()


def test_users_without_permission_to_revert_get_no_undo_button(admin: Client, client: Client) -> None:
    user = User.objects.create_user("staff", is_staff=True)
    names = ["add_policy", "add_resource", "add_endpoint", "add_entity", "change_policy", "delete_policy"]
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    client.force_login(user)
    page = save(client, **API).url
    assert client.get(page).context["undo"] == ""
    assert client.post(page, {"_undo": "x"}).status_code == 403


def test_a_limit_is_tried_beside_the_one_in_force(admin: Client) -> None:
    policy = limits.set_resource_limits("api", ["calls=10/min"])
    response = save(admin, f"{URL}?policy={policy.pk}", **API, who="client", number_1="5", _try="1")
    candidate = Candidate.objects.get()
    assert (candidate.policy, candidate.limits) == (policy, "calls=5/min:sliding_window")
    page = admin.get(response.url).content.decode()
    assert "No request was evaluated so far" in page
    assert limits.list_resources()["api"][0].capacity == 10
    admin.post(response.url, {"confirmed": "1", "revert_percent": "10", "revert_minutes": "10"})
    assert limits.list_resources()["api"][0].capacity == 5


def test_a_limit_of_a_url_is_tried_and_promoted(admin: Client) -> None:
    save(admin, target="/api/ping/", number_1="10")
    rule = Endpoint.objects.get()
    response = save(admin, f"{URL}?rule={rule.pk}", target="/api/ping/", number_1="5", _try="1")
    admin.post(response.url, {"confirmed": "1", "revert_percent": "10", "revert_minutes": "10"})
    rule.refresh_from_db()
    assert rule.limits == "calls=5/min:sliding_window"
    assert str(Policy.objects.get().limits.get()) == "calls=5/min:sliding_window"
    limits.revert_candidate(Policy.objects.get())
    rule.refresh_from_db()
    assert rule.limits == "calls=10/min:sliding_window"


def test_a_new_limit_that_is_tried_is_only_reported(admin: Client) -> None:
    save(admin, **API, _try="1")
    assert Policy.objects.get().enforcement == "shadow"


def test_links_fill_the_form_in(admin: Client) -> None:
    assert admin.get(f"{URL}?template=llm").context["form"].initial["target"] == "llm"
    advice = "use LoginLimitBackend: see “Log-in throttling” in the documentation (docs/howto/logging-in.md)"
    assert advice in admin.get(f"{URL}?template=login").content.decode()
    assert advice not in admin.get(f"{URL}?template=llm").content.decode()
    assert admin.get(f"{URL}?entity=user:7").context["form"].initial["who"] == "entity"
    assert URL in admin.get("/admin/limits_app/").content.decode()


def test_users_without_permission_to_add_limits_cannot_open_the_form(client: Client) -> None:
    user = User.objects.create_user("staff", is_staff=True)
    client.force_login(user)
    assert client.get(URL).status_code == 403
    names = ["add_policy", "add_resource", "add_endpoint"]
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    assert client.get(URL).status_code == 200
    policy = limits.set_resource_limits("api", ["calls=5/min"])
    fields = {**API, "who": "client"}
    assert post(client, f"{URL}?policy={policy.pk}", **fields).status_code == 403
    seen = post(client, **fields).context["effect"].seen
    assert post(client, **fields, seen=seen).status_code == 403
    assert post(client, target="x", who="plan", plan="new").status_code == 403
    user.user_permissions.add(*Permission.objects.filter(codename__in=["change_policy", "delete_policy"]))
    assert post(client, f"{URL}?policy={policy.pk}", **fields).status_code == 302
    Entity.objects.create(identifier="user:1", parent=Entity.objects.create(identifier="team:x"))
    assert post(client, **API, who="team", entity="team:x").status_code == 403


def test_limit_without_a_sentence_is_opened_in_the_full_form(admin: Client) -> None:
    limits.set_resource_limits("e", ["calls=5/min"])
    for policy in (
        limits.grant_boost("user:9", "e", ["calls=50/min"], timezone.now() + timedelta(hours=1), "a sale"),
        limits.set_resource_limits("b", ["calls=5/min", "tokens=9/min"], shared=["tokens"]),
        limits.set_resource_limits("c", ["calls=5/min"], enforcement="off"),
        limits.set_resource_limits("d", ["calls=5/min"], rollout_percent=50),
        limits.set_system_limits(["calls=5/min"]),
    ):
        full = f"/admin/limits_app/policy/{policy.pk}/change/"
        assert admin.get(f"{URL}?policy={policy.pk}").url == full
        response = post(admin, target="c", who="client", seen="x")
    response = post(admin, target="c", who="client", seen=response.context["effect"].seen)
    assert "has settings that are under Advanced only" in response.content.decode()
    rule = Endpoint.objects.create(name="x", path="/x/", limits="5/min:shared")
    assert admin.get(f"{URL}?rule={rule.pk}").url == f"/admin/limits_app/endpoint/{rule.pk}/change/"
    assert admin.get(f"{URL}?rule=999").status_code == 404
    assert post(admin, _advanced="1").url == "/admin/limits_app/policy/add/"


def test_the_policy_of_a_rule_is_changed_at_the_rule_from_everywhere(admin: Client) -> None:
    save(admin, target="/api/ping/")
    rule, policy = Endpoint.objects.get(), Policy.objects.get()
    page = f"{URL}?rule={rule.pk}"
    assert admin.get(f"{URL}?policy={policy.pk}").url == page
    assert admin.get(f"/admin/limits_app/policy/{policy.pk}/change/").url == page
    rule.counted_by, rule.header = "header", "X-Tenant"
    rule.save()
    full = f"/admin/limits_app/endpoint/{rule.pk}/change/"
    assert admin.get(f"/admin/limits_app/policy/{policy.pk}/change/", follow=True).redirect_chain[-1][0] == full


def test_a_change_by_another_is_not_overwritten_unseen(admin: Client) -> None:
    policy = limits.set_resource_limits("api", ["calls=5/min"])
    page = admin.get(f"{URL}?policy={policy.pk}")
    fields = page.context["form"].initial | {"number_1": "9", "_version": page.context["version"]}
    limits.set_resource_limits("api", ["calls=6/min"])
    response = post(admin, f"{URL}?policy={policy.pk}", **fields)
    assert "has been changed since you opened the form" in response.content.decode()
    assert limits.list_resources()["api"][0].capacity == 6
    save(admin, f"{URL}?policy={policy.pk}", **fields | {"_version": response.context["version"]})
    assert limits.list_resources()["api"][0].capacity == 9


def test_a_number_is_the_same_in_every_language(admin: Client) -> None:
    policy = limits.set_resource_limits("api", ["calls=1500/min", "tokens=2500000/day@UTC"])
    with override("de"):
        address = f"{URL}?policy={policy.pk}"
        form = admin.get(address, headers={"accept-language": "de"}).context["form"]
        sent = form.initial | {"unit_1": "Anfragen"}
        assert admin.post(address, sent, headers={"accept-language": "de"}).status_code == 302
    assert [limit.notation() for limit in policy.limits.order_by("key")] == ["calls=1500/min", "tokens=2500k/day@UTC"]


def test_a_later_limit_of_a_url_replaces_the_limits_of_its_rule(admin: Client) -> None:
    save(admin, target="/api/ping/", who="entity", entity="user:7")
    save(admin, target="/api/ping/", who="client", number_1="10")
    rule = Endpoint.objects.exclude(limits="").get()
    save(admin, target="/api/ping/", who="client", number_1="20", ends="today")
    temporary = Policy.objects.exclude(valid_until=None).get()
    assert temporary.resource is not None
    assert temporary.resource.name == rule.limits_resource


def test_limit_that_changed_since_is_not_undone(admin: Client) -> None:
    page = save(admin, **API, who="client", number_1="10").url
    token = admin.get(page).context["undo"]
    limits.set_resource_limits("api", ["calls=7/min"])
    response = admin.post(page, {"_undo": token}, follow=True)
    assert "has been changed since" in response.content.decode()
    assert limits.list_resources()["api"][0].capacity == 7


def test_a_rule_that_became_a_policy_is_one_again(admin: Client) -> None:
    save(admin, target="/api/ping/", number_1="10")
    rule = Endpoint.objects.get()
    page = save(admin, f"{URL}?rule={rule.pk}", target="api", who="client").url
    admin.post(page, {"_undo": admin.get(page).context["undo"]})
    assert Endpoint.objects.get().limits == "calls=10/min:sliding_window"
    assert [str(policy.limits.get()) for policy in Policy.objects.all()] == ["calls=10/min:sliding_window"]


def test_broader_limits_that_are_kept_stay_kept_when_the_number_changes(admin: Client) -> None:
    limits.set_resource_limits("api", "60/min connections=7 pages=9/h", shared=["pages"])
    policy = limits.set_entity_limits("tenant:acme", "80/min", resource="api", extends=True)
    page = f"{URL}?policy={policy.pk}"
    assert "These broader limits apply too: 7 connections at the same time" in admin.get(page).content.decode()
    save(admin, page, **{**ACME, "number_1": "90"}, keep="on")
    policy.refresh_from_db()
    assert (policy.extends, str(policy.limits.get())) == (True, "calls=90/min:sliding_window")
    assert "no longer apply to them" in described(admin, page, **ACME)
    save(admin, page, **ACME)
    policy.refresh_from_db()
    assert not policy.extends


def test_a_limit_of_a_url_counts_certain_responses_and_blocks_for_a_time(admin: Client) -> None:
    fields = {"target": "/login/", "who": "address", "number_1": "5", "per_1": "h", "responses": "401, 403"}
    page = save(admin, **fields, block_for="10m").url
    rule = Endpoint.objects.get()
    assert (rule.responses, rule.block_for) == ("401,403", "10m")
    content = admin.get(page).content.decode()
    assert "Only responses with status 401, 403 count" in content
    assert "further requests are rejected for 10 min" in content


@pytest.mark.parametrize(
    "fields",
    [
        {"target": "api", "responses": "4xx"},
        {"target": "/api/", "who": "entity", "entity": "user:1", "block_for": "10m"},
        {"target": "/api/", "ends": "today", "responses": "4xx"},
        {"target": "/api/", "responses": "many"},
        {"target": "/api/", "block_for": "long"},
    ],
)
def test_conditions_are_for_limits_of_urls(admin: Client, fields: dict[str, str]) -> None:
    response = post(admin, **fields)
    assert response.status_code == 200
    assert {"responses", "block_for"} & response.context["form"].errors.keys()
    assert not Endpoint.objects.exists()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("/api/ping/", ""),
        ("/api/pnig/", "No URL of this site matches. Did you mean: /api/ping/?"),
        ("/nothing/like/this/", "No URL of this site matches."),
        ("api", ""),
    ],
)
def test_a_url_that_nothing_matches_is_named_at_its_field(admin: Client, target: str, said: str) -> None:
    text = described(admin, target=target)
    assert f'<span id="limits-unmatched">{said}' in text
    assert "matches 0 URLs" not in text
    if not said:
        assert '<span id="limits-unmatched"></span>' in text


@pytest.mark.parametrize("fields", [API, {"target": "/api/ping/"}])
def test_the_reason_of_a_limit_is_shown_when_it_is_changed(admin: Client, fields: Any) -> None:
    page = save(admin, **fields, reason="a fair share").url
    assert "Reason now: a fair share" in shown(admin, page)

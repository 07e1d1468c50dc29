"""The page of one client."""

from __future__ import annotations

import re
from datetime import timedelta
from urllib.parse import quote

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone
from freezegun import freeze_time
from pytest_django import DjangoAssertNumQueries

from limits_app import CallLimit, audit, limits
from limits_app.engine import limit_text
from limits_app.models import Endpoint, Entity, Plan, Policy
from tests.admin.browsing import address, said
from tests.admin.pages.snapshots import used
from tests.admin.pages.test_pages import words

WHO = "tenant:blue"


def shown(browser: Client, who: str = WHO) -> str:
    response = browser.get(page(who))
    assert response.status_code == 200
    return words(response)


def page(who: str = WHO) -> str:
    return f"{address('client')}?entity={quote(who, safe='')}"


def user_with(*permissions: str) -> Client:
    """The browser of somebody of the staff who has these permissions alone."""
    user = get_user_model().objects.create_user("support", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    browser = Client()
    browser.force_login(user)
    return browser


def test_everything_about_a_client_is_on_one_page(
    admin_client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    Plan.objects.create(name="gold")
    limits.set_entity("tenant:all", cascade=False)
    limits.set_entity(WHO, parent="tenant:all", cascade=True, plan="gold", reason="signed")
    limits.set_entity("key:7", parent=WHO)
    limits.set_resource_limits("mail", "calls=8/min")
    limits.set_entity_limits("tenant:all", "calls=100/min", resource="mail")
    used("mail", WHO, "call_count", 41, refused=3)
    for _ in range(8):
        limits.try_acquire("mail", entity=WHO)
    limits.try_acquire("mail", entity=WHO)
    with django_assert_max_num_queries(20):
        text = shown(admin_client)
    for part in (
        "At its limit on mail",
        "Plan: gold",
        "Member of team tenant:all ; its use counts for tenant:all too.",
        "mail: 8 requests per minute",
        "8 of 8 used, 0 left",
        "mail: 100 requests per minute of tenant:all",
        "key:7",
        "Added tenant:blue",
        "signed",
    ):
        assert part in text, f"{part!r} is not in: {text}"


def test_a_team_whose_members_have_sent_no_request_is_no_misspelled_client(admin_client: Client) -> None:
    limits.set_entity("acme")
    limits.set_entity("key:7", parent="acme")
    used("mail", "key:8", "call_count", 1)
    text = shown(admin_client, who="acme")
    assert "No member has sent a request so far." in text
    assert "check the spelling" not in text
    assert "its use does not count for acme." in shown(admin_client, who="key:7")
    used("mail", "key:7", "call_count", 1)
    assert "No member has sent" not in shown(admin_client, who="acme")


def test_a_client_without_a_row_has_a_page_too(admin_client: Client) -> None:
    limits.set_system_limits("calls=3/min")
    limits.acquire("mail", entity="ip:192.0.2.7").release()
    limits.set_resource_limits("mail", "calls=4/min")
    text = shown(admin_client, "ip:192.0.2.7")
    assert "Below its limits" in text
    assert "mail: 4 requests per minute" in text


def test_a_pattern_or_a_broken_identifier_is_no_client(admin_client: Client) -> None:
    for wrong in ("key:*", "\x00"):
        response = admin_client.get(page(wrong))
        assert response.status_code == 200
        assert response.context["problem"]


@pytest.mark.parametrize(
    ("ends", "more", "at_least", "at_most"),
    [
        ("hour", {}, timedelta(minutes=59), timedelta(minutes=61)),
        ("today", {}, timedelta(0), timedelta(days=1)),
        ("friday", {}, timedelta(0), timedelta(days=7)),
        ("date", {"last_day": (timezone.now() + timedelta(days=3)).date()}, timedelta(days=2), timedelta(days=5)),
    ],
)
def test_a_boost_multiplies_every_limit_of_the_client(
    admin_client: Client, ends: str, more: dict[str, object], at_least: timedelta, at_most: timedelta
) -> None:
    limits.set_resource_limits("mail", "calls=8/min")
    limits.set_resource_limits("maps", "calls=5/h")
    now = timezone.now()
    response = admin_client.post(page(), {"_boost": "1", "factor": "5", "ends": ends, **more})
    assert response.status_code == 302
    assert "5 times its limits until" in said(response)[0]
    assert limits.status("mail", entity=WHO).limits["call_count"]["capacity"] == 40
    assert limits.status("maps", entity=WHO).limits["call_count"]["capacity"] == 25
    for policy in Policy.objects.filter(extends=True):
        assert policy.valid_until is not None
        assert at_least <= policy.valid_until - now <= at_most
    assert "until" in shown(admin_client)


@pytest.mark.parametrize(
    ("chosen", "number", "message", "kept"),
    [
        ("call_count mail", "50", "tenant:blue may use 50 requests per minute until", "tokens=1000/min"),
        ("tokens mail", "2.5k", "tenant:blue may use 2,500 tokens per minute until", "calls=8/min"),
    ],
)
def test_a_boost_sets_one_limit_to_a_number(
    admin_client: Client, chosen: str, number: str, message: str, kept: str
) -> None:
    limits.set_resource_limits("mail", "calls=8/min tokens=1k/min")
    limits.set_resource_limits("maps", "calls=8/min")
    used("mail", WHO, "call_count", 1)
    offered = admin_client.get(page()).content.decode()
    assert f'<option value="{chosen}">' in offered
    response = admin_client.post(
        page(), {"_boost": "1", "factor": "2", "ends": "hour", "limit": chosen, "number": number}
    )
    assert message in said(response)[0]
    on_mail = {limit_text(limit.effective.limit) for limit in limits.explain("mail", entity=WHO).chain[0].limits}
    assert kept in on_mail
    assert len(on_mail) == 2
    assert Policy.objects.filter(entity__identifier=WHO).count() == 1


@pytest.mark.parametrize(
    ("chosen", "number", "problem"),
    [
        ("call_count mail", "7", "a boost only raises limits"),
        ("tokens mail", "7", "of its own on mail that could be boosted"),
        ("call_count mail", "many", "Write a number"),
        ("", "7", "This field is required."),
    ],
)
def test_a_number_that_is_no_boost_changes_nothing(
    admin_client: Client, chosen: str, number: str, problem: str
) -> None:
    limits.set_resource_limits("mail", "calls=8/min")
    used("mail", WHO, "call_count", 1)
    form = {"_boost": "1", "factor": "2", "ends": "hour", "limit": chosen, "number": number}
    response = admin_client.post(page(), form)
    assert response.status_code == 200
    assert problem in words(response)
    assert not Policy.objects.filter(entity__identifier=WHO).exists()


def test_errors_of_a_boost_are_shown_and_change_nothing(admin_client: Client) -> None:
    limits.set_resource_limits("mail", "calls=8/min")
    missing = admin_client.post(page(), {"_boost": "1", "factor": "2", "ends": "date", "last_day": ""})
    assert "This field is required." in words(missing)
    past = admin_client.post(page(), {"_boost": "1", "factor": "2", "ends": "date", "last_day": "2020-01-01"})
    assert "has ended already" in words(past)
    limits.delete_resource_limits("mail")
    nothing = admin_client.post(page(), {"_boost": "1", "factor": "2", "ends": "hour"})
    assert "nothing limits tenant:blue" in words(nothing)
    assert not Policy.objects.exists()


def test_an_ended_boost_stays_on_the_page(admin_client: Client) -> None:
    limits.set_resource_limits("mail", "calls=4/min")
    limits.set_entity_limits(WHO, "calls=5/min", resource="mail")
    with freeze_time(timezone.now() - timedelta(days=2)):
        admin_client.force_login(get_user_model().objects.get(is_superuser=True))
        admin_client.post(page(), {"_boost": "1", "factor": "5", "ends": "hour", "reason": "a fair"})
    admin_client.force_login(get_user_model().objects.get(is_superuser=True))
    text = shown(admin_client)
    assert "Ended in the last 7 days" in text
    assert "mail: 25 requests per minute a fair" in text
    assert "End now" not in text
    with freeze_time(timezone.now() + timedelta(days=6)):
        admin_client.force_login(get_user_model().objects.get(is_superuser=True))
        assert "Ended in the last 7 days" not in shown(admin_client)


def test_a_boost_that_was_ended_by_hand_is_among_the_changes(admin_client: Client) -> None:
    limits.set_entity_limits(WHO, "calls=5/min", resource="mail")
    admin_client.post(page(), {"_boost": "1", "factor": "5", "ends": "hour", "reason": "a fair"})
    key = Policy.objects.get(extends=True).pk
    admin_client.post(page(), {"_end_boost": str(key)})
    changes = shown(admin_client).partition("Last changes")[2]
    assert "Ended the boost of tenant:blue" in changes
    assert "Boosted tenant:blue until" in changes


def test_a_boost_ends_and_a_block_is_lifted_with_one_click(admin_client: Client) -> None:
    limits.set_resource_limits("mail", "calls=8/min")
    boost = limits.boost(WHO, "mail", 2, timezone.now() + timedelta(days=1), "a fair")
    assert "End now" in shown(admin_client)
    assert admin_client.post(page(), {"_end_boost": str(boost.pk)}).status_code == 302
    assert limits.status("mail", entity=WHO).limits["call_count"]["capacity"] == 8
    Entity.objects.filter(identifier=WHO).update(blocked=True)
    assert "Blocked" in shown(admin_client)
    assert admin_client.post(page(), {"_unblock": "1"}).status_code == 302
    assert limits.check("mail", entity=WHO).allowed


def test_a_boost_of_several_rows_is_one_with_one_button(admin_client: Client) -> None:
    limits.set_system_limits("calls=3/min")
    limits.set_resource_limits("mail", "calls=8/min")
    limits.set_resource_limits("maps", "calls=5/h")
    limits.set_resource_limits("free", [], effect="unlimited")
    before = Policy.objects.count()
    admin_client.post(page(), {"_boost": "1", "factor": "2", "ends": "hour", "reason": "a fair"})
    assert Policy.objects.count() == before + 4
    response = admin_client.get(page())
    text = words(response)
    assert text.count("End now") == 1
    assert "mail: 16 requests per minute" in text
    assert "6 requests per minute" in text
    assert "Boost of tenant:blue" in words(admin_client.get(address("overview_changelist")))
    assert response.content.decode().count("Boosted tenant:blue until") == 2, "one change, with its Undo"
    key = Policy.objects.filter(extends=True).latest("pk").pk
    assert "The boost of tenant:blue has ended." in said(admin_client.post(page(), {"_end_boost": str(key)}))
    assert Policy.objects.count() == before
    assert "End now" not in shown(admin_client)


def test_boosts_of_different_times_are_different_ones(admin_client: Client) -> None:
    limits.set_resource_limits("mail", "calls=8/min")
    limits.set_resource_limits("maps", "calls=5/h")
    end = timezone.now() + timedelta(days=1)
    first = limits.boost(WHO, "mail", 2, end, "a fair")
    limits.boost(WHO, "maps", 2, end, "a fair")
    assert shown(admin_client).count("End now") == 2
    admin_client.post(page(), {"_end_boost": str(first.pk)})
    assert [policy.resource.name for policy in Policy.objects.filter(extends=True) if policy.resource] == ["maps"]


def test_only_boosts_of_this_client_can_be_ended_here(admin_client: Client) -> None:
    limits.set_resource_limits("mail", "calls=8/min")
    other = limits.boost("tenant:red", "mail", 2, timezone.now() + timedelta(days=1), "a fair")
    own = limits.set_entity_limits(WHO, "calls=1/min", resource="mail")
    for key in (other.pk, own.pk, "x", ""):
        admin_client.post(page(), {"_end_boost": str(key)})
    assert Policy.objects.filter(pk__in=[other.pk, own.pk]).count() == 2


def test_the_plan_is_set_and_removed(admin_client: Client) -> None:
    Plan.objects.create(name="gold")
    admin_client.post(page(), {"_plan": "1", "plan": "gold"})
    assert Entity.objects.get(identifier=WHO).plan == Plan.objects.get()
    admin_client.post(page(), {"_plan": "1", "plan": ""})
    assert Entity.objects.get(identifier=WHO).plan is None
    unknown = admin_client.post(page(), {"_plan": "1", "plan": "iron"})
    assert "Select a valid choice" in words(unknown)


def test_each_button_needs_its_permission(admin_client: Client) -> None:
    limits.set_resource_limits("mail", "calls=8/min")
    boost = limits.boost(WHO, "mail", 2, timezone.now() + timedelta(days=1), "a fair")
    Plan.objects.create(name="gold")
    browser = user_with("view_policy")
    text = shown(browser)
    assert "mail: 16 requests per minute" in text
    for word in ("Multiply limits by", "Block ", "End now", "Last rejections", "Last changes", "Limit this"):
        assert word not in text
    for button in ({"_boost": "1", "factor": "2", "ends": "hour"}, {"_unblock": "1"}, {"_plan": "1", "plan": "gold"}):
        assert browser.post(page(), button).status_code == 403
    assert browser.post(page(), {"_end_boost": str(boost.pk)}).status_code == 403
    assert admin_client.post(page(), {"_nothing": "1"}).status_code == 302
    assert Client().get(page()).status_code == 302


def test_support_boosts_a_client_that_has_a_row_and_no_other(admin_client: Client) -> None:
    limits.set_resource_limits("mail", "calls=8/min")
    browser = user_with("view_policy", "boost_policy")
    assert browser.post(page(), {"_boost": "1", "factor": "2", "ends": "hour"}).status_code == 403
    Entity.objects.create(identifier=WHO)
    assert browser.post(page(), {"_boost": "1", "factor": "2", "ends": "hour"}).status_code == 302
    assert limits.status("mail", entity=WHO).limits["call_count"]["capacity"] == 16


def test_clients_are_found_by_identifier_name_and_user(admin_client: Client) -> None:
    user = get_user_model().objects.create_user("margaret", email="mh@example.org")
    limits.set_entity(WHO, name="Blue Ltd")
    limits.set_entity("tenant:bluebell")
    used("mail", "key:77", "call_count", 4)

    def found(text: str) -> list[str]:
        response = admin_client.get(address("client"), {"find": text})
        if response.status_code == 302:
            return [response["Location"]]
        return [one.identifier for one in response.context["found"]]

    assert found("tenant:bl") == [WHO, "tenant:bluebell"]
    for text, who in (
        (WHO, WHO),
        ("Blue L", WHO),
        ("bLUE l", WHO),
        ("Tenant:BLUEB", "tenant:bluebell"),
        ("marg", f"user:{user.pk}"),
        ("MH@example", f"user:{user.pk}"),
        ("key:7", "key:77"),
    ):
        assert found(text) == [page(who)], text
    assert found("nobody") == []
    assert found("") == []
    assert "margaret" in words(admin_client.get(page(f"user:{user.pk}")))


@pytest.mark.django_db(transaction=True)
def test_code_limits_are_shown(admin_client: Client) -> None:
    limits.acquire("reports", entity=WHO, default_limits=[CallLimit.per_hour(6)]).release()
    used("reports", WHO, "call_count", 1)
    text = shown(admin_client)
    assert "reports: 6 requests per hour" in text
    assert "set for everyone in code" in text


def test_a_limit_of_a_team_is_named_so_on_the_pages_of_its_members(admin_client: Client) -> None:
    team = Entity.objects.create(identifier="team:x")
    Entity.objects.create(identifier=WHO, parent=team, cascade=True)
    limits.set_entity_limits("team:x", "tokens=1000/day", counted="total")
    limits.set_entity_limits(WHO, "calls=5/h", resource="mail")
    text = shown(admin_client)
    assert "of team:x set for team:x over all resources" in text
    assert f"set for {WHO} on this resource" in text
    assert "set for team:x over all resources" in shown(admin_client, "team:x")
    explained = words(admin_client.get(address("explain"), {"resource": "mail", "entity": WHO}))
    assert "team:x over all resources" in explained
    assert "Team:x" not in explained
    assert "this client" not in explained


def test_the_tightest_limit_is_first_and_a_total_is_shown_once(admin_client: Client) -> None:
    limits.set_resource_limits("mail", "calls=8/min")
    limits.set_resource_limits("maps", "calls=4/h")
    limits.set_entity_limits(WHO, "calls=100/day", counted="total")
    for resource, times in (("mail", 2), ("maps", 4)):
        used(resource, WHO, "call_count", times)
        for _ in range(times):
            limits.try_acquire(resource, entity=WHO)
    response = admin_client.get(page())
    assert [(limit["name"], limit["bar"].used) for limit in response.context["limits"]] == [
        ("maps", "4"),
        ("mail", "2"),
        ("All resources together", "6"),
    ]
    html = response.content.decode()
    assert words(response).count("All resources together: 100 requests per day") == 1
    assert html.count('class="limits-binds"') == 1
    assert "At its limit on maps" in words(response)
    assert "limits-verdict--refused" in html


def test_a_limit_of_a_url_is_named_by_the_url(admin_client: Client) -> None:
    Endpoint.objects.create(name="reports", path="/api/reports/", limits="5/min")
    text = shown(admin_client)
    assert "/api/reports/: 5 requests per minute" in text
    assert "rule-reports" not in text


@pytest.mark.parametrize(
    ("mode", "state"),
    [
        ("off", "Not limited: all limits are switched off"),
        ("shadow", "Not rejected: all limits are in shadow mode"),
    ],
)
def test_the_page_shows_that_all_limits_are_switched_off(admin_client: Client, mode: str, state: str) -> None:
    limits.set_resource_limits("mail", "calls=8/min")
    limits.set_emergency(mode, reason="a fire")
    assert state in shown(admin_client)


def test_a_client_without_a_row_is_found_by_its_identifier(admin_client: Client) -> None:
    limits.set_resource_limits("mail", "calls=8/min")
    found = admin_client.get(f"{address('client')}?find=user:99")
    assert found.headers["location"] == f"{address('client')}?entity=user%3A99"
    assert "mail: 8 requests per minute" in shown(admin_client, "user:99")
    assert "No client, name or user begins with “Nina”" in words(admin_client.get(f"{address('client')}?find=Nina"))


def test_the_list_of_clients_has_a_search_before_the_first_row(admin_client: Client) -> None:
    used("mail", "user:7", "call_count", 3)
    response = admin_client.get(address("entity_changelist"))
    text = words(response)
    assert 'id="limits-find"' in response.content.decode()
    assert "No client has settings of its own so far." in text
    assert "user:7" in text
    searched = admin_client.get(f"{address('entity_changelist')}?q=user:99")
    assert "Show “user:99”" in words(searched)
    limits.set_entity(WHO)
    text = words(admin_client.get(address("entity_changelist")))
    assert "Every other client is found by its identifier too." in text
    assert "used something last" not in text


def test_a_boost_of_a_member_names_the_limits_that_its_team_keeps(admin_client: Client) -> None:
    limits.set_entity("acme")
    limits.set_entity(WHO, parent="acme", cascade=True)
    limits.set_resource_limits("mail", "calls=8/min")
    limits.set_entity_limits("acme", "calls=9/min", resource="mail")
    used("mail", WHO, "call_count", 1)
    kept = "Team acme, for which the use of this client counts, keeps its limits: 9 requests per minute (mail)."
    assert shown(admin_client).count(f"{kept} Boost acme") == 1
    response = admin_client.post(page(), {"_boost": "1", "factor": "2", "ends": "hour", "reason": "fair"}, follow=True)
    assert words(response).count(f"{kept} Boost acme") == 2
    limits.set_entity(WHO, cascade=False)
    assert "keeps its limits" not in shown(admin_client)


def test_undo_on_the_page_of_a_client_is_about_that_client_first(admin_client: Client) -> None:
    with audit.acting(actor="code", source="app"):
        for name in ("user:7", "user:8", "user:9"):
            limits.set_entity(name)
    response = admin_client.get(page("user:8"))
    [address] = re.findall(r'href="([^"]+/revert/[^"]*)"', response.content.decode())
    asked = words(admin_client.get(address))
    assert "Undo “Added user:8”?" in asked
    assert "Undo the whole save" in asked
    admin_client.post(address, {"reason": ""})
    assert {*Entity.objects.values_list("identifier", flat=True)} == {"user:7", "user:9"}

"""The menu: six entries, and the pages behind them."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from limits_app import limits
from tests.admin.browsing import address, changelist
from tests.admin.pages.test_pages import words


def user_with(*permissions: str, name: str = "support") -> Client:
    user = get_user_model().objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    browser = Client()
    browser.force_login(user)
    return browser


def menu_of(response: object) -> list[str]:
    """The labels of the entries, and then of the tabs, as a page shows them."""
    html = response.content.decode()  # type: ignore[attr-defined]
    found = re.search(r'<nav class="limits-tabs".*?</nav>', html, re.DOTALL)
    assert found is not None
    return re.findall(r"<a [^>]*>([^<]*)</a>", found[0])


ENTRIES = ["Overview", "Limits", "Clients", "Activity", "Alerts", "Settings"]


@pytest.mark.parametrize(
    ("entry", "first", "tabs"),
    [
        ("limitsentry", "policy_changelist", ["Policies", "URL rules", "Plans", "Resources", "Prices", "Trials"]),
        ("clientsentry", "entity_changelist", ["All clients", "Effective limits"]),
        ("activityentry", "denial_changelist", ["Rejections", "Usage", "Live", "Audit log"]),
        ("alertsentry", "alertrule_changelist", ["Alert rules", "Alert log"]),
        ("settingsentry", "emergencyswitch_changelist", ["Emergency switch", "Exemptions", "Pools"]),
    ],
)
def test_an_entry_opens_its_first_page_and_shows_the_others(
    admin_client: Client, entry: str, first: str, tabs: list[str]
) -> None:
    response = admin_client.get(address(f"{entry}_changelist"))
    assert response["Location"] == address(first)
    assert menu_of(admin_client.get(address(first))) == [*ENTRIES, *tabs]


def test_the_index_names_the_entries_alone(admin_client: Client) -> None:
    response = admin_client.get(reverse("admin:index"))
    listed = next(app for app in response.context["app_list"] if app["app_label"] == "limits_app")
    assert {model["name"] for model in listed["models"]} == {*ENTRIES}


def test_entry_opens_a_page_that_the_user_may_view() -> None:
    browser = user_with("view_plan", "view_auditevent")
    listed = browser.get(reverse("admin:index")).context["app_list"][0]["models"]
    assert {model["name"] for model in listed} == {"Limits", "Activity"}
    assert browser.get(address("limitsentry_changelist"))["Location"] == address("plan_changelist")
    assert menu_of(browser.get(address("auditevent_changelist"))) == ["Limits", "Activity"]
    assert browser.get(address("alertsentry_changelist")).status_code == 403


def test_every_page_shows_the_emergency_switch(admin_client: Client) -> None:
    policy = limits.set_resource_limits("mail", "calls=3/min")
    until = timezone.now() + timedelta(hours=1)
    pages = [address("policy_changelist"), address("policy_change", policy.pk), address("entity_changelist")]
    pages += [address("client") + "?entity=user:9", address("explain"), address("overview_changelist")]
    assert not any("All limits are" in words(admin_client.get(page)) for page in pages)
    limits.set_emergency("shadow", reason="a flood", until=until, actor="grace")
    for page in pages:
        text = words(admin_client.get(page))
        assert "All limits are in shadow mode: nothing is rejected. Switched by grace. Reason: a flood. Until" in text
    limits.set_emergency("enforce")
    assert "All limits are" not in words(changelist(admin_client, "policy"))


def test_the_first_page_of_the_admin_shows_the_banner_and_numbers_of_today(admin_client: Client) -> None:
    index = reverse("admin:index")
    text = words(admin_client.get(index))
    assert "Limits are enforced" in text
    assert "Allowed today" in text
    assert "All limits are off" not in text
    limits.set_emergency("off", reason="a flood", actor="grace")
    for page in (index, reverse("admin:app_list", args=["limits_app"])):
        response = admin_client.get(page)
        assert "All limits are off: nothing is limited. Switched by grace. Reason: a flood." in words(response)
        assert f'href="{address("emergencyswitch_changelist")}?mode=enforce"' in response.content.decode()


def test_the_first_page_of_the_admin_shows_numbers_to_those_who_may_see_them() -> None:
    index = reverse("admin:index")
    assert "Allowed today" not in words(user_with("view_plan").get(index))
    assert "limits-summary" not in user_with(name="guest").get(index).content.decode()


def test_the_page_of_the_app_has_its_menu(admin_client: Client) -> None:
    assert menu_of(admin_client.get(reverse("admin:app_list", args=["limits_app"]))) == ENTRIES

"""Actions: asked about first, done once, audited with their reason; what cannot be done is said."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from limits_app import limits
from limits_app.engine.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.models import AuditEvent, Entity, Policy, Resource
from limits_app.stores import registry
from tests.admin.browsing import act, address, said
from tests.opened import put_store
from tests.services.failing import FailingStore

TPM = RateLimit("tpm", 1000, 60)
committed = pytest.mark.django_db(transaction=True)
"""For what happens when the action is committed."""


def tomorrow() -> str:
    """As a browser sends it."""
    return f"{timezone.now() + timedelta(days=1):%Y-%m-%dT%H:%M}"


def grant(client: Client, **says: Any) -> Any:
    """Send the form of the page that grants boosts: one for `user:1`, unless it says something else."""
    form = {"whom": "entity", "entity": "user:1", "factor": "2", "until": tomorrow(), "reason": "launch"}
    return client.post(address("policy_boost"), form | says)


@pytest.fixture
def policy() -> Policy:
    """Of an entity that has used something."""
    found = limits.set_entity_limits("user:1", [TPM], resource="api")
    limits.acquire("api", entity="user:1", requested={"tpm": 400})
    return found


def used(entity: str | None = "user:1") -> Any:
    return limits.status("api", entity=entity).limits["tpm"]["used"]


def events(verb: str) -> list[AuditEvent]:
    return list(AuditEvent.objects.filter(verb=verb, source="admin"))


@pytest.mark.parametrize(
    ("action", "enforcement"),
    [("enable_policies", "enforce"), ("shadow_policies", "shadow"), ("disable_policies", "off")],
)
def test_policies_are_enforced_tried_or_switched_off(
    action: str, enforcement: str, admin_client: Client, policy: Policy
) -> None:
    Policy.objects.filter(pk=policy.pk).update(enforcement="off" if enforcement == "enforce" else "enforce")
    asked = act(admin_client, action, policy)
    assert "user:1 on api" in asked.content.decode()
    assert events("update") == []
    done = act(admin_client, action, policy, confirmed="yes", reason="a trial")
    policy.refresh_from_db()
    assert (done.status_code, policy.enforcement) == (302, enforcement)
    [event] = events("update")
    assert (event.actor, event.reason, event.after["enforcement"]) == ("admin", "a trial", enforcement)


@pytest.mark.parametrize("action", ["shadow_policies", "disable_policies"])
def test_the_confirmation_counts_policies_that_are_no_longer_enforced(
    action: str, admin_client: Client, policy: Policy
) -> None:
    tried = limits.set_system_limits([TPM], enforcement="shadow")
    said = "1 of them is enforced now and will no longer be enforced."
    assert said in act(admin_client, action, policy, tried).content.decode()
    assert "enforced now" not in act(admin_client, action, tried).content.decode()


@committed
def test_reset_forgets_the_use(admin_client: Client, policy: Policy) -> None:
    done = act(admin_client, "reset_state", policy, confirmed="yes", reason="sorry", token="t1")
    assert said(done) == ["Reset usage: done for 1 row."]
    assert used() == 0
    [event] = events("reset")
    assert (event.actor, event.reason, event.object_label) == ("admin", "sorry", "user:1 on api")


@committed
def test_credit_is_given_once_however_often_the_button_is_pressed(admin_client: Client, policy: Policy) -> None:
    for _ in range(2):
        act(admin_client, "top_up_state", policy, confirmed="yes", reason="sorry", key="tpm", amount="100", token="t1")
    assert used() == 300
    assert len(events("top_up")) == 1


@committed
def test_totals_are_reset_and_topped_up_for_entities_and_the_system(admin_client: Client) -> None:
    site = limits.set_system_limits([TPM], counted="total", shared=["tpm"])
    own = limits.set_entity_limits("user:1", [TPM], counted="total")
    plan = limits.set_plan_limits("pro", [TPM], counted="total")
    limits.set_resource_limits("api", [CallLimit(100, 60)])
    limits.acquire("api", entity="user:1", requested={"call_count": 1, "tpm": 400}, require_usage=False)
    why = {"confirmed": "yes", "reason": "sorry"}

    def used_in_total() -> list[object]:
        stats = limits.explain("api", entity="user:1", requested={"tpm": 1}).chain[0].limits
        return [one.used for one in stats if one.effective.limit.key == "tpm"]

    act(admin_client, "top_up_state", site, own, key="tpm", amount="100", **why)
    assert used_in_total() == [300, 300]
    act(admin_client, "reset_state", site, **why)
    assert used_in_total() == [300, 0]
    act(admin_client, "reset_state", Entity.objects.get(identifier="user:1"), **why)
    assert used_in_total() == [0, 0]
    done = act(admin_client, "reset_state", plan, **why)
    plan_words = "“Each member of “pro”, over all resources together”"
    assert f"{plan_words}: each entity has its own usage: choose entities" in said(done)


@committed
def test_entities_are_reset_on_the_chosen_resource_and_resources_for_shared_limits(
    admin_client: Client, policy: Policy
) -> None:
    entity, api = Entity.objects.get(), Resource.objects.get()
    assert "This field is required" in act(admin_client, "reset_state", entity, confirmed="yes").content.decode()
    act(admin_client, "reset_state", entity, confirmed="yes", reason="sorry", resource=api.pk)
    assert used() == 0
    limits.set_resource_limits("api", [TPM], shared=["tpm"])
    limits.acquire("api", entity="user:2", requested={"tpm": 400})
    assert used("user:2") == 400
    act(admin_client, "reset_state", api, confirmed="yes", reason="sorry")
    assert used("user:2") == 0


def test_a_client_with_a_policy_is_boosted(admin_client: Client, policy: Policy) -> None:
    done = act(admin_client, "boost_entities", policy, confirmed="yes", factor="3", until=tomorrow(), reason="launch")
    assert said(done) == ["Boost temporarily: done for 1 row."]
    boost = Policy.objects.get(valid_until__isnull=False)
    assert (boost.definitions()[0].capacity, boost.reason, boost.extends) == (3000, "launch", True)
    [event] = events("create")
    assert (event.actor, event.object_label) == ("admin", "entity user:1 on api")


def test_entities_get_more_of_the_resource_that_is_chosen(admin_client: Client, policy: Policy) -> None:
    entity, api = Entity.objects.get(), Resource.objects.get()
    says = {"factor": "2", "until": tomorrow(), "reason": "launch"}
    act(admin_client, "boost_entities", entity, confirmed="yes", resource=api.pk, **says)
    assert Policy.objects.get(valid_until__isnull=False).definitions()[0].capacity == 2000


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ({"factor": "1", "until": "2999-01-01T00:00"}, "greater than or equal to 1.01"),
        ({"factor": "2", "until": "2001-01-01T00:00"}, "The end must be in the future."),
        ({"factor": "2", "until": "soon"}, "Enter a valid date/time."),
        ({"factor": "NaN", "until": "2999-01-01T00:00"}, "Enter a number."),
        ({"factor": "2", "until": "2999-01-01T00:00", "reason": "a\0"}, "Null characters are not allowed."),
    ],
)
def test_a_boost_that_cannot_be_is_asked_for_again(
    says: dict[str, str], problem: str, admin_client: Client, policy: Policy
) -> None:
    assert problem in act(admin_client, "boost_entities", policy, confirmed="yes", **says).content.decode()
    assert Policy.objects.count() == 1


NOTHING = "Nothing was changed: deselect the rows with errors, or correct them first."


@committed
def test_an_action_changes_all_rows_or_none(admin_client: Client, policy: Policy) -> None:
    site = limits.set_system_limits([TPM])
    done = act(admin_client, "reset_state", policy, site, confirmed="yes", reason="sorry")
    assert said(done) == [
        "“Each client, on each resource”: usage is counted for each resource separately: "
        "choose policies with a resource",
        NOTHING,
    ]
    assert (used(), events("reset")) == (400, [])
    blocked = limits.set_resource_limits("api", [], effect="blocked")
    says = {"confirmed": "yes", "reason": "launch", "factor": "2", "until": tomorrow()}
    done = act(admin_client, "boost_entities", policy, blocked, site, **says)
    assert sorted(said(done)[2:]) == [NOTHING, "“Everyone on api”: resource api: it has no limits"]
    assert not Policy.objects.filter(valid_until__isnull=False).exists()


@pytest.mark.parametrize(
    ("limit", "says", "problem"),
    [
        (TPM, {"key": "rpm", "amount": "5"}, "No limit has the key rpm"),
        (ResourceLimit("slots", 5), {"key": "slots", "amount": "5"}, "slots cannot be topped up"),
    ],
)
def test_invalid_credit_shows_an_error(limit: Any, says: dict[str, str], problem: str, admin_client: Client) -> None:
    row = limits.set_entity_limits("user:1", [limit], resource="api")
    assert problem in said(act(admin_client, "top_up_state", row, confirmed="yes", reason="sorry", **says))[0]
    assert events("top_up") == []


def test_an_unavailable_store_is_not_reset_and_no_event_is_recorded(
    admin_client: Client, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = limits.set_entity_limits("user:2", [TPM], resource="api")
    failing = FailingStore(registry.store("default"))
    failing.down = True
    put_store(monkeypatch, failing)
    done = act(admin_client, "reset_state", policy, other, confirmed="yes", reason="sorry")
    assert done.status_code == 302
    assert (len(said(done)), said(done)[-1]) == (2, NOTHING)
    assert events("reset") == []


def test_enforced_policies_name_the_limits_that_they_drop(admin_client: Client) -> None:
    limits.set_system_limits([TPM, RateLimit("daily", 5, 60)])
    one, other = (limits.set_resource_limits(name, [TPM], enforcement="off") for name in ("api", "mail"))
    done = act(admin_client, "enable_policies", one, confirmed="yes")
    assert "these limits no longer apply: daily (system). Add them" in said(done)[-1]
    done = act(admin_client, "enable_policies", one, other, confirmed="yes")
    assert "no longer apply: resource api: daily (system), resource mail: daily (system). Add them" in said(done)[-1]
    assert said(act(admin_client, "disable_policies", one, confirmed="yes"))[-1] == "Disable: done for 1 row."


@pytest.mark.parametrize("reason", ["", "  "])
def test_a_boost_a_reset_and_credit_need_a_reason(reason: str, admin_client: Client, policy: Policy) -> None:
    says = {"factor": "2", "until": tomorrow(), "key": "tpm", "amount": "5", "reason": reason}
    actions = ("boost_entities", "reset_state", "top_up_state")
    asked = [act(admin_client, action, policy, confirmed="yes", **says) for action in actions]
    for answer in (grant(admin_client, resource=policy.resource_id, reason=reason), *asked):
        assert answer.context["form"].errors == {"reason": ["This field is required."]}
    assert (Policy.objects.count(), used()) == (1, 400)


def test_an_action_takes_so_many_rows_and_no_more(admin_client: Client) -> None:
    resources = Resource.objects.bulk_create([Resource(name=f"r{number}") for number in range(501)])
    policies = Policy.objects.bulk_create([Policy(resource=resource, effect="blocked") for resource in resources])
    done = act(admin_client, "disable_policies", *policies, confirmed="yes")
    assert said(done) == ["Select at most 500 rows for this action."]
    assert not Policy.objects.filter(enforcement="off").exists()


def test_a_boost_is_granted_on_a_page_of_its_own(admin_client: Client, policy: Policy) -> None:
    assert address("policy_boost") in admin_client.get(address("policy_changelist")).content.decode()
    page = admin_client.get(address("policy_boost")).content.decode()
    assert 'type="datetime-local"' in page
    limits.set_system_limits([TPM])
    done = grant(admin_client, entity="user:new", resource="")
    assert (done.status_code, done.headers["location"]) == (302, address("policy_changelist"))
    boosts = {str(one): one.definitions()[0].capacity for one in Policy.objects.exclude(valid_until=None)}
    assert boosts == {"entity user:new": 2 * TPM.capacity}
    assert re.fullmatch(r"Boosted from [\d :-]+ \(UTC\) until [\d :-]+ \(UTC\): .*\.", said(done)[0])
    assert {event.actor for event in events("create")} == {"admin"}


def test_all_clients_are_boosted_after_the_confirmation(admin_client: Client, policy: Policy) -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(60), ResourceLimit("slots", 4)], shared=["slots"])
    limits.set_resource_limits("mail", [TPM])
    limits.set_resource_limits("once", ["1/min"])
    limits.set_resource_limits("some", ["1/min", "slots=4"])
    limits.grant_boost("user:1", "api", [TPM], timezone.now() + timedelta(days=1), "before")
    says = {"whom": "everybody", "factor": "1.5", "reason": "holidays"}
    listed = grant(admin_client, **says).content.decode()
    assert "Everyone on api: 60 → 90 requests per minute, 4 → 6 slots at the same time" in listed
    assert "Each client on some: 1 request per minute stays as it is (rounded down), 4 → 6 slots" in listed
    assert "Each client on once will not change: this factor changes no limit: amounts are rounded down." in listed
    assert "user:1 on api will not change: a temporary policy applies in this time already." in listed
    assert not Policy.objects.filter(reason="holidays").exists()
    done = grant(admin_client, **says, listed="1")
    assert said(done)[0].startswith("3 policies are boosted until ")
    boosted = sorted(str(one) for one in Policy.objects.filter(reason="holidays"))
    assert boosted == ["resource api", "resource mail", "resource some"]
    assert limits.status("api", entity="user:9").limits["call_count"]["capacity"] == 90
    assert not limits.limit_set("api", "user:9").scoped[0].scope.shared


def test_a_boost_beyond_the_largest_amount_is_listed_as_impossible(admin_client: Client) -> None:
    limits.set_resource_limits("api", ["tokens=999G/min"])
    listed = grant(admin_client, whom="everybody").content.decode()
    assert "capacity must not be more than 10^12" in listed


def test_a_granted_boost_of_a_member_names_the_limits_that_its_team_keeps(admin_client: Client) -> None:
    limits.set_entity("acme")
    limits.set_entity("user:1", parent="acme", cascade=True)
    limits.set_resource_limits("api", [CallLimit(8, 60)])
    limits.set_entity_limits("acme", [CallLimit(9, 60)], resource="api")
    _granted, kept = said(grant(admin_client))
    text = "Team acme, for which the use of this client counts, keeps its limits: 9 requests per minute (api)."
    assert kept.startswith(text)


@pytest.mark.parametrize(
    ("whom", "problem"), [("entity", "entity"), ("resource", "resource"), ("plan", "plan"), ("everybody", "__all__")]
)
def test_boost_form_names_its_missing_field(whom: str, problem: str, admin_client: Client) -> None:
    assert grant(admin_client, whom=whom, entity="").context["form"].errors.keys() == {problem}


def test_a_boost_that_cannot_be_granted_is_explained(admin_client: Client, policy: Policy) -> None:
    assert grant(admin_client, resource=policy.resource_id).status_code == 302
    again = grant(admin_client, resource=policy.resource_id)
    assert "It overlaps with the policy that applies" in again.content.decode()
    empty = admin_client.post(address("policy_boost"), {})
    assert "Please correct the errors below." in empty.content.decode()


def test_a_boost_cannot_end_after_the_calendar_does(admin_client: Client, policy: Policy, settings: Settings) -> None:
    settings.TIME_ZONE = "America/Los_Angeles"  # where the year 9999 goes on when it is over in UTC
    says = {"factor": "2", "until": "9999-12-31T23:59", "reason": "for ever"}
    granting = grant(admin_client, resource=policy.resource_id, **says)
    for answer in (granting, act(admin_client, "boost_entities", policy, confirmed="yes", **says)):
        assert answer.context["form"].errors == {"until": ["Enter a valid date/time."]}
    assert Policy.objects.count() == 1


@pytest.mark.parametrize("key", ["abc", "\0", "9" * 23, "0"])
def test_a_resource_that_cannot_be_is_asked_for_again(key: str, admin_client: Client, policy: Policy) -> None:
    entity = Entity.objects.get()
    says = {"factor": "2", "until": tomorrow(), "key": "tpm", "amount": "5", "reason": "sorry"}
    actions = ("boost_entities", "reset_state", "top_up_state")
    asked = [act(admin_client, action, entity, confirmed="yes", resource=key, **says) for action in actions]
    for answer in (grant(admin_client, resource=key), *asked):
        assert answer.context["form"].errors.keys() == {"resource"}
    assert (Policy.objects.count(), used()) == (1, 400)


def test_dates_are_in_the_time_zone_that_the_form_names(admin_client: Client, policy: Policy, settings: Any) -> None:
    settings.TIME_ZONE, settings.LIMITS = "Europe/Berlin", settings.LIMITS | {"MAX_BOOST_DAYS": None}
    assert "In the time zone Europe/Berlin." in act(admin_client, "boost_entities", policy).content.decode()
    act(admin_client, "boost_entities", policy, confirmed="yes", reason="launch", factor="2", until="2999-01-01T13:00")
    until = Policy.objects.get(valid_until__isnull=False).valid_until
    assert until == datetime.fromisoformat("2999-01-01T12:00:00+00:00")


def test_a_confirmation_distinguishes_rows_with_the_same_subject(admin_client: Client) -> None:
    always = limits.set_resource_limits("api", [TPM])
    dated = limits.set_resource_limits("api", [TPM], weekly_hours="mon 09:00-17:00")
    asked = act(admin_client, "reset_state", always, dated).content.decode()
    assert "<li>Each client on api</li>" in asked
    assert "<li>Each client on api (mon 09:00-17:00 " in asked


def test_one_entity_is_erased_on_a_page_of_its_own(admin_client: Client, policy: Policy) -> None:
    entity, other = Entity.objects.get(), Entity.objects.create(identifier="user:2")
    assert said(act(admin_client, "erase_entity", entity, other)) == ["Select one row for this action."]
    page = act(admin_client, "erase_entity", entity)
    assert (page.status_code, page.headers["location"]) == (302, f"{address('entity_erase')}?entity=user%3A1")
    assert 'value="user:1"' in admin_client.get(page.headers["location"]).content.decode()
    kept = admin_client.post(address("entity_erase"), {"entity": "user:1", "reason": "asked"})
    assert "It is still configured: policy entity user:1 on api, client user:1." in said(kept)
    admin_client.post(address("entity_erase"), {"entity": "user:1", "with_policies": "on"})
    assert [*Entity.objects.values_list("identifier", flat=True)] == ["user:2"]
    assert said(admin_client.post(address("entity_erase"), {"entity": "user:1"}))[-1] == "No row has this identifier."
    wrong = admin_client.post(address("entity_erase"), {"entity": "user:*"})
    assert "is a pattern: name one entity" in wrong.content.decode()
    assert AuditEvent.objects.filter(verb="erase", source="admin", actor="admin").count() == 2

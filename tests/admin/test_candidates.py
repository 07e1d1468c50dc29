"""Candidates in the admin: results, and the buttons that enforce, discard and revert them."""

from __future__ import annotations

import pytest
from django.test import Client
from django.utils import timezone

from limits_app import CallLimit, limits, services
from limits_app.models import AuditEvent, Candidate, CandidateState, EvaluationCount, Policy
from tests.admin.browsing import address
from tests.admin.conftest import Visitor

pytestmark = pytest.mark.django_db


@pytest.fixture
def candidate() -> Candidate:
    """A candidate of the policy of a resource."""
    limits.set_resource_limits("api", [CallLimit.per_minute(60)])
    return services.set_candidate(Policy.objects.get(), "calls=30/min")


def test_a_candidate_is_tried_from_the_page_of_its_policy(admin_client: Client, visitor: Visitor) -> None:
    policy = limits.set_resource_limits("api", [CallLimit.per_minute(60)])
    page = admin_client.get(address("policy_change", policy.pk)).content.decode()
    assert f"{address('candidate_add')}?policy={policy.pk}" in page
    sent = {"policy": policy.pk, "limits": "calls=30/min", "percent": 100, "revert_minutes": 10}
    answer = admin_client.post(address("candidate_add"), sent)
    candidate = Candidate.objects.get()
    found = address("candidate_change", candidate.pk)
    assert answer["location"] == found
    assert found in admin_client.get(address("policy_change", policy.pk)).content.decode()
    candidate.delete()
    only_adding = visitor("add_candidate", "view_policy")  # who may not view candidates is led to the index
    assert only_adding.post(address("candidate_add"), sent)["location"] == "/admin/"


@pytest.mark.parametrize(("decision", "state"), [("promote", CandidateState.PROMOTED), ("discard", None)])
def test_a_button_decides_about_a_candidate(
    decision: str, state: CandidateState | None, candidate: Candidate, admin_client: Client
) -> None:
    where = address(f"candidate_{decision}", candidate.pk)
    for page in (address("candidate_changelist"), address("candidate_change", candidate.pk)):
        shown = admin_client.get(page).content.decode()
        assert f'formaction="{where}"' in shown
        assert f'formaction="{address("candidate_revert", candidate.pk)}"' not in shown
    answer = admin_client.post(where, {"revert_minutes": "10", "confirmed": "1"}, follow=True)
    done = "Enforced for “Each client on api”: " if decision == "promote" else "done for “Each client on api”"
    assert done in answer.content.decode()
    assert Candidate.objects.values_list("state", flat=True).first() == state


def test_promotion_is_confirmed_with_its_expected_rejections(candidate: Candidate, admin_client: Client) -> None:
    where = address("candidate_promote", candidate.pk)
    asked = admin_client.post(where)
    assert "No request was evaluated so far" in asked.content.decode()
    assert asked.context["form"]["revert_percent"].value() == 10
    rows = {"hour": timezone.now(), "policy_id": candidate.policy_id, "candidate_id": candidate.pk, "kind": "candidate"}
    EvaluationCount.objects.create(**rows, key="", evaluated=40, rejected=31)
    assert "It would have rejected 31 of 40 requests (77.5 %)." in admin_client.post(where).content.decode()
    wrong = admin_client.post(where, {"revert_percent": "0", "revert_minutes": "10", "confirmed": "1"})
    assert wrong.context["form"].errors.keys() == {"revert_percent"}
    assert Candidate.objects.get().state == CandidateState.TESTING
    admin_client.post(where, {"revert_percent": "20", "revert_minutes": "30", "confirmed": "1"})
    promoted = Candidate.objects.get()
    assert (promoted.state, promoted.revert_percent, promoted.revert_minutes) == (CandidateState.PROMOTED, 20, 30)
    assert AuditEvent.objects.first().reason == "It would have rejected 31 of 40 requests (77.5 %)."


def test_the_figures_of_a_trial_stay_when_it_is_enforced(candidate: Candidate, admin_client: Client) -> None:
    where = address("candidate_promote", candidate.pk)
    asked = admin_client.get(where).content.decode()
    assert "Trial of 30 requests per minute: Each client on api" in asked
    assert "The limit in force stays until you enforce this one." in asked
    rows = {"hour": timezone.now(), "policy_id": candidate.policy_id, "candidate_id": candidate.pk}
    EvaluationCount.objects.create(**rows, kind="candidate", key="", evaluated=40, rejected=31)
    for page in (address("candidate_changelist"), address("candidate_change", candidate.pk)):
        assert "31 of 40 (77.5 %)" in admin_client.get(page).content.decode()
    services.promote_candidate(candidate.policy)
    EvaluationCount.objects.create(**rows, kind="promoted", key="", evaluated=10, rejected=1)
    for page in (address("candidate_changelist"), address("candidate_change", candidate.pk)):
        shown = admin_client.get(page).content.decode()
        assert "31 of 40 (77.5 %)" in shown
        assert "1 of 10 (10 %)" in shown
    Candidate.objects.update(percent=25)
    assert "tried on 25 % of the clients" in admin_client.get(address("candidate_changelist")).content.decode()


def test_a_promoted_candidate_is_reverted_once(candidate: Candidate, admin_client: Client) -> None:
    services.promote_candidate(candidate.policy)
    where = address("candidate_revert", candidate.pk)
    assert f'formaction="{where}"' in admin_client.get(address("candidate_changelist")).content.decode()
    admin_client.post(where)
    assert Policy.objects.get().limits.get().definition().capacity == 60
    assert where not in admin_client.get(address("candidate_changelist")).content.decode()
    assert "set one first" in admin_client.post(where, follow=True).content.decode()


def test_trial_whose_limits_were_replaced_since_cannot_be_reverted(candidate: Candidate, admin_client: Client) -> None:
    pages = (address("candidate_changelist"), address("candidate_change", candidate.pk))
    services.promote_candidate(candidate.policy)
    assert all("replaced" not in admin_client.get(page).content.decode() for page in pages)
    limits.set_resource_limits("api", [CallLimit.per_minute(20)])
    where = address("candidate_revert", candidate.pk)
    for page in pages:
        shown = admin_client.get(page).content.decode()
        assert "replaced" in shown
        assert where not in shown
    assert "were changed since" in admin_client.post(where, follow=True).content.decode()
    assert Policy.objects.get().limits.get().definition().capacity == 20


def test_page_of_a_trial_offers_to_reload(candidate: Candidate, admin_client: Client) -> None:
    where = address("candidate_promote", candidate.pk)
    for asked in (admin_client.post(where), admin_client.get(where)):
        assert f'<a href="{where}">Reload</a>' in asked.content.decode()


def test_users_with_view_permission_only_get_no_buttons(candidate: Candidate, visitor: Visitor) -> None:
    client = visitor("view_candidate")
    for page in (address("candidate_changelist"), address("candidate_change", candidate.pk)):
        assert "formaction" not in client.get(page).content.decode()
    assert client.get(address("candidate_change", candidate.pk + 1)).status_code == 302

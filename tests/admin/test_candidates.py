"""Candidates in the admin: results, and the buttons that enforce, discard and revert them."""

from __future__ import annotations

import pytest
from django.test import Client

from limits_app import CallLimit, limits, services
from limits_app.models import Candidate, CandidateState, Limit, Policy, PoolMember
from tests.admin.browsing import address
from tests.admin.conftest import Visitor

pytestmark = pytest.mark.django_db


@pytest.fixture
def candidate() -> Candidate:
    """A candidate of the policy of a resource."""
    limits.set_resource_limits("api", [CallLimit.per_minute(60)])
    return services.set_candidate(Policy.objects.get(), "calls=30/min")


def test_a_candidate_is_tried_from_the_page_of_its_policy(admin_client: Client) -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(60)])
    policy = Policy.objects.get()
    page = admin_client.get(address("policy_change", policy.pk)).content.decode()
    link = f"{address('candidate_add')}?policy={policy.pk}"
    assert link in page
    sent = {"policy": policy.pk, "limits": "calls=30/min", "percent": 100, "revert_minutes": 10}
    answer = admin_client.post(address("candidate_add"), sent)
    found = address("candidate_change", Candidate.objects.get().pk)
    assert answer["location"] == found
    assert found in admin_client.get(address("policy_change", policy.pk)).content.decode()


def test_without_the_permission_to_view_candidates_the_index_follows(visitor: Visitor, candidate: Candidate) -> None:
    policy = candidate.policy
    candidate.delete()
    client = visitor("add_candidate", "view_policy")
    sent = {"policy": policy.pk, "limits": "calls=30/min", "percent": 100, "revert_minutes": 10}
    assert client.post(address("candidate_add"), sent)["location"] == "/admin/"


@pytest.mark.parametrize(("decision", "state"), [("promote", CandidateState.PROMOTED), ("discard", None)])
def test_a_button_decides_about_a_candidate(
    decision: str, state: CandidateState | None, candidate: Candidate, admin_client: Client
) -> None:
    where = address(f"candidate_{decision}", candidate.pk)
    for page in (address("candidate_changelist"), address("candidate_change", candidate.pk)):
        shown = admin_client.get(page).content.decode()
        assert f'formaction="{where}"' in shown
        assert f'formaction="{address("candidate_revert", candidate.pk)}"' not in shown
    assert "done for" in admin_client.post(where, follow=True).content.decode()
    assert Candidate.objects.values_list("state", flat=True).first() == state


def test_a_promoted_candidate_is_reverted_once(candidate: Candidate, admin_client: Client) -> None:
    services.promote_candidate(candidate.policy)
    where = address("candidate_revert", candidate.pk)
    assert f'formaction="{where}"' in admin_client.get(address("candidate_changelist")).content.decode()
    admin_client.post(where)
    assert Policy.objects.get().limits.get().capacity == 60
    assert where not in admin_client.get(address("candidate_changelist")).content.decode()
    assert "set one first" in admin_client.post(where, follow=True).content.decode()


def test_who_may_only_look_gets_no_buttons(candidate: Candidate, visitor: Visitor) -> None:
    client = visitor("view_candidate")
    for page in (address("candidate_changelist"), address("candidate_change", candidate.pk)):
        assert "formaction" not in client.get(page).content.decode()
    assert client.get(address("candidate_change", candidate.pk + 1)).status_code == 302


def test_a_pool_is_made_with_the_limits_of_its_members_as_text(admin_client: Client) -> None:
    sent = {
        "name": "regions",
        "load_balancing": "round_robin",
        "members-TOTAL_FORMS": 2,
        "members-INITIAL_FORMS": 0,
        **_member(0, "eu", "calls=5/min tokens=400k/min"),
        **_member(1, "us", ""),
    }
    assert admin_client.get(address("pool_add")).content.decode().count('name="members-') > 0
    assert admin_client.post(address("pool_add"), {**sent, "members-0-limits_text": "tokens=x"}).status_code == 200
    admin_client.post(address("pool_add"), sent)
    eu, us = PoolMember.objects.order_by("name")
    assert {one.key for one in eu.limits.all()} == {"call_count", "tokens"}
    page = address("pool_change", eu.pool_id)
    assert "calls=5/min tokens=400k/min" in admin_client.get(page).content.decode()
    sent |= {"members-INITIAL_FORMS": 2, "members-0-id": eu.pk, "members-1-id": us.pk}
    sent |= {"members-0-pool": eu.pool_id, "members-1-pool": eu.pool_id, "members-0-limits_text": "calls=6/min"}
    before = Limit.objects.get(member=eu, key="call_count").pk
    admin_client.post(page, {**sent, "members-0-limits_text": "calls=5/min tokens=400k/min"})
    assert Limit.objects.get(member=eu, key="call_count").pk == before
    admin_client.post(page, sent)
    assert [int(one.capacity) for one in Limit.objects.filter(member__pool=eu.pool_id)] == [6]


def _member(row: int, name: str, text: str) -> dict[str, object]:
    fields = {"name": name, "limits_text": text, "order": row, "weight": 1, "enabled": "on", "config": "{}"}
    return {f"members-{row}-{field}": value for field, value in fields.items()}

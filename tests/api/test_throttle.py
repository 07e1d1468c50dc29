"""How often the API may be asked, and that administrators get in while the store of the limits is down."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import RequestFactory
from pytest_django import Settings
from rest_framework.exceptions import Throttled
from rest_framework.request import Request
from rest_framework.test import APIClient

from limits_app import services
from limits_app.api import problems
from limits_app.api.throttle import RESOURCE
from limits_app.engine.limits import CallLimit
from limits_app.models import Entity, Policy
from limits_app.policies import resolver
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.api.site import ROOT
from tests.opened import put_store
from tests.services.failing import FailingStore, recover_by

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def store(clock: FakeClock, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> FailingStore:
    """The store of the site, which refuses everything while it is down."""
    settings.LIMITS = settings.LIMITS | {"ON_UNAVAILABLE": "block"}
    store = FailingStore(MemoryStore(clock=clock))
    put_store(monkeypatch, store)
    recover_by(clock, monkeypatch)
    return store


def system_policy(**fields: str) -> Policy:
    services.set_system_limits([CallLimit(5, 60)], **fields)  # type: ignore[arg-type]  # each test says which
    return Policy.objects.get(resource=None)


def test_limits_can_be_changed_while_the_store_is_unavailable(root: APIClient, store: FailingStore) -> None:
    policy = system_policy(on_unavailable="block")
    where = f"{ROOT}policies/{policy.pk}/"
    seen = root.get(where)["ETag"]
    store.down = True
    changed = root.patch(where, {"on_unavailable": "allow"}, format="json", headers={"If-Match": seen})
    assert (changed.status_code, changed.data["on_unavailable"]) == (200, "allow")
    assert changed["Cache-Control"] == "private, no-cache"
    assert services.try_acquire("anything", entity="user:1")


def test_an_administrator_gets_in_where_nothing_was_read_before_the_store_went_down(
    root: APIClient, store: FailingStore
) -> None:
    system_policy()
    resolver.clear()
    store.down = True
    assert [root.get(f"{ROOT}policies/").status_code for _ in range(20)] == [200] * 20


@pytest.mark.parametrize("is_about_the_caller", [False, True])
def test_a_policy_can_block_the_api(
    is_about_the_caller: bool, user: User, root: APIClient, store: FailingStore
) -> None:
    if is_about_the_caller:
        services.set_entity_limits(f"user:{user.pk}", [CallLimit(600, 60)], resource=RESOURCE, on_unavailable="block")
    else:
        services.set_resource_limits(RESOURCE, [CallLimit(600, 60)], on_unavailable="block")
    store.down = True
    refused = root.get(f"{ROOT}policies/")
    assert (refused.status_code, refused["Content-Type"]) == (503, "application/problem+json")
    assert int(refused["Retry-After"]) >= 1


def test_a_policy_on_the_api_that_is_not_obeyed_closes_nothing(root: APIClient, store: FailingStore) -> None:
    services.set_resource_limits(RESOURCE, [CallLimit(600, 60)], on_unavailable="block", enforcement="off")
    store.down = True
    assert root.get(f"{ROOT}policies/").status_code == 200


def test_request_that_is_never_admitted_names_the_limits(root: APIClient) -> None:
    services.set_resource_limits(RESOURCE, [CallLimit(0.5, 60)])
    refused = root.get(f"{ROOT}policies/")
    assert (refused.status_code, refused.data["violated-policies"]) == (422, ["call_count"])


def test_a_problem_that_this_app_did_not_cause_names_none() -> None:
    for context in ({}, {"request": Request(RequestFactory().get("/"))}):
        answered = problems.answer(Throttled(), context)
        assert answered is not None
        assert "violated-policies" not in answered.data


def test_blocks_stay_in_force_while_the_store_is_unavailable(user: User, root: APIClient, store: FailingStore) -> None:
    Entity.objects.create(identifier=f"user:{user.pk}", blocked=True)
    store.down = True
    response = root.get(f"{ROOT}policies/")
    assert (response.status_code, response.data["type"]) == (403, "urn:problem-type:limits-app:blocked")
    assert "Retry-After" not in response


@pytest.mark.parametrize("counted", ["each", "total"])
def test_an_administrator_lifts_a_block_of_everything(counted: str, root: APIClient) -> None:
    services.set_system_limits([], effect="blocked", counted=counted)
    assert not services.try_acquire("anything", entity="user:1")
    where = f"{ROOT}policies/{Policy.objects.get().pk}/"
    assert root.delete(where, headers={"If-Match": root.get(where)["ETag"]}).status_code == 204
    assert services.try_acquire("anything", entity="user:1")


@pytest.mark.parametrize("blocked", ["api", "caller", "caller on the api"])
def test_a_block_of_the_api_or_of_its_caller_rejects(blocked: str, user: User, root: APIClient) -> None:
    services.set_system_limits([], effect="blocked", counted="total")
    match blocked:
        case "api":
            services.set_resource_limits(RESOURCE, [], effect="blocked")
        case "caller":
            services.set_entity(user, blocked=True)
        case _:
            services.set_entity_limits(user, [], resource=RESOURCE, effect="blocked")
    assert root.get(f"{ROOT}policies/").status_code == 403

"""Arguments in several forms: limits as text, users as entities, usage that need not be reported; and readers."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.utils import timezone
from django.utils.functional import SimpleLazyObject

from limits_app import CallLimit, RateLimit, ResourceLimit, UsageNotReported, limited, limits
from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.errors import InvalidLimit, InvalidRequest
from limits_app.models import AuditEvent, Entity, Policy
from limits_app.testing import override_limits
from limits_app.workers.limits import PrivateSet

TEXT = "100/min db=3, tokens=1M/day:gcra"
LIMITS = (CallLimit(100, 60), ResourceLimit("db", 3), RateLimit("tokens", 10**6, 86_400, "gcra"))


@pytest.fixture
def user() -> User:
    return User.objects.create(username="ada")


@pytest.mark.parametrize("given", [TEXT, ["100/min", LIMITS[1], "tokens=1M/day:gcra"], LIMITS])
def test_limits_are_set_and_read_in_every_form(given: Any) -> None:
    assert limits.get_system_limits() is limits.get_resource_limits("api") is limits.get_entity_limits("u") is None
    limits.set_system_limits(given)
    limits.set_resource_limits("api", given)
    limits.set_entity_limits("u", given)
    limits.set_entity_limits("u", given, resource="api")
    found = [limits.get_system_limits(), limits.get_resource_limits("api"), limits.get_entity_limits("u")]
    assert [*found, limits.get_entity_limits("u", resource="api")] == [LIMITS] * 4
    limits.set_system_limits([], effect="blocked")
    assert limits.get_system_limits() == ()


@pytest.mark.parametrize("given", [TEXT, TEXT.split(), LIMITS])
def test_limits_as_text_may_be_shared(given: Any) -> None:
    given = [one.strip(",") for one in given] if isinstance(given, list) else given
    limits.set_resource_limits("api", given, shared=["tokens"])
    assert dict(Policy.objects.get().limits.values_list("key", "shared")) == {
        "call_count": False,
        "tokens": True,
        "db": False,
    }


def test_default_limits_may_be_text() -> None:
    for verb in (limits.try_acquire, async_to_sync(limits.atry_acquire)):
        assert [bool(verb("api", entity="u", default_limits="2/h")) for _ in range(2)] == (
            [True, True] if verb is limits.try_acquire else [False, False]
        )
    assert not limits.check("api", entity="u", default_limits="2/h").allowed
    assert limits.limit_set("api", "u", "2/h")["call_count"] == CallLimit(2, 3600)
    with pytest.raises(InvalidLimit, match="must look like"):
        limits.acquire("api", default_limits="often")


def test_a_decorator_has_limits_as_text() -> None:
    @limited("reports", default_limits="2/h")
    def report() -> int:
        return 1

    assert report() + report() == 2
    assert not limits.check("reports", default_limits="2/h").allowed
    with pytest.raises(InvalidLimit, match="must look like"):
        limited("reports", default_limits="often")


def test_a_user_is_an_entity(user: User) -> None:
    named = f"user:{user.pk}"
    limits.set_entity_limits(user, "2/h", resource="api")
    assert limits.get_entity_limits(named, resource="api") == limits.get_entity_limits(user, resource="api")
    assert limits.acquire("api", entity=user).outcome.passed[0].entity == named
    assert limits.acquire({"api": None}, entity=SimpleLazyObject(lambda: user)).outcome.passed[0].entity == named
    assert not limits.try_acquire("api", entity=named)
    assert not limits.check("api", entity=user).allowed


def test_every_verb_takes_a_user(user: User) -> None:
    named, later = f"user:{user.pk}", timezone.now() + timedelta(hours=1)
    limits.set_entity_limits(user, "2/h", resource="api")
    limits.boost(user, "api", 2, later, "launch")
    assert limits.check("api", entity=named).passed[0].capacity == 4
    assert limits.end_boost(user, "api")
    assert limits.grant_boost(user, "api", "3/h", later, "launch").entity == Entity.objects.get(identifier=named)
    assert limits.end_boost(user, "api")
    assert limits.try_acquire_all([limits.Share("api", user), limits.Share("other", user, default_limits="5/h")])
    with pytest.raises(InvalidRequest, match="duplicate Share"):
        limits.try_acquire_all([limits.Share("api", user), limits.Share("api", named)])
    assert limits.status("api", entity=user).limits["call_count"]["used"] == 1
    assert limits.top_up("api", key="call_count", amount=1, entity=user)
    assert limits.status("api", entity=user) == limits.status("api", entity=named)
    assert limits.acquire("api", entity=user)
    assert limits.reset("api", entity=user)
    assert limits.explain("api", entity=user).outcome.passed[0].remaining == 2
    assert limits.explain("new", entity=user, default_limits="7/h").outcome.passed[0].capacity == 7
    assert not any(read("api", entity=user) for read in (limits.usage, limits.denials, limits.rejections))
    with override_limits("api", "9/h", entity=user):
        assert limits.check("api", entity=named).passed[0].capacity == 9
    assert limits.delete_entity_limits(user, resource="api")
    assert limits.get_entity_limits(user, resource="api") is None


@pytest.mark.parametrize(
    ("entity", "message"),
    [
        (AnonymousUser(), "anonymous user.*client_of"),
        (User(username="new"), "no primary key"),
        (5, "must be text of 1 to 255"),
    ],
)
def test_other_values_are_no_entities(entity: Any, message: str) -> None:
    with pytest.raises(InvalidLimit, match=message):
        limits.acquire("api", entity=entity)
    with pytest.raises(InvalidLimit, match=message):
        limited("api", entity=entity)
    with pytest.raises(InvalidLimit, match=message):
        limits.delete_entity_limits(entity, resource="api")


def test_a_decorator_takes_the_user_of_the_request(user: User, rf: RequestFactory) -> None:
    limits.set_entity_limits(user, "1/h", resource="api")

    @limited("api", entity=lambda request: request.user)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    request = rf.get("/")
    request.user = user
    assert view(request).status_code == 200
    assert not limits.check("api", entity=user).allowed


def test_an_entity_is_made_and_changed(user: User) -> None:
    row = limits.set_entity(user, parent="team:x", cascade=True, name="Ada", reason="joined", actor="admin")
    assert (row.identifier, str(row.parent), row.cascade, row.name) == (f"user:{user.pk}", "team:x", True, "Ada")
    limits.set_entity(user, blocked=True)
    stored = Entity.objects.get(identifier=f"user:{user.pk}")
    assert (stored.name, stored.blocked, stored.cascade) == ("Ada", True, True)
    assert limits.set_entity(user, parent=None).parent is None
    assert AuditEvent.objects.filter(reason="joined", actor="admin").exists()
    for wrong, message in (
        ({"parent": user}, "own|above|itself|loop|parent"),
        ({"plan": "x"}, "no plan"),
        ({"plam": "x"}, "Unknown field"),
    ):
        with pytest.raises(InvalidLimit, match=message):
            limits.set_entity(user, **wrong)


def test_reporting_usage_is_optional_by_argument() -> None:
    limits.set_resource_limits("llm", "tokens=100/h")
    with limits.acquire("llm", requested={"tokens": 10}, require_usage=False):
        pass
    with limits.acquire("llm", requested={"tokens": 10}, require_usage=False) as acquisition:
        acquisition.update({"tokens": 3})
    assert limits.status("llm").limits["tokens"]["used"] == 13
    with pytest.raises(UsageNotReported), limits.acquire("llm", requested={"tokens": 10}):
        pass


def test_a_set_need_not_have_its_usage_reported() -> None:
    limit_set = LimitSet("tokens=100/h", require_usage=False)
    shared = LimitSet("tokens=100/h", shared=True, mode="process", require_usage=False)
    private = PrivateSet.of(limit_set)
    assert isinstance(private, PrivateSet)
    copies = [private.copy(), pickle.loads(pickle.dumps(shared))]
    for one in (limit_set, *copies):
        with one.acquire({"tokens": 10}):
            pass
    with pytest.raises(ZeroDivisionError), limit_set.acquire({"tokens": 10}):
        raise ZeroDivisionError
    assert round(float(limit_set.get_stats()["tokens"]["used"])) == 10

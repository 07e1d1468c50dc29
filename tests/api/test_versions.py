"""Versions of rows: nobody overwrites what they have not read, not even at the same moment."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.db.models import QuerySet
from pytest_django import DjangoDbBlocker
from rest_framework.test import APIClient

from limits_app.engine.limits import CallLimit
from limits_app.models import AuditEvent, AuditHead, Limit, Policy, Resource
from tests.api.site import ROOT, as_user
from tests.stores.database.databases import ALIAS, site_on

ROUNDS = 10
BLOCKED = {"resource": "api", "effect": "blocked"}


def policy() -> Policy:
    return Policy.objects.create(resource=Resource.objects.create(name="api"), effect="blocked")


@pytest.fixture
def where(root: APIClient) -> str:
    """A policy."""
    return f"{ROOT}policies/{policy().pk}/"


@pytest.mark.parametrize("verb", ["put", "patch", "delete"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({}, 428, id="none"),
        pytest.param({"If-Match": ""}, 428, id="empty"),
        pytest.param({"If-Match": '"other"'}, 412, id="other"),
        pytest.param({"If-Match": "other"}, 412, id="no_tag"),
    ],
)
def test_a_change_must_name_its_version(
    root: APIClient, where: str, verb: str, headers: dict[str, str], status: int
) -> None:
    refused = getattr(root, verb)(where, BLOCKED, format="json", headers=headers)
    assert (refused.status_code, refused["Content-Type"]) == (status, "application/problem+json")
    assert Policy.objects.count() == 1


def test_a_weak_tag_is_not_good_enough_for_a_change_and_for_reading_it_is(root: APIClient, where: str) -> None:
    tag = root.get(where)["ETag"]
    assert root.patch(where, BLOCKED, format="json", headers={"If-Match": f"W/{tag}"}).status_code == 412
    assert root.get(where, headers={"If-None-Match": f"W/{tag}"}).status_code == 304
    assert root.patch(where, BLOCKED, format="json", headers={"If-Match": f'"other", {tag}'}).status_code == 200


def test_a_changed_limit_is_another_version_of_its_policy(root: APIClient, where: str) -> None:
    tag = root.get(where)["ETag"]
    Policy.objects.update(effect="limits")
    Limit.from_definition(Policy.objects.get(), CallLimit(5, 60)).save()
    limited = root.get(where)["ETag"]
    Limit.objects.update(text="6/min")
    assert len({tag, limited, root.get(where)["ETag"]}) == 3


def test_unchanged_object_is_not_sent_again(root: APIClient, where: str) -> None:
    for address in (where, f"{ROOT}policies/"):
        tag = root.get(address)["ETag"]
        same = root.get(address, headers={"If-None-Match": tag})
        assert (same.status_code, same.content, same["ETag"]) == (304, b"", tag)
        assert root.get(address, headers={"If-None-Match": '"other"'}).status_code == 200
        assert root.get(address, headers={"If-None-Match": "*"}).status_code == 304


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    """A database to which each thread has a connection of its own."""
    with django_db_blocker.unblock(), site_on(request.param, tmp_path_factory.mktemp("database")):
        yield


@pytest.fixture
def site(database: None) -> Iterator[None]:
    """A site on that database, whose log is begun anew by each test, also by two requests at once."""
    yield
    for model in (Policy, Resource, AuditEvent, AuditHead):
        QuerySet(model, using=ALIAS)._raw_delete(ALIAS)  # which records nothing


def race(*changes: tuple[str, str, dict[str, str], dict[str, str]]) -> list[int]:
    """Send requests at the same moment, each from a thread of its own."""
    ready = Barrier(len(changes))

    def send(change: tuple[str, str, dict[str, str], dict[str, str]]) -> int:
        verb, address, body, headers = change
        client = as_user(User(username="root", is_superuser=True, pk=1))
        try:
            ready.wait()
            return int(getattr(client, verb)(ROOT + address, body, format="json", headers=headers).status_code)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(changes)) as pool:
        return sorted(pool.map(send, changes))


def test_of_two_admins_at_the_same_moment_one_wins_and_the_other_is_notified(site: None) -> None:
    row = policy()
    client = as_user(User(username="root", is_superuser=True, pk=1))
    for number in range(ROUNDS):
        match = {"If-Match": client.get(f"{ROOT}policies/{row.pk}/")["ETag"]}
        where = f"policies/{row.pk}/"
        said = [f"{who} {number}" for who in ("ann", "bob")]
        assert race(*[("patch", where, {"reason": reason}, match) for reason in said]) == [200, 412]
        row.refresh_from_db()
        assert row.reason in said
    assert AuditEvent.objects.filter(verb="update").count() == ROUNDS


def test_one_of_two_concurrent_creations_succeeds(site: None) -> None:
    for number in range(ROUNDS):
        first, second = race(*[("post", "resources/", {"name": f"r{number}"}, {})] * 2)
        assert first == 201
        assert second in {400, 409}
    assert Resource.objects.count() == ROUNDS


def test_concurrent_delete_and_change_have_one_winner(site: None) -> None:
    for number in range(ROUNDS):
        where = f"resources/{Resource.objects.create(name=f'r{number}').pk}/"
        match = {"If-Match": as_user(User(is_superuser=True, pk=1)).get(ROOT + where)["ETag"]}
        first, second = race(("delete", where, {}, match), ("patch", where, {"description": "x"}, match))
        assert (first, second) in {(200, 412), (204, 404)}

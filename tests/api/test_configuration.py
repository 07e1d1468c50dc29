"""Rows of configuration: made, read, changed, deleted; found, paged and ordered; and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings
from rest_framework.test import APIClient

from limits_app import CallLimit, services
from limits_app.api.base import BoundedJSONParser
from limits_app.api.problems import Problem
from limits_app.models import AuditEvent, Entity, Limit, Policy, Resource
from tests.api.site import ROOT, fill

pytestmark = pytest.mark.django_db(transaction=True)

CALLS = {"kind": "call", "capacity": 5, "window_seconds": 60}
KINDS = ["resources", "entities", "policies", "pools", "endpoints"]


def errors(response: Any) -> dict[str, str]:
    """What is wrong, by place."""
    assert response.status_code == 400, response.data
    assert response["Content-Type"] == "application/problem+json"
    return {one.get("pointer", one.get("parameter")): one["detail"] for one in response.data["errors"]}


def test_a_row_is_made_read_changed_and_deleted(root: APIClient) -> None:
    made = root.post(f"{ROOT}resources/", {"name": "openai/gpt-4"}, format="json")
    assert made.status_code == 201
    new = {"name": "openai/gpt-4", "description": "", "pool": None, "store": "", "request_priority": ""}
    assert made.data == {"id": made.data["id"], **new}
    where = f"{ROOT}resources/{made.data['id']}/"
    read = root.get(where)
    assert (read.status_code, read["ETag"]) == (200, made["ETag"])
    changed = root.patch(where, {"description": "tokens"}, format="json", headers={"If-Match": made["ETag"]})
    assert (changed.status_code, changed.data["description"]) == (200, "tokens")
    assert changed["ETag"] != made["ETag"]
    assert root.delete(where, headers={"If-Match": changed["ETag"]}).status_code == 204
    assert root.get(where).status_code == 404


def test_changes_are_audited_with_actor_and_reason(root: APIClient) -> None:
    why = "Größe".encode().decode("latin-1")
    made = root.post(f"{ROOT}entities/", {"identifier": "user:1"}, format="json", headers={"X-Reason": why})
    where = f"{ROOT}entities/{made.data['id']}/"
    root.patch(where, {"blocked": True}, format="json", headers={"If-Match": "*"})
    root.delete(where, headers={"If-Match": "*"})
    told = [(one.verb, one.actor, one.source, one.reason) for one in AuditEvent.objects.order_by("number")]
    assert told == [("create", "root", "api", "Größe"), ("update", "root", "api", ""), ("delete", "root", "api", "")]


def test_a_put_that_leaves_a_field_out_sets_it_back_and_a_patch_leaves_it(root: APIClient) -> None:
    entity = Entity.objects.create(identifier="user:1", name="Ann", cascade=True, metadata={"a": 1})
    where, match = f"{ROOT}entities/{entity.pk}/", {"If-Match": "*"}
    patched = root.patch(where, {"name": "Anna"}, format="json", headers=match)
    assert (patched.data["name"], patched.data["cascade"], patched.data["metadata"]) == ("Anna", True, {"a": 1})
    put = root.put(where, {"identifier": "user:1"}, format="json", headers=match)
    assert (put.data["name"], put.data["cascade"], put.data["metadata"]) == ("", False, {})


@pytest.mark.parametrize("kind", KINDS)
def test_read_object_can_be_put_back(root: APIClient, kind: str) -> None:
    fill([1])
    for row in root.get(f"{ROOT}{kind}/").data["results"]:
        read = root.get(f"{ROOT}{kind}/{row['id']}/")
        put = root.put(f"{ROOT}{kind}/{row['id']}/", read.data, format="json", headers={"If-Match": read["ETag"]})
        assert put.status_code == 200, put.data
        assert {**put.data, "updated_at": None} == {**read.data, "updated_at": None}


def test_a_policy_is_written_with_its_limits_as_a_whole(root: APIClient) -> None:
    Resource.objects.create(name="api")
    slots = {"kind": "resource", "key": "slots", "capacity": 2, "max_hold_seconds": 1.5}
    made = root.post(f"{ROOT}policies/", {"resource": "api", "limits": [slots, CALLS]}, format="json")
    assert made.status_code == 201, made.data
    assert made.data["scope"] == "resource"
    assert [(one["key"], one["capacity"]) for one in made.data["limits"]] == [("call_count", 5), ("slots", 2)]
    assert made.data["limits"][1]["max_hold_seconds"] == 1.5
    where, match = f"{ROOT}policies/{made.data['id']}/", {"If-Match": "*"}
    put = root.put(where, {"resource": "api", "limits": [CALLS | {"capacity": 7}]}, format="json", headers=match)
    assert [one["capacity"] for one in put.data["limits"]] == [7]
    patched = root.patch(where, {"reason": "so"}, format="json", headers=match)
    assert [one["capacity"] for one in patched.data["limits"]] == [7]


def test_a_policy_with_an_invalid_limit_is_rejected_with_its_position(root: APIClient) -> None:
    wrong = {"kind": "rate", "key": "tpm", "capacity": 5}
    refused = root.post(f"{ROOT}policies/", {"limits": [CALLS, wrong]}, format="json")
    assert errors(refused).keys() == {"#/limits/1/window_seconds"}
    assert not Policy.objects.exists()
    made = root.post(f"{ROOT}policies/", {"limits": [CALLS]}, format="json")
    where, match = f"{ROOT}policies/{made.data['id']}/", {"If-Match": "*"}
    refused = root.patch(where, {"reason": "so", "limits": [CALLS, CALLS]}, format="json", headers=match)
    assert errors(refused).keys() == {"#/limits/1"}
    assert Policy.objects.get().reason == ""
    assert Limit.objects.count() == 1


@pytest.mark.parametrize(
    ("sent", "place"),
    [
        pytest.param({"limits": [CALLS], "resource": "nowhere"}, "#/resource", id="no_such_resource"),
        pytest.param({"limits": [CALLS | {"kee": 1}]}, "#/limits/0/kee", id="unknown_field_of_a_limit"),
        pytest.param({"limits": [CALLS], "a/b~c": 1}, "#/a~1b~0c", id="unknown_field"),
        pytest.param([], "#", id="no_object"),
    ],
)
def test_a_wrong_policy_is_refused_at_the_place_where_it_is_wrong(root: APIClient, sent: Any, place: str) -> None:
    Entity.objects.create(identifier="user:1")
    assert place in errors(root.post(f"{ROOT}policies/", sent, format="json"))


def test_objects_in_use_are_not_deleted(root: APIClient) -> None:
    services.set_resource_limits("api", [CallLimit(5, 60)])
    refused = root.delete(f"{ROOT}resources/{Resource.objects.get().pk}/", headers={"If-Match": "*"})
    assert (refused.status_code, "resource api" in refused.data["detail"]) == (409, True)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b'{"name": ', 400, id="half"),
        pytest.param(b'{"name": "\\ud800"}', 400, id="half_a_character"),
        pytest.param(b"[" * 100_000, 400, id="endless_nesting"),
        pytest.param(b'{"name": 1e999}', 400, id="infinity"),
        pytest.param(b'{"name": NaN}', 400, id="no_number"),
        pytest.param(b"1" * 5000, 400, id="endless_number"),
        pytest.param(b'{"name": "\\u0000"}', 400, id="nul"),
        pytest.param(b"\xff", 400, id="no_text"),
        pytest.param(b" " * 3_000_000, 413, id="too_long"),
    ],
)
def test_bodies_that_are_no_json_are_refused(root: APIClient, body: bytes, status: int) -> None:
    answered = root.generic("POST", f"{ROOT}resources/", body, content_type="application/json")
    assert (answered.status_code, answered["Content-Type"]) == (status, "application/problem+json")


def test_no_more_of_a_body_is_read_than_the_site_admits(settings: Settings) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    body = BytesIO(b"1" * 100)
    with pytest.raises(Problem, match="10 bytes"):
        BoundedJSONParser().parse(body)
    assert body.tell() == 11


def test_the_length_of_a_body_is_unlimited_by_a_setting_of_the_site(root: APIClient, settings: Settings) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = None
    body = b'{"name": "x"}' + b" " * 3_000_000
    assert root.generic("POST", f"{ROOT}resources/", body, content_type="application/json").status_code == 201


def test_other_forms_methods_and_addresses_are_refused_as_problems(root: APIClient) -> None:
    told = [
        root.post(f"{ROOT}resources/", {"name": "x"}, format="multipart"),
        root.generic("PUT", f"{ROOT}resources/"),
        root.options(f"{ROOT}resources/"),
        root.get(f"{ROOT}nothing/", headers={"Accept": "text/html"}),
        root.get(f"{ROOT}resources/{10**30}/"),
        root.get(f"{ROOT}resources/?page=7"),
    ]
    assert [one.status_code for one in told] == [415, 405, 405, 404, 404, 404]
    assert {one["Content-Type"] for one in told} == {"application/problem+json"}


@pytest.mark.parametrize(
    ("address", "found"),
    [
        pytest.param("resources/?name=resource2", ["resource2"], id="name"),
        pytest.param("resources/?pool=pool3", ["resource3"], id="related_name"),
        pytest.param("resources/?search=RESOURCE1", ["resource1"], id="search"),
        pytest.param("resources/?ordering=-name&page_size=2", ["resource3", "resource2"], id="ordering"),
        pytest.param("resources/?ordering=-name&page_size=2&page=2", ["resource1"], id="page"),
        pytest.param("pools/?search=2", ["pool2"], id="pools"),
        pytest.param("endpoints/?enabled=false", [], id="enabled"),
    ],
)
def test_lists_are_filtered_searched_ordered_and_paged(root: APIClient, address: str, found: list[str]) -> None:
    fill()
    assert [one["name"] for one in root.get(ROOT + address).data["results"]] == found


@pytest.mark.parametrize(
    ("query", "count"),
    [("scope=resource", 3), ("scope=system", 0), ("holds=always", 6), ("holds=dates", 0), ("entity=user:1", 1)],
)
def test_policies_are_found_by_scope_and_by_when_they_hold(root: APIClient, query: str, count: int) -> None:
    fill()
    assert root.get(f"{ROOT}policies/?{query}").data["count"] == count


def test_audit_events_are_filtered_by_time_and_actor(root: APIClient) -> None:
    fill([1])
    every = root.get(f"{ROOT}audit-events/").data["count"]
    assert every > 5
    assert root.get(f"{ROOT}audit-events/?since=2000-01-01T00:00:00Z&verb=create").data["count"] > 5
    assert root.get(f"{ROOT}audit-events/?until=2000-01-01T00:00:00Z").data["count"] == 0
    assert root.post(f"{ROOT}audit-events/", {}, format="json").status_code == 405


@pytest.mark.parametrize(
    ("address", "parameter"),
    [
        ("resources/?nmae=x", "nmae"),
        ("resources/?ordering=description", "ordering"),
        ("resources/?page=0", "page"),
        ("resources/?page_size=201", "page_size"),
        ("resources/?search=%00", "search"),
        ("entities/?blocked=perhaps", "blocked"),
        ("policies/?scope=world", "scope"),
        ("explain/", "resource"),
        ("explain/?resource=api&requested=tpm", "requested"),
    ],
)
def test_parameters_that_cannot_be_are_refused_by_name(root: APIClient, address: str, parameter: str) -> None:
    assert parameter in errors(root.get(ROOT + address))


@pytest.mark.parametrize("kind", [*KINDS, "audit-events"])
def test_list_of_any_length_makes_the_same_queries(root: APIClient, kind: str) -> None:
    fill(range(1, 3))
    root.get(f"{ROOT}{kind}/")
    with CaptureQueriesContext(connection) as few:
        root.get(f"{ROOT}{kind}/?page_size=200")
    fill(range(3, 8))
    root.get(f"{ROOT}{kind}/")  # changes have made the resolver forget the limits of the API itself
    with CaptureQueriesContext(connection) as many:
        assert len(root.get(f"{ROOT}{kind}/?page_size=200").data["results"]) >= 7
    assert len(many) == len(few) < 6


def test_a_policy_that_always_holds_is_not_given_an_end_alone(root: APIClient) -> None:
    policy = services.set_resource_limits("api", [CallLimit(5, 60)])
    where, match = f"{ROOT}policies/{policy.pk}/", {"If-Match": "*"}
    end = {"valid_until": "2999-01-01T00:00:00Z"}
    refused = root.patch(where, end, format="json", headers=match)
    assert (refused.status_code, errors(refused).keys()) == (400, {"#/valid_until"})
    dated = root.patch(where, end | {"valid_from": "2998-01-01T00:00:00Z"}, format="json", headers=match)
    assert dated.status_code == 200


def test_a_resource_names_a_store_of_the_settings(root: APIClient, settings: Settings) -> None:
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}, "scratch": {"KIND": "memory"}}}
    made = root.post(f"{ROOT}resources/", {"name": "api", "store": "scratch"}, format="json")
    assert (made.status_code, made.data["store"]) == (201, "scratch")
    root.post(f"{ROOT}resources/", {"name": "web"}, format="json")
    found = [root.get(f"{ROOT}resources/", {"store": alias}).data["results"] for alias in ("scratch", "")]
    assert [[row["name"] for row in rows] for rows in found] == [["api"], ["web"]]
    wrong = root.patch(f"{ROOT}resources/{made.data['id']}/", {"store": "x"}, format="json", headers={"If-Match": "*"})
    assert "has no store 'x': choose one of 'default', 'scratch'" in next(iter(errors(wrong).values()))
    stores = [root.get(f"{ROOT}explain/", {"resource": name}).data["store"] for name in ("api", "web")]
    assert stores == ["scratch", None]


@pytest.mark.parametrize("size", [7, 50])
def test_no_row_is_on_two_pages_or_on_none(size: int, root: APIClient) -> None:
    resource = Resource.objects.create(name="api")
    begin = datetime(2027, 1, 1, tzinfo=UTC)
    for day in range(60):
        ends = {"valid_from": begin + timedelta(days=day), "valid_until": begin + timedelta(days=day, hours=1)}
        Policy.objects.create(resource=resource, effect="blocked", **ends)
    listed, where = [], f"{ROOT}policies/?page_size={size}"
    while where:
        page = root.get(where).data
        listed += [one["id"] for one in page["results"]]
        where = page["next"]
    assert listed == sorted(Policy.objects.values_list("pk", flat=True))


def test_a_policy_in_force_is_weakened_only_when_that_is_confirmed(root: APIClient) -> None:
    change = {"enforcement": "shadow"}
    policy = services.set_resource_limits("api", [CallLimit(5, 60)])
    where, match = f"{ROOT}policies/{policy.pk}/", {"If-Match": "*"}
    refused = root.patch(where, change, format="json", headers=match)
    assert refused.status_code == 409
    confirm = "Without it no policy applies, and everything is allowed. To confirm, send the request with ?confirm=true"
    assert confirm in refused.data["detail"]
    policy.refresh_from_db()
    assert policy.enforcement == "enforce"
    assert root.patch(f"{where}?confirm=true", change, format="json", headers=match).status_code == 200
    assert root.patch(where, {"enforcement": "enforce"}, format="json", headers=match).status_code == 200


def test_a_block_that_also_hits_its_author_or_a_private_network_is_made_only_when_that_is_confirmed(
    root: APIClient,
) -> None:
    """The caller of these tests comes from 127.0.0.1."""
    author = f"user:{User.objects.get(username='root').pk}"
    services.set_entity(author)
    bodies: list[tuple[str, dict[str, Any], str]] = [
        ("entities", {"identifier": "ip:127.0.0.1", "blocked": True}, "ip:127.0.0.1, a private network"),
        ("policies", {"entity": author, "effect": "blocked"}, author),
        ("policies", {"counted": "total", "effect": "blocked"}, "everyone"),
    ]
    for section, body, hit in bodies:
        refused = root.post(f"{ROOT}{section}/", body, format="json")
        assert refused.status_code == 409
        assert refused.data["detail"] == f"This also blocks {hit}. To confirm, send the request with ?confirm=true."
        assert root.post(f"{ROOT}{section}/?confirm=true", body, format="json").status_code == 201
        Policy.objects.all().delete()
        Entity.objects.exclude(identifier=author).delete()
    made = root.post(f"{ROOT}entities/", {"identifier": "ip:10.0.0.9"}, format="json").data
    where, match = f"{ROOT}entities/{made['id']}/", {"If-Match": "*"}
    for method in (root.patch, root.put):
        body = {"identifier": "ip:10.0.0.9", "blocked": True}
        assert method(where, body, format="json", headers=match).status_code == 409
    assert root.patch(f"{where}?confirm=true", {"blocked": True}, format="json", headers=match).status_code == 200
    assert root.patch(where, {"name": "renamed"}, format="json", headers=match).status_code == 200
    assert root.patch(where, {"blocked": False}, format="json", headers=match).status_code == 200


def test_a_block_of_others_needs_no_confirmation(root: APIClient) -> None:
    services.set_entity("ip:8.8.8.0/24")
    assert root.post(f"{ROOT}entities/", {"identifier": "user:987", "blocked": True}, format="json").status_code == 201
    for effect, enforcement in (("blocked", "enforce"), ("unlimited", "enforce")):
        body = {"entity": "ip:8.8.8.0/24", "effect": effect, "enforcement": enforcement}
        assert root.post(f"{ROOT}policies/", body, format="json").status_code == 201
        Policy.objects.all().delete()
    assert (
        root.post(f"{ROOT}policies/", {"counted": "total", "effect": "blocked", "enforcement": "shadow"}, format="json")
    ).status_code == 201

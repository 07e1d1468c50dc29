"""Names of scopes: no two different ones ever meet in one key."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from itertools import combinations, product
from typing import Any

import pytest

from limits_app.engine.counting import label_of, seal
from limits_app.engine.errors import InvalidLimit, InvalidRequest
from limits_app.engine.keys import (
    EntityScopes,
    Scope,
    amounts_scope,
    check_entity,
    check_idempotency_key,
    check_resource,
    idempotency_scope,
    line_scope,
    member_scope,
    private_scope,
    scope_of,
    shadow_scope,
    shared_scope,
    shared_total_scope,
    short_key,
    total_scope,
    upstream_scope,
)

RESOURCES = ["api", "openai/gpt-4", "reports.export", "a-b_c", "a", "A", "a/-", "a.-", "a/b", "R" * 64]

ENTITIES = [
    None,
    "-",
    "user:42",
    "2",
    "::",
    "a:b",
    "a",
    " ",
    "\0",
    "user\0:42",
    "user:42\0",
    "v1:api:-",
    "👤",
    "\ud83d\udc64",
    "\ud83d",
    "\u00e9",
    "e\u0301",
    "ﬁ",
    "fi",
    "x" * 255,
    "None",
]


def test_different_scopes_have_different_keys() -> None:
    scopes = list(product(RESOURCES, ENTITIES))
    for names in ([scope_of(*scope).key for scope in scopes], [short_key(scope_of(*scope).key) for scope in scopes]):
        assert len(set(names)) == len(scopes)


def test_the_same_scope_has_the_same_key_in_every_process() -> None:
    assert scope_of("api", None).key == "v1:api:-"
    assert scope_of("api", "user:42").key == "v1:api:" + scope_of("other", "user:42").key.rpartition(":")[2]
    assert scope_of("api", "user:42").key == "v1:api:fdd48118d77004ffecb66c1b1e69dc3c"


def test_a_scope_has_its_owner() -> None:
    scope = scope_of("api", "user:42")
    assert (scope.resource, scope.entity) == ("api", "user:42")
    assert (private_scope().resource, private_scope().entity) == (None, None)


def test_keys_beside_a_scope_belong_to_it_and_never_collide() -> None:
    ann, bob = scope_of("api", "ann"), scope_of("api", "bob")
    beside = [
        line_scope(ann, "tokens"),
        line_scope(ann, "calls"),
        line_scope(bob, "tokens"),
        shadow_scope(ann),
        idempotency_scope("api", "ann", "tokens"),
    ]
    assert len({scope.key for scope in (ann, bob, *beside)}) == 7
    assert [(scope.resource, scope.entity) for scope in beside[:2]] == [("api", "ann")] * 2


def test_private_scopes_never_collide() -> None:
    keys = [private_scope().key for _ in range(100)] + [scope_of("api", None).key]
    assert len(set(keys)) == 101
    assert all(one.count(":") == 2 for one in keys)


def test_keys_are_plain_text_of_bounded_length_without_the_entity() -> None:
    for resource, entity in product(RESOURCES, ENTITIES):
        key = scope_of(resource, entity).key
        assert key.isascii()
        assert key.isprintable()
        assert len(key) <= 3 + 64 + 1 + 32
    assert "jane" not in scope_of("api", "jane.doe@example.com").key


def test_short_keys_have_sixteen_bytes() -> None:
    names = [short_key(key) for key in ("v1:api:-", "v1:api", "v1:api:", "V1:api:-")]
    assert {len(name) for name in names} == {16}
    assert all(one != other for one, other in combinations(names, 2))


@pytest.mark.parametrize(
    "name", ["", "1st", "/api", "a:b", "a b", "a\0", "é", "a\ud800", "a?b", "R" * 65, None, b"api"]
)
def test_invalid_names_of_resources_are_rejected(name: Any) -> None:
    with pytest.raises(InvalidLimit, match=r"must be a letter followed by at most 63 letters, digits") as caught:
        check_resource(name)
    assert str(caught.value).startswith("resource ")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("identifier", ["", "x" * 256, "x" * 10_000, "👤" * 256, None, 42, b"user:42", ["user:42"]])
def test_invalid_identifiers_of_entities_are_rejected(identifier: Any) -> None:
    with pytest.raises(InvalidLimit, match="must be text of 1 to 255 characters") as caught:
        check_entity(identifier)
    assert str(caught.value).startswith("entity ")
    assert len(str(caught.value)) < 200


def test_the_scope_of_a_member_is_shared_by_all_its_requests() -> None:
    scope = member_scope("pool", "member")
    assert scope == member_scope("pool", "member")
    assert (scope.resource, scope.entity, scope.shared, scope.member) == ("pool", None, True, "member")
    others = [member_scope("pool", "other"), member_scope("other", "member"), scope_of("pool", "member")]
    assert len({scope.key, *[other.key for other in others]}) == 4


def test_the_label_of_a_scope_is_json() -> None:
    assert json.loads(label_of(scope_of("api", "käse"), 7)) == ["api", seal("käse"), False, None, 7]
    assert json.loads(label_of(member_scope("pool", "m"))) == ["pool", None, True, "m"]


VALID = {check_resource: RESOURCES, check_entity: ENTITIES[1:], check_idempotency_key: ["a", "x" * 255, "käse \0"]}


@pytest.mark.parametrize("check", VALID)
def test_valid_names_are_kept_as_they_are(check: Callable[[str], str]) -> None:
    assert [check(name) for name in VALID[check]] == VALID[check]


@pytest.mark.parametrize("key", ["", "x" * 256, None, 7, b"key"])
def test_an_invalid_idempotency_key_is_rejected(key: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"idempotency key .* must be text of 1 to 255 characters"):
        check_idempotency_key(key)


def test_amounts_of_an_idempotency_key_have_a_scope_with_the_same_first_byte() -> None:
    key = idempotency_scope("api", "ann#1", "order #7")
    requests: list[dict[str, Any]] = [{}, {"a": 1}, {"b": 1}, {"a": 2}, {"a": 1, "b": 1}, {"a": 0.5}, {"a": "1"}]
    scopes = [amounts_scope(key, amounts) for amounts in requests]
    assert len({scope.key for scope in (key, *scopes)}) == len(requests) + 1
    assert {short_key(scope.key)[0] for scope in scopes} == {short_key(key.key)[0]}
    assert len({short_key(scope.key) for scope in (key, *scopes)}) == len(requests) + 1
    assert amounts_scope(key, {"b": 1.0, "a": Decimal(1)}) == amounts_scope(key, {"a": 1, "b": 1})
    assert amounts_scope(idempotency_scope("api", "ann#1", "order #8"), {}) != scopes[0]


def scopes_for(entity: str | None) -> list[Scope]:
    """Scopes of all kinds, as a chain has them."""
    own = scope_of("a/b", entity)
    return [
        own,
        shared_scope("a/b", "tpm"),
        shadow_scope(own),
        total_scope(entity, of_system=False),
        total_scope(entity, of_system=True),
        shared_total_scope("tpm"),
        member_scope("pool", "eu"),
        upstream_scope("a/b"),
        idempotency_scope("a/b", entity, "key", "c"),
    ]


@pytest.mark.parametrize("other", ["b", "-", "user:" + "9" * 200, "", "\ud800", None, "a"])
@pytest.mark.parametrize("entity", ["a", None])
def test_scopes_of_an_entity_are_made_for_any_other_one(entity: str | None, other: str | None) -> None:
    assert list(EntityScopes(scopes_for(entity), entity).of(other)) == scopes_for(other)


@pytest.mark.parametrize(
    "scope", [scope_of("api", "parent"), scope_of("api", None), total_scope("parent", of_system=False), private_scope()]
)
def test_scopes_of_another_entity_are_not_made_for_others(scope: Scope) -> None:
    with pytest.raises(ValueError, match=r"is not a scope of the entity 'child'"):
        EntityScopes([scope_of("api", "child"), scope], "child")


def test_scopes_of_entities_above_stay_as_they_are() -> None:
    above = [scope_of("api", "parent"), total_scope("grandparent", of_system=False)]
    scopes = EntityScopes([*scopes_for("child"), *above], "child", {"parent", "grandparent"})
    assert list(scopes.of("other")) == [*scopes_for("other"), *above]

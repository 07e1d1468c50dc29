"""Names of scopes: no two different ones ever meet in one key."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limits_app.core.errors import InvalidLimit
from limits_app.core.keys import (
    check_entity,
    check_resource,
    idempotency_scope,
    lease_key,
    line_scope,
    private_scope,
    scope_of,
    shadow_scope,
    short_key,
)
from tests.core.algorithms.definitions import examples

RESOURCES = ["api", "openai/gpt-4", "reports.export", "a-b_c", "a", "A", "a/-", "a.-", "a/b", "R" * 64]

ENTITIES = [
    None,
    "-",
    "user:42",
    "user:4",
    "2",
    ":",
    "::",
    "a:b",
    "a",
    "a/b",
    " ",
    "  ",
    "\0",
    "\0\0",
    "user\0:42",
    "user:42\0",
    "user:42\n",
    "v1:api:-",
    "👤",
    "👤👤",
    "\ud83d\udc64",
    "\ud83d",
    "\udc64",
    "\u00e9",
    "e\u0301",
    "ﬁ",
    "fi",
    "x" * 255,
    "X" * 255,
    "None",
]


def test_different_scopes_have_different_keys() -> None:
    scopes = list(product(RESOURCES, ENTITIES))
    for names in (
        [scope_of(*scope).key for scope in scopes],
        [short_key(scope_of(*scope).key) for scope in scopes],
        [lease_key(short_key(scope_of(*scope).key), "db") for scope in scopes],
    ):
        assert len(set(names)) == len(scopes)


@examples(300)
@given(*[st.tuples(st.from_regex(r"[A-Za-z][A-Za-z0-9_./-]{0,63}", fullmatch=True), st.none() | st.text())] * 2)
def test_keys_are_equal_only_for_the_same_scope(one: tuple[str, str | None], other: tuple[str, str | None]) -> None:
    assert (scope_of(*one).key == scope_of(*other).key) is (one == other)


def test_the_same_scope_has_the_same_key_in_every_process() -> None:
    assert scope_of("api", None).key == "v1:api:-"
    assert scope_of("api", "user:42").key == "v1:api:" + scope_of("other", "user:42").key.rpartition(":")[2]
    assert scope_of("api", "user:42").key == "v1:api:fdd48118d77004ffecb66c1b1e69dc3c"


def test_a_scope_knows_whose_it_is() -> None:
    scope = scope_of("api", "user:42")
    assert (scope.resource, scope.entity) == ("api", "user:42")
    assert (private_scope().resource, private_scope().entity) == (None, None)


def test_nothing_of_an_entity_stands_in_a_key() -> None:
    assert "jane" not in scope_of("api", "jane.doe@example.com").key


def test_what_is_noted_beside_a_scope_is_of_the_same_one_and_meets_nobody() -> None:
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


def test_private_scopes_meet_nobody() -> None:
    keys = [private_scope().key for _ in range(100)] + [scope_of("api", None).key]
    assert len(set(keys)) == 101
    assert all(one.count(":") == 2 for one in keys)


def test_keys_are_plain_text_of_bounded_length() -> None:
    for resource, entity in product(RESOURCES, ENTITIES):
        key = scope_of(resource, entity).key
        assert key.isascii()
        assert key.isprintable()
        assert len(key) <= 3 + 64 + 1 + 32


def test_short_keys_have_sixteen_bytes_and_leases_begin_with_that_of_their_scope() -> None:
    scope = short_key("v1:api:-")
    assert len(scope) == 16
    assert lease_key(scope, "db").startswith(scope)
    names = [lease_key(scope, key) for key in ("db", "d", "b", "db.", "DB", "d-b")]
    assert all(one != other for one, other in combinations(names, 2))


@pytest.mark.parametrize("name", RESOURCES)
def test_what_a_resource_may_be_called(name: str) -> None:
    assert check_resource(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "1st",
        "/api",
        "a:b",
        "a b",
        "a\0",
        "a\n",
        "é",
        "a🔑",
        "a\ud800",
        "a?b",
        "R" * 65,
        "R" * 10_000,
        None,
        5,
        b"api",
        ["api"],
    ],
)
def test_what_a_resource_may_not_be_called(name: Any) -> None:
    with pytest.raises(InvalidLimit, match=r"must be a letter followed by at most 63 letters, digits") as caught:
        check_resource(name)
    assert str(caught.value).startswith("resource ")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("identifier", [entity for entity in ENTITIES if entity is not None])
def test_what_an_entity_may_be_called(identifier: str) -> None:
    assert check_entity(identifier) == identifier


@pytest.mark.parametrize("identifier", ["", "x" * 256, "x" * 10_000, "👤" * 256, None, 42, b"user:42", ["user:42"]])
def test_what_an_entity_may_not_be_called(identifier: Any) -> None:
    with pytest.raises(InvalidLimit, match="must be text of 1 to 255 characters") as caught:
        check_entity(identifier)
    assert str(caught.value).startswith("entity ")
    assert len(str(caught.value)) < 200

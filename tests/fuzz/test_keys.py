"""No two scopes meet in one key, whatever their parts are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from limits_app.core.keys import Scope, line_scope, member_scope, scope_of, shadow_scope, shared_scope, short_key
from limits_app.integrations.identity import resource_named
from tests.fuzz.making import MANY, nearly

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_./-]{0,63}", fullmatch=True)
KEYS = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", fullmatch=True)
ENTITIES = st.none() | nearly("-", "user:42", "a:b", "v1:api:-", "*tpm", "~", ">tpm") | st.text(min_size=1, max_size=20)

Made = tuple[Any, ...]
"""How a scope was made: with which function, and of what."""


def kind(make: Callable[..., Scope], *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Made]:
    return st.tuples(st.just(make), *parts)


PLAIN = kind(scope_of, NAMES, ENTITIES)
SCOPES = (
    PLAIN
    | kind(shared_scope, NAMES, KEYS)
    | kind(member_scope, NAMES, ENTITIES.filter(lambda name: name is not None))
    | PLAIN.map(lambda made: (shadow_scope, made))
    | st.tuples(st.just(line_scope), PLAIN, KEYS)
)


def scope(made: Made) -> Scope:
    make, *parts = made
    return make(*(scope(part) if isinstance(part, tuple) else part for part in parts))  # type: ignore[no-any-return]


@MANY
@given(SCOPES, SCOPES)
def test_scopes_have_one_key_only_if_they_were_made_alike(one: Made, other: Made) -> None:
    keys = [scope(made).key for made in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)
    assert (short_key(keys[0]) == short_key(keys[1])) == (one == other)
    assert all(key.isascii() and key.isprintable() and len(key) < 256 for key in keys)


@MANY
@given(*[nearly("shop.views.report", "shop.views.<locals>.report", "nshop", "a" * 70) | st.text(max_size=80)] * 2)
def test_groups_of_other_libraries_never_become_one_resource(one: str, other: str) -> None:
    assert (resource_named(one) == resource_named(other)) == (one == other)

"""Tokens: another program holds limits exactly as they were admitted."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from limits_app.acquiring import LimitSet
from limits_app.engine import Scope, ScopedLimits, UnitPrice, checked_limits, lease_limits, schema_of
from limits_app.services.tokens import InvalidToken, Token, read_token
from limits_app.stores.registry import resilient_store

pytestmark = pytest.mark.django_db

TOKENS = UnitPrice.of("tokens", "usd", Decimal("2.5"), 1_000_000)
IMAGES = UnitPrice.of("images", "usd", Decimal("0.25"), 1)
LIMITS = checked_limits("tokens=5M/min usd=50/month")
SCHEMA = schema_of(LIMITS)
SCOPES = {
    "a client": ScopedLimits(Scope("v1:llm:user:1", "llm", "user:1"), SCHEMA, "entity"),
    "levels": ScopedLimits(Scope("v1:llm:user:1", "llm", "user:1"), SCHEMA, levels=("plan", "resource"), lasting=True),
    "a total": ScopedLimits(
        Scope("v1::tenant:1", None, "tenant:1", total=True),
        SCHEMA,
        "total",
        "llm:",
        more_prefixes=("chat:", "mail:"),
        prices=(TOKENS,),
        more_prices=((IMAGES,), (TOKENS, IMAGES)),
    ),
    "a member": ScopedLimits(
        Scope("v1:pool:east", "pool", "east", shared=True),
        SCHEMA,
        "member",
        prices=(TOKENS,),
        member="east",
        priority="low",
    ),
}


@pytest.mark.parametrize("name", SCOPES)
def test_a_token_holds_the_limits_as_they_were_admitted(name: str) -> None:
    schema = schema_of(LIMITS)  # schemas are compiled again when too many are kept
    scoped = [replace(SCOPES[name], schema=schema), lease_limits("llm", "user:1", 60_000_000)]
    store = resilient_store("default")
    acquisition = LimitSet.composed(scoped, store, version=3, resource="llm").prepare({f"{scoped[0].prefix}tokens": 7})
    read = read_token(str(Token("5", ("llm", "user:1", "pro"), "default", acquisition)), "5")
    limits = read.acquisition.limit_set
    assert (read.key, read.alias, read.principal) == (("llm", "user:1", "pro"), "default", "5")
    assert (limits.scoped, limits.store, limits.version, limits.resource) == (tuple(scoped), store, 3, "llm")
    assert (read.acquisition.amounts, read.acquisition.requested) == (acquisition.amounts, acquisition.requested)


def test_a_token_is_of_one_user_and_cannot_be_changed() -> None:
    acquisition = LimitSet.composed([SCOPES["a client"]], resilient_store("default")).prepare({"tokens": 1})
    text = str(Token("5", ("llm", None, None), "default", acquisition))
    for other, principal in ((text, "6"), (text[:-1] + ("A" if text[-1] != "A" else "B"), "5"), ("", "5"), ("é", "5")):
        with pytest.raises(InvalidToken):
            read_token(other, principal)

"""The limits of one scope, compiled: shared where they are the same, and carried over where they change."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from limits_app.core.errors import InvalidRequest
from limits_app.core.keys import lease_key, short_key
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.record import LEASE_US, Schema, lease_us_of, schema_of
from tests.core.algorithms.driven import NOW, SECOND

TPM = RateLimit("tpm", 10, 10)
FINER = RateLimit("tpm", 7, 60)
CALLS = CallLimit(5, 60)
DB = ResourceLimit("db", 3)


def taken(layout: Schema, **amounts: int) -> list[tuple[int, ...]]:
    """The states of a scope from which something was taken."""
    states = list(layout.start)
    for key, amount in amounts.items():
        rule, index = layout.rules[layout.index[key]], layout.index[key]
        state = rule.take(states[index], NOW, amount * rule.parts_per_unit)
        assert state is not None
        states[index] = state
    return states


@pytest.mark.parametrize(
    ("lease_seconds", "lease_us"), [(10, LEASE_US), (0.001, 1000), (1.5, 1_500_000), (366 * 86_400, 31_622_400_000_000)]
)
def test_a_lease_is_of_a_millisecond_or_more(lease_seconds: float, lease_us: int) -> None:
    assert lease_us_of(lease_seconds) == lease_us


@pytest.mark.parametrize(
    "lease_seconds", [0, -1, 0.0009, 366 * 86_400 + 1, 10**400, float("nan"), float("inf"), True, None, "10"]
)
def test_what_a_lease_may_not_be(lease_seconds: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"lease_seconds must be between 0\.001 seconds and 366 days .*, not "):
        lease_us_of(lease_seconds)


def test_the_same_limits_are_compiled_once() -> None:
    assert schema_of((TPM, DB)) is schema_of((RateLimit("tpm", 10, 10), ResourceLimit("db", 3)))
    assert schema_of((TPM, DB)) is schema_of((TPM, DB), LEASE_US)
    assert schema_of((TPM, DB)) is pickle.loads(pickle.dumps(schema_of((TPM, DB))))
    assert schema_of((TPM, DB)) is not schema_of((DB, TPM))
    assert schema_of((TPM, DB)) is not schema_of((TPM, DB), LEASE_US + 1)


def test_a_layout_knows_where_everything_stands() -> None:
    layout = schema_of((TPM, DB, CALLS))
    assert layout.index == {"tpm": 0, "db": 1, "call_count": 2}
    assert layout.limits == (TPM, DB, CALLS)
    assert layout.permits == ((1, "db"),)
    assert schema_of((TPM, CALLS)).permits == ()
    scope = short_key("v1:api:-")
    assert layout.leases(scope) == ((1, lease_key(scope, "db")),)
    assert schema_of((TPM,)).leases(scope) == ()


def test_what_was_used_is_carried_by_key_into_changed_limits() -> None:
    old, new = schema_of((TPM, CALLS, DB)), schema_of((DB, FINER, RateLimit("rpm", 5, 60)))
    states = new.carried(old, taken(old, tpm=6, call_count=2, db=1), NOW)
    used = [rule.used(state, NOW) / rule.parts_per_unit for rule, state in zip(new.rules, states, strict=True)]
    assert used == [1, 6, 0]


def test_a_change_is_converted_into_other_parts_and_rounded_towards_more_use() -> None:
    old, new = schema_of((TPM,)), schema_of((FINER,))
    assert [layout.rules[0].parts_per_unit for layout in (old, new)] == [1_000_000, 60_000_000]
    assert new.converted("tpm", 2_000_000, old) == 120_000_000
    assert new.converted("tpm", -2_000_000, old) == -120_000_000
    assert old.converted("tpm", 61, new) == 2
    assert old.converted("tpm", -61, new) == -1
    assert old.converted("tpm", -59, new) == 0
    assert old.converted("tpm", 0, new) == 0


def test_forgetting_leaves_permits_with_their_holders() -> None:
    layout = schema_of((TPM, CALLS, DB))
    states = taken(layout, tpm=6, call_count=2, db=1)
    assert layout.forgotten(states, None) == [layout.start[0], layout.start[1], states[2]]
    assert layout.forgotten(states, ["tpm", "db", "typo"]) == [layout.start[0], states[1], states[2]]


def test_a_scope_is_restored_when_all_its_limits_are() -> None:
    layout = schema_of((TPM, RateLimit("rpm", 10, 60, RateLimitAlgorithm.FIXED_WINDOW), DB))
    assert layout.restored_at(layout.start) <= NOW
    assert layout.restored_at(taken(layout, tpm=5)) == NOW + 5 * SECOND
    assert layout.restored_at(taken(layout, tpm=5, rpm=1)) == NOW + 60 * SECOND
    assert layout.restored_at(taken(layout, db=1)) > NOW + 366 * 86_400 * SECOND, "never while a permit is held"
    assert Schema((), LEASE_US).restored_at(()) == 0

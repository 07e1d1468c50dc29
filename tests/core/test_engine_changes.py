"""Migration: records of limits that have changed since, whatever their kinds, algorithms and order."""

from __future__ import annotations

import pytest

from limits_app.core import engine
from limits_app.core.limits import (
    AnyLimit,
    Blocked,
    CallLimit,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.core.record import LEASE_US
from tests.core.algorithms.driven import NOW, SECOND
from tests.core.engine_steps import Scopes

TPM = RateLimit("tpm", 10, 10)
FINER = RateLimit("tpm", 7, 60)
DB = ResourceLimit("db", 3)
METERED: dict[str, AnyLimit] = {
    **{str(algorithm): RateLimit("key", 10, 60, algorithm) for algorithm in RateLimitAlgorithm},
    "finer": RateLimit("key", 7, 60),
    "soft": RateLimit("key", 10, 60, soft=True),
    "month": QuotaLimit.per_month("key", 10),
    "session": QuotaLimit.per_session("key", 10, 60),
}
KINDS: dict[str, AnyLimit] = {**METERED, "resource": ResourceLimit("key", 10)}


def test_use_is_carried_by_key_into_changed_limits() -> None:
    scopes = Scopes(TPM, CallLimit(5, 60), DB)
    scopes.charge(tpm=6)
    old = scopes.record
    before = list(old.states)
    scopes.change(DB, FINER, RateLimit("rpm", 5, 60))
    assert scopes.used() == {"db": 1, "tpm": 6, "rpm": 0}
    assert scopes.record.changed
    assert old.states == before


@pytest.mark.parametrize("old", METERED)
def test_use_is_carried_between_all_metered_limits(old: str) -> None:
    for new in METERED.keys() - {old}:
        scopes = Scopes(METERED[old])
        scopes.charge(key=4)
        scopes.change(METERED[new])
        assert scopes.used() == {"key": 4}, new


@pytest.mark.parametrize("new", METERED)
def test_permits_and_metered_limits_carry_nothing_into_each_other(new: str) -> None:
    scopes = Scopes(KINDS["resource"])
    scopes.charge(key=4)
    scopes.change(METERED[new])
    assert scopes.used() == {"key": 0}
    scopes.charge(key=3)
    scopes.change(KINDS["resource"])
    assert scopes.used() == {"key": 4}, "its lease was kept"


@pytest.mark.parametrize("other", [(Blocked(),), ()], ids=["blocked", "empty"])
@pytest.mark.parametrize("kind", KINDS)
def test_use_is_kept_while_a_scope_has_no_such_limit(kind: str, other: tuple[AnyLimit, ...]) -> None:
    scopes = Scopes(KINDS[kind])
    claim = scopes.charge(key=4)
    scopes.change(*other)
    assert scopes.used() == dict.fromkeys([limit.key for limit in other], 0)
    scopes.change(KINDS[kind])
    assert scopes.used() == {"key": 4}
    assert scopes.settle(claim, key=-4)
    limit = KINDS[kind]
    assert scopes.used() == {"key": 0 if not isinstance(limit, RateLimit) or limit.algorithm.refunds else 4}


@pytest.mark.parametrize("kind", METERED)
def test_use_of_an_absent_limit_is_settled_reset_and_forgotten_in_time(kind: str) -> None:
    scopes = Scopes(METERED[kind])
    first, second = scopes.charge(key=4), scopes.charge(key=1)
    scopes.change(TPM)
    assert scopes.settle(first, key=2)
    scopes.change(METERED[kind])
    assert scopes.used() == {"key": 7}
    scopes.change(TPM)
    restored_at = engine.restored_at(scopes.record)
    assert restored_at > NOW
    engine.reset(scopes.record, ["tpm"])
    assert scopes.record.kept
    engine.reset(scopes.record, ["key"])
    assert not scopes.record.kept
    assert scopes.settle(second, key=2)
    assert not scopes.record.kept
    scopes.change(METERED[kind])
    scopes.charge(key=4)
    scopes.change(TPM)
    assert scopes.record.kept
    scopes.change(DB, at=restored_at - NOW + 60 * SECOND)
    assert not scopes.record.kept


def test_an_expired_lease_that_outlived_its_limit_is_not_returned_twice() -> None:
    scopes = Scopes(ResourceLimit("db", 1))
    late = scopes.charge()
    scopes.change(ResourceLimit("db", 2), at=LEASE_US)
    assert scopes.charge(at=LEASE_US, db=2).admitted
    assert not scopes.settle(late, at=LEASE_US)
    assert scopes.used() == {"db": 2}
    assert not scopes.charge(at=LEASE_US).admitted


@pytest.mark.parametrize(
    ("change", "used"), [(2, 8), (-2, 4), (0.5, 6.5), (-0.5, 5.5)], ids=["more", "less", "more_parts", "less_parts"]
)
def test_a_change_is_converted_into_other_parts(change: float, used: float) -> None:
    scopes = Scopes(TPM)
    claim = scopes.charge(tpm=6)
    scopes.change(FINER)
    assert scopes.record.schema.rules[0].parts_per_unit != claim.plan.limits[0].rule.parts_per_unit
    assert scopes.settle(claim, tpm=change)
    assert scopes.used() == {"tpm": used}


@pytest.mark.parametrize(
    ("parts", "used"), [(1, 1), (999_999, 1), (1_000_001, 2), (-1, 0), (-1_999_999, -1), (-2_000_000, -2)]
)
def test_a_converted_change_is_rounded_towards_more_use(parts: int, used: int) -> None:
    scopes = Scopes(TPM)
    claim = scopes.charge(tpm=6)
    scopes.change(QuotaLimit.per_session("tpm", 100, 60))
    assert claim.plan.limits[0].rule.parts_per_unit == 1_000_000
    assert engine.settle(claim, scopes.records, NOW, [parts])
    assert scopes.used() == {"tpm": 6 + used}


@pytest.mark.parametrize("old", KINDS)
def test_a_limit_of_another_kind_is_settled_as_far_as_it_can(old: str) -> None:
    for new in KINDS.keys() - {old}:
        scopes = Scopes(KINDS[old])
        claim = scopes.charge(key=4)
        scopes.change(KINDS[new])
        assert scopes.settle(claim, key=2)
        assert scopes.used() == {"key": 0 if "resource" in {old, new} else 6}, new
        assert scopes.record.leases == {}

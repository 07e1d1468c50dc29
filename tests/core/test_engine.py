"""The engine: charging all or nothing, settling, leases and reset, over records without a store."""

from __future__ import annotations

import pytest

from limits_app.core import engine
from limits_app.core.algorithms.rule import NEVER_US
from limits_app.core.limits import Blocked, CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.record import LEASE_US, new_record, schema_of
from tests.core.algorithms.driven import NOW, SECOND
from tests.core.engine_steps import Scopes, leases_of

TPM = RateLimit("tpm", 10, 10)
WINDOW = RateLimit("window", 10, 60, RateLimitAlgorithm.FIXED_WINDOW)
CALLS = CallLimit(5, 60)
DB = ResourceLimit("db", 2)


def test_all_scopes_are_charged_or_none() -> None:
    scopes = Scopes(TPM, parent=(CallLimit(1, 60),))
    assert scopes.charge(tpm=4).admitted
    before = scopes.states()
    for record in scopes.records:
        record.changed = False
    rejected = scopes.charge(tpm=4)
    assert rejected.admitted is False
    assert scopes.states() == before
    assert [record.changed for record in scopes.records] == [False, False]


@pytest.mark.parametrize("is_blocked", [False, True])
def test_a_record_of_other_limits_is_saved_unless_they_block(is_blocked: bool) -> None:
    scopes = Scopes(TPM)
    scopes.charge(tpm=4)
    scopes.change(Blocked() if is_blocked else CALLS)
    assert scopes.record.changed is not is_blocked


def test_an_admitted_claim_has_the_states_after_it_and_a_rejected_one_those_before() -> None:
    scopes = Scopes(TPM, CALLS)
    admitted = scopes.charge(tpm=10)
    assert list(admitted.states) == scopes.record.states
    assert scopes.record.changed
    rejected = scopes.charge(tpm=1)
    assert list(rejected.states) == scopes.record.states
    assert rejected.refusal() == ([(scopes.scoped[0].key, "tpm")], SECOND)


def test_a_blocked_scope_rejects_everything() -> None:
    scopes = Scopes(TPM, parent=(Blocked(),))
    claim = scopes.claim(tpm=1)
    assert [limit.key for limit in claim.plan.limits] == ["tpm", "blocked"]
    rejected = scopes.charge(tpm=0)
    assert not rejected.admitted
    assert rejected.refusal() == ([(scopes.scoped[1].key, "blocked")], NEVER_US)


def test_permits_are_leased_to_the_holder() -> None:
    scopes = Scopes(DB, ResourceLimit("gpu", 5, max_hold_seconds=4))
    claim = scopes.charge(gpu=3)
    leases = scopes.record.leases
    assert {key: (lease.amount, lease.expires_at, min(lease.ends_at, NEVER_US)) for key, lease in leases.items()} == {
        ("db", claim.holder): (1, NOW + LEASE_US, NEVER_US),
        ("gpu", claim.holder): (3, NOW + 4 * SECOND, NOW + 4 * SECOND),
    }


def test_a_rejection_saves_the_leases_that_it_has_reclaimed() -> None:
    scopes = Scopes(DB, CallLimit(1, 3600))
    scopes.charge(db=2)
    scopes.record.changed = False
    assert not scopes.charge(at=LEASE_US).admitted
    assert scopes.record.changed
    assert leases_of(scopes.record) == []
    assert scopes.used() == {"db": 0, "call_count": 1}


def test_the_lease_of_an_ended_process_is_reclaimed() -> None:
    scopes = Scopes(DB)
    gone, kept = scopes.charge(), scopes.charge()
    claim = scopes.claim()
    assert not engine.charge(claim, scopes.loaded(claim.plan), NOW, lambda holder: False)
    assert engine.charge(claim, scopes.loaded(claim.plan), NOW, lambda holder: holder == gone.holder)
    assert {holder for _, holder in scopes.record.leases} == {kept.holder, claim.holder}


def test_reclaiming_returns_whether_a_state_has_changed() -> None:
    scopes = Scopes(DB, TPM)
    assert not engine.reclaim(scopes.record, NOW)
    scopes.charge(tpm=1)
    assert not engine.reclaim(scopes.record, NOW + LEASE_US - 1)
    assert not engine.reclaim(scopes.record, NOW, lambda holder: False)
    assert engine.reclaim(scopes.record, NOW + LEASE_US)
    assert scopes.record.leases == {}


def test_renewal_renews_all_permits_of_a_claim_or_none() -> None:
    scopes = Scopes(ResourceLimit("db", 1, max_hold_seconds=5), parent=(ResourceLimit("gpu", 1),))
    claim = scopes.charge()
    assert not engine.renew(claim, scopes.loaded(claim.plan), NOW + 6 * SECOND)
    assert scopes.records[1].leases["gpu", claim.holder].expires_at == NOW + LEASE_US
    del scopes.records[1].leases["gpu", claim.holder]
    assert not engine.renew(claim, scopes.loaded(claim.plan), NOW + 1)


def test_peeking_leaves_out_expired_leases_and_changes_nothing() -> None:
    scopes = Scopes(DB, TPM)
    claim = scopes.charge(db=2, tpm=3)
    before, scopes.record.changed = scopes.states(), False
    for at, held in ((0, 2), (LEASE_US - 1, 2), (LEASE_US, 0)):
        engine.peek(claim, scopes.loaded(claim.plan), NOW + at)
        assert claim.states[0][0] == held
        assert claim.decided_at == NOW + at
    assert scopes.states() == before
    assert leases_of(scopes.record) == [2]
    assert not scopes.record.changed


@pytest.mark.parametrize(
    ("limit", "change", "used"),
    [
        pytest.param(TPM, -3, 3, id="refunded"),
        pytest.param(TPM, 0, 6, id="unchanged"),
        pytest.param(TPM, 7, 13, id="debt"),
        pytest.param(RateLimit("tpm", 10, 10, RateLimitAlgorithm.LEAKY_BUCKET), -3, 6, id="not_refunded"),
        pytest.param(RateLimit("tpm", 10, 10, RateLimitAlgorithm.SLIDING_WINDOW), 7, 13, id="debt_in_a_window"),
        pytest.param(QuotaLimit.per_session("tpm", 10, 60), -6, 0, id="quota"),
        pytest.param(QuotaLimit.per_session("tpm", 10, 60, soft=True), 90, 96, id="soft"),
    ],
)
def test_changes_are_settled_as_the_algorithm_does(limit: RateLimit, change: int, used: int) -> None:
    scopes = Scopes(limit)
    claim = scopes.charge(tpm=6)
    scopes.record.changed = False
    assert scopes.settle(claim, tpm=change)
    assert scopes.used() == {"tpm": used}
    assert scopes.record.changed is (change != 0)


def test_a_record_is_restored_when_all_its_limits_are() -> None:
    scopes = Scopes(TPM, WINDOW)
    assert engine.restored_at(scopes.record) <= NOW
    scopes.charge(tpm=5)
    assert engine.restored_at(scopes.record) == NOW + 5 * SECOND
    scopes.charge(window=1)
    assert engine.restored_at(scopes.record) == NOW + 60 * SECOND
    assert engine.restored_at(new_record(schema_of(()))) == 0


def test_a_record_is_never_restored_while_permits_are_held() -> None:
    scopes = Scopes(DB)
    claim = scopes.charge()
    assert engine.restored_at(scopes.record) == NEVER_US
    scopes.settle(claim)
    assert engine.restored_at(scopes.record) <= NOW


def test_a_record_is_not_restored_while_leases_of_a_removed_limit_last() -> None:
    scopes = Scopes(DB, TPM)
    scopes.charge(tpm=1)
    scopes.change(TPM)
    assert engine.restored_at(scopes.record) == NOW + LEASE_US

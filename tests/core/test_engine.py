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
SOFT = RateLimit("soft", 5, 60, RateLimitAlgorithm.FIXED_WINDOW, soft=True)
CALLS = CallLimit(5, 60)
DB = ResourceLimit("db", 2)


@pytest.mark.parametrize(
    ("requests", "admitted", "used"),
    [
        pytest.param([{"tpm": 4}, {"tpm": 6}, {"tpm": 1}], [True, True, False], {"tpm": 10, "db": 2}, id="one_limit"),
        pytest.param([{"tpm": 4, "db": 2}, {"tpm": 4}], [True, False], {"tpm": 4, "db": 2}, id="another_rejects"),
        pytest.param([{"tpm": 0}, {"tpm": 0}, {"tpm": 0}], [True, True, False], {"tpm": 0, "db": 2}, id="nothing"),
    ],
)
def test_all_limits_are_charged_or_none(
    requests: list[dict[str, int]], admitted: list[bool], used: dict[str, int]
) -> None:
    scopes = Scopes(TPM, DB)
    assert [scopes.charge(**request).admitted for request in requests] == admitted
    assert scopes.used() == used


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


def test_an_amount_of_0_is_rejected_in_debt() -> None:
    scopes = Scopes(TPM)
    claim = scopes.charge(tpm=10)
    assert scopes.settle(claim, tpm=5)
    assert scopes.charge(tpm=0).admitted is False
    assert scopes.charge(at=5 * SECOND, tpm=0).admitted


def test_a_soft_limit_records_debt_only_where_the_hard_limits_admit() -> None:
    scopes = Scopes(SOFT, WINDOW)
    assert scopes.charge(soft=20, window=6).admitted
    assert scopes.used() == {"soft": 20, "window": 6}
    assert not scopes.charge(soft=1, window=5).admitted
    assert scopes.used() == {"soft": 20, "window": 6}
    assert scopes.charge(soft=0, window=0).admitted


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


def test_a_rejected_request_leases_nothing() -> None:
    scopes = Scopes(DB, ResourceLimit("gpu", 1))
    assert scopes.charge(gpu=1).admitted
    assert not scopes.charge(gpu=1).admitted
    assert leases_of(scopes.record) == leases_of(scopes.record, "gpu") == [1]


def test_an_expired_lease_is_reclaimed_for_the_next_request() -> None:
    scopes = Scopes(DB)
    expired = [scopes.charge(), scopes.charge(at=1)]
    assert not scopes.charge(at=LEASE_US - 1).admitted
    assert scopes.charge(at=LEASE_US).admitted
    assert not scopes.charge(at=LEASE_US).admitted
    assert scopes.charge(at=LEASE_US + 1).admitted
    assert [scopes.settle(claim, at=LEASE_US + 2) for claim in expired] == [False, False]
    assert leases_of(scopes.record) == [1, 1]
    assert scopes.used() == {"db": 2}


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


def test_a_renewed_lease_lasts_from_then_on_and_never_beyond_max_hold() -> None:
    scopes = Scopes(ResourceLimit("db", 1, max_hold_seconds=12))
    claim = scopes.charge()
    scopes.record.changed = False
    for at, expires_at in ((1, LEASE_US + 1), (9 * SECOND, 12 * SECOND), (11 * SECOND, 12 * SECOND)):
        assert engine.renew(claim, scopes.loaded(claim.plan), NOW + at)
        assert scopes.record.leases["db", claim.holder].expires_at == NOW + expires_at
    assert scopes.record.changed
    assert not engine.renew(claim, scopes.loaded(claim.plan), NOW + 12 * SECOND)


def test_renewal_renews_all_permits_of_a_claim_or_none() -> None:
    scopes = Scopes(ResourceLimit("db", 1, max_hold_seconds=5), parent=(ResourceLimit("gpu", 1),))
    claim = scopes.charge()
    assert not engine.renew(claim, scopes.loaded(claim.plan), NOW + 6 * SECOND)
    assert scopes.records[1].leases["gpu", claim.holder].expires_at == NOW + LEASE_US
    del scopes.records[1].leases["gpu", claim.holder]
    assert not engine.renew(claim, scopes.loaded(claim.plan), NOW + 1)


def test_a_lease_that_was_renewed_is_not_reclaimed_at_its_first_end() -> None:
    scopes = Scopes(ResourceLimit("db", 1))
    claim = scopes.charge()
    assert engine.renew(claim, scopes.loaded(claim.plan), NOW + SECOND)
    assert not scopes.charge(at=LEASE_US).admitted
    assert scopes.charge(at=LEASE_US + SECOND).admitted


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


def test_settling_returns_the_permits_of_the_claim() -> None:
    scopes = Scopes(DB)
    first, second = scopes.charge(), scopes.charge()
    assert scopes.settle(first)
    assert leases_of(scopes.record) == [1]
    assert scopes.used() == {"db": 1}
    assert not scopes.settle(first), "the lease is not there any more"
    assert scopes.used() == {"db": 1}
    assert scopes.settle(second)
    assert scopes.used() == {"db": 0}


def test_the_fence_of_permits_grows_from_grant_to_grant() -> None:
    scopes, fences = Scopes(ResourceLimit("db", 1)), []
    for at in (0, 0, -SECOND, LEASE_US):
        claim = scopes.charge(at=at)
        fences.append(claim.states[0][2])
        scopes.settle(claim, at=at)
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_credit_reduces_use_whatever_the_algorithm(algorithm: RateLimitAlgorithm) -> None:
    scopes = Scopes(RateLimit("tpm", 10, 60, algorithm), CALLS)
    scopes.charge(tpm=6)
    scopes.credit("tpm", 4)
    assert scopes.used() == {"tpm": 2, "call_count": 1}
    scopes.credit("tpm", 100)
    assert scopes.used() == {"tpm": 0, "call_count": 1}
    assert not scopes.charge(tpm=11).admitted


@pytest.mark.parametrize(
    ("keys", "used"),
    [
        (None, {"tpm": 0, "window": 0, "db": 1}),
        (["tpm"], {"tpm": 0, "window": 4, "db": 1}),
        (["db", "typo"], {"tpm": 3, "window": 4, "db": 1}),
        ([], {"tpm": 3, "window": 4, "db": 1}),
    ],
)
def test_a_reset_forgets_use_and_leaves_permits(keys: list[str] | None, used: dict[str, int]) -> None:
    scopes = Scopes(TPM, WINDOW, DB)
    scopes.charge(tpm=3, window=4)
    scopes.record.changed = False
    engine.reset(scopes.record, keys)
    assert scopes.used() == used
    assert scopes.record.changed
    assert leases_of(scopes.record) == [1]


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

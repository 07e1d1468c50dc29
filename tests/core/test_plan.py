"""Plans: requests compiled once for each form, and the changes that a release settles."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from limits_app.core.clock import system_us
from limits_app.core.errors import InvalidLimit, InvalidRequest, UsageNotReported
from limits_app.core.keys import IDEMPOTENCY_LEVEL, scope_of, short_key
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, Limit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.plan import ScopedLimits
from limits_app.core.planning import plan_for
from limits_app.core.record import LEASE_US, Schema, lease_us_of, new_record, schema_of
from limits_app.stores.memory import MemoryStore
from tests.core.sets import limit_set, used

TPM = RateLimit("tpm", 100, 60)
LOG = RateLimit("log", 100, 60, RateLimitAlgorithm.SLIDING_WINDOW)
CALLS = CallLimit(5, 60)
DB = ResourceLimit("db", 3)
USER = ScopedLimits(scope_of("api", "user"), schema_of((TPM, LOG, CALLS, DB)))
TEAM = ScopedLimits(scope_of("api", "team"), schema_of((TPM, ResourceLimit("gpu", 2))), prefix="team:")
ONCE = ScopedLimits(
    scope_of("api", "once"), schema_of((CallLimit(1, 3600),)), IDEMPOTENCY_LEVEL, prefix=f"{IDEMPOTENCY_LEVEL}:"
)


def test_a_plan_has_the_limits_of_all_scopes_in_order() -> None:
    plan = plan_for([USER, TEAM, ONCE], ["tpm", "team:tpm"], version=7, left_out=())
    assert [limit.key for limit in plan.limits] == [
        "tpm",
        "call_count",
        "db",
        "team:tpm",
        "team:gpu",
        "idempotency:call_count",
    ]
    assert [limit.place for limit in plan.limits] == list(range(6))
    assert [limit.scope_index for limit in plan.limits] == [0, 0, 0, 1, 1, 2]
    assert [limit.key for limit in plan.permits] == ["db", "team:gpu"]
    assert plan.must_report == {"tpm", "team:tpm"}
    assert plan.scope_keys == (USER.key, TEAM.key, ONCE.key)
    assert plan.version == 7
    assert plan.buckets[3] == (TEAM.key, "tpm")
    assert plan.fixed_amounts is None


def test_a_scope_of_which_nothing_is_requested_is_not_part_of_the_plan() -> None:
    plan = plan_for([TEAM, USER], ["tpm"], version=None, left_out=("team:gpu",))
    assert plan.scope_keys == (USER.key,)


def test_amounts_that_depend_on_no_request_are_fixed() -> None:
    plan = plan_for([USER], (), version=None, left_out=())
    assert [limit.key for limit in plan.limits] == ["call_count", "db"]
    assert plan.fixed_amounts == tuple(limit.rule.parts_per_unit for limit in plan.limits)
    assert plan.fits


def test_short_keys_have_16_bytes_and_are_made_once() -> None:
    plan = plan_for([USER, TEAM], (), version=None, left_out=())
    assert plan.short_keys() == [short_key(USER.key), short_key(TEAM.key)]
    assert plan.short_keys() is plan.short_keys()


@pytest.mark.parametrize(
    ("used", "refunds_unreported", "changes"),
    [
        pytest.param({}, False, {"db": -1}, id="release"),
        pytest.param({}, True, {"tpm": -30, "log": -30, "db": -1, "idempotency:call_count": -1}, id="cancel"),
        pytest.param({"tpm": 20, "log": 35}, False, {"tpm": -10, "log": 5, "db": -1}, id="reported"),
        pytest.param(
            {"tpm": 20, "log": 35},
            True,
            {"tpm": -10, "log": 5, "db": -1, "idempotency:call_count": -1},
            id="reported_and_failed",
        ),
        pytest.param({"log": 20, "tpm": 30}, True, {"log": -10, "db": -1, "idempotency:call_count": -1}, id="permits"),
    ],
)
def test_a_release_settles_changes(used: dict[str, int], refunds_unreported: bool, changes: dict[str, int]) -> None:
    plan = plan_for([USER, ONCE], ["tpm", "log"], version=None, left_out=())
    amounts, fits = plan.amounts({"tpm": 30, "log": 30})
    assert fits
    reported = [used[limit.key] * limit.rule.parts_per_unit if limit.key in used else -1 for limit in plan.limits]
    settled = plan.changes(reported if used else (), amounts, refunds_unreported=refunds_unreported)
    assert {limit.key: settled[limit.place] / limit.rule.parts_per_unit for limit in plan.limits} == {
        limit.key: changes.get(limit.key, 0) for limit in plan.limits
    }


def test_an_amount_that_nothing_refunds_keeps_the_idempotency_key() -> None:
    scoped = ScopedLimits(scope_of("api", "log"), schema_of((LOG,)))
    plan = plan_for([scoped, ONCE], ["log"], version=None, left_out=())
    amounts, _ = plan.amounts({"log": 5})
    assert plan.changes((), amounts, refunds_unreported=True) == [-5, 0]


def test_a_quota_and_a_permit_with_the_same_key_are_requested_together_unless_the_amount_is_0(
    store: MemoryStore,
) -> None:
    quota = ScopedLimits(scope_of("api", "quota"), schema_of((QuotaLimit.per_day("x", 5),)))
    slots = ScopedLimits(scope_of("api", "slots"), schema_of((ResourceLimit("x", 3),)))
    limits = LimitSet.composed([quota, slots], store)
    for amount, keys in ((2, ["x", "x"]), (0, ["x"]), (2, ["x", "x"]), (0, ["x"])):
        plan = limits.prepare({"x": amount}).claim.plan
        assert [limit.key for limit in plan.limits] == keys
        assert bool(plan.permits) is bool(amount)


def test_a_set_has_the_keys_that_a_request_may_name(store: MemoryStore) -> None:
    assert limit_set(store, TPM, CALLS, DB).keys == ["tpm", "call_count", "db"]
    assert LimitSet.composed([USER, TEAM], store).keys == ["team:tpm", "team:gpu", "tpm", "log", "call_count", "db"]


def test_plans_of_many_forms_are_dropped_and_compiled_again(store: MemoryStore) -> None:
    limits = limit_set(store, *[RateLimit(f"k{number}", 1000, 60) for number in range(10)])
    pairs = [(one, other) for one in limits.keys for other in limits.keys if one != other]
    triples = [(*pair, key) for pair in pairs for key in limits.keys[:3] if key not in pair]
    plans = [limits.prepare(dict.fromkeys(keys, 1)).claim.plan for keys in triples]
    assert [tuple(limit.key for limit in plan.named) for plan in plans] == [
        tuple(sorted(keys, key=limits.keys.index)) for keys in triples
    ]


def test_the_clock_of_the_machine_counts_from_1970() -> None:
    assert abs(system_us() - MemoryStore().clock()) < 60_000_000


RECORD_TPM = RateLimit("tpm", 10, 10)


@pytest.mark.parametrize(
    ("lease_seconds", "lease_us"), [(10, LEASE_US), (0.001, 1000), (1.5, 1_500_000), (366 * 86_400, 31_622_400_000_000)]
)
def test_a_lease_lasts_a_millisecond_or_more(lease_seconds: float, lease_us: int) -> None:
    assert lease_us_of(lease_seconds) == lease_us


@pytest.mark.parametrize(
    "lease_seconds", [0, -1, 0.0009, 366 * 86_400 + 1, 10**400, float("nan"), float("inf"), True, None, "10"]
)
def test_an_invalid_lease_is_rejected(lease_seconds: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"lease_seconds must be between 0\.001 seconds and 366 days .*, not "):
        lease_us_of(lease_seconds)


def test_the_same_limits_are_compiled_once() -> None:
    assert schema_of((RECORD_TPM, DB)) is schema_of((RateLimit("tpm", 10, 10), ResourceLimit("db", 3)))
    assert schema_of((RECORD_TPM, DB)) is schema_of((RECORD_TPM, DB), LEASE_US)
    assert schema_of((RECORD_TPM, DB)) is pickle.loads(pickle.dumps(schema_of((RECORD_TPM, DB))))
    assert schema_of((RECORD_TPM, DB)) is not schema_of((DB, RECORD_TPM))
    assert schema_of((RECORD_TPM, DB)) is not schema_of((RECORD_TPM, DB), LEASE_US + 1)
    assert schema_of((RECORD_TPM, DB)) is not schema_of((RECORD_TPM, DB), counts_usage=True)


def test_a_schema_has_the_position_of_every_limit() -> None:
    schema = schema_of((RECORD_TPM, DB, CALLS, ResourceLimit("gpu", 1)))
    assert schema.index == {"tpm": 0, "db": 1, "call_count": 2, "gpu": 3}
    assert (
        [rule.limit for rule in schema.rules] == list(schema.limits) == [RECORD_TPM, DB, CALLS, ResourceLimit("gpu", 1)]
    )
    assert schema.permits == (1, 3)
    assert schema_of((RECORD_TPM, CALLS)).permits == ()


def test_two_limits_with_the_same_key_are_rejected() -> None:
    with pytest.raises(InvalidLimit, match="tpm"):
        Schema((RECORD_TPM, RateLimit("tpm", 1, 1)), LEASE_US, counts_usage=False)


def test_amounts_are_converted_to_thousandths_of_a_unit() -> None:
    schema = schema_of((RateLimit("tpm", 7, 60), RateLimit("rpm", 10, 60, RateLimitAlgorithm.FIXED_WINDOW)))
    assert schema.milli(0, 3 * schema.rules[0].parts_per_unit) == 3000
    assert schema.milli(1, 3) == 3000


@pytest.mark.parametrize("counts_usage", [False, True])
def test_a_new_record_is_unused(*, counts_usage: bool) -> None:
    schema = schema_of((RECORD_TPM, DB), counts_usage=counts_usage)
    record = new_record(schema)
    assert record.states == [rule.start for rule in schema.rules]
    assert record.states is not new_record(schema).states
    assert record.leases == {}
    assert not record.finished
    assert not record.changed
    if record.usage is not None:
        assert (record.usage.until, record.usage.amounts) == (0, [0, 0])
    assert (record.usage is not None) is counts_usage


SEVERAL_TPM = RateLimit("tpm", 10, 10**7)
SEVERAL_CALLS = CallLimit(3, 10**7)
SEVERAL_DB = ResourceLimit("db", 2)


def over(store: MemoryStore, **resources: tuple[Limit, ...]) -> LimitSet:
    """A set over several resources."""
    scoped = [
        ScopedLimits(scope_of(name, "someone"), schema_of(limits, store.lease_us), "resource", f"{name}:")
        for name, limits in resources.items()
    ]
    return LimitSet.composed(scoped, store)


def test_amounts_are_named_by_resource(store: MemoryStore) -> None:
    limits = over(store, one=(SEVERAL_TPM, SEVERAL_CALLS), other=(SEVERAL_TPM, SEVERAL_DB))
    with limits.acquire({"one:tpm": 3, "other:tpm": 5, "other:db": 2}) as acquisition:
        assert acquisition.acquisitions["one:call_count"].requested == 1
        acquisition.update({"one:tpm": 2, "other:tpm": 5})
    assert used(limits) == {"one:tpm": 2, "one:call_count": 1, "other:tpm": 5, "other:db": 0}


def test_a_refusal_by_one_charges_nothing_of_the_other(store: MemoryStore) -> None:
    limits = over(store, one=(SEVERAL_TPM,), other=(SEVERAL_TPM,))
    assert limits.try_acquire({"other:tpm": 10})
    refused = limits.try_acquire({"one:tpm": 3, "other:tpm": 1})
    assert not refused
    (violation,) = refused.outcome.violations
    assert (violation.resource, violation.key) == ("other", "tpm")
    assert used(limits) == {"one:tpm": 0, "other:tpm": 10}


def test_the_state_is_that_of_each_resource_alone(store: MemoryStore) -> None:
    both, alone = over(store, one=(SEVERAL_DB,), other=(SEVERAL_DB,)), over(store, one=(SEVERAL_DB,))
    held = alone.acquire({"one:db": 2})
    assert not both.try_acquire({"other:db": 1, "one:db": 1})
    held.release()
    assert both.try_acquire({"other:db": 1, "one:db": 1})


def test_many_calls_of_one_resource_must_be_reported_and_one_of_another_need_not(store: MemoryStore) -> None:
    limits = over(store, one=(SEVERAL_CALLS,), other=(SEVERAL_CALLS,))
    with pytest.raises(UsageNotReported, match="one:call_count"), limits.acquire({"one:call_count": 2}):
        pass
    with limits.acquire({"one:call_count": 1}):
        pass
    assert used(limits) == {"one:call_count": 3, "other:call_count": 2}

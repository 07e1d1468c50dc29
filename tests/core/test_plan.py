"""Plans: requests compiled once for each form, and the changes that a release settles."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from limits_app.core.errors import InvalidRequest, UsageNotReported
from limits_app.core.keys import IDEMPOTENCY_LEVEL, scope_of, short_key
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, Limit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.plan import ScopedLimits
from limits_app.core.planning import plan_for
from limits_app.core.record import LEASE_US, lease_us_of, schema_of
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
    keys = ["tpm", "call_count", "db", "team:tpm", "team:gpu", "idempotency:call_count"]
    assert [limit.key for limit in plan.limits] == keys
    assert [limit.place for limit in plan.limits] == list(range(6))
    assert [limit.scope_index for limit in plan.limits] == [0, 0, 0, 1, 1, 2]
    assert [limit.key for limit in plan.permits] == ["db", "team:gpu"]
    assert plan.must_report == {"tpm", "team:tpm"}
    assert plan.scope_keys == (USER.key, TEAM.key, ONCE.key)
    assert plan.short_keys() == plan.short_keys() == [short_key(key) for key in plan.scope_keys]
    assert plan.version == 7
    assert plan.buckets[3] == (TEAM.key, "tpm")
    without_team = plan_for([TEAM, USER], ["tpm"], version=None, left_out=("team:gpu",))
    assert without_team.scope_keys == (USER.key,), "nothing is requested of the team"


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
    schema = schema_of((TPM, DB))
    assert schema is schema_of((RateLimit("tpm", 100, 60), ResourceLimit("db", 3)), LEASE_US)
    assert schema is pickle.loads(pickle.dumps(schema))
    others = [schema_of((DB, TPM)), schema_of((TPM, DB), LEASE_US + 1), schema_of((TPM, DB), counts_usage=True)]
    assert schema not in others


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

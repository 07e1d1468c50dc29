"""Plans: requests compiled once for each form, and the changes that a release settles."""

from __future__ import annotations

import pytest

from limits_app.core.clock import system_us
from limits_app.core.keys import IDEMPOTENCY_LEVEL, scope_of, short_key
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.plan import ScopedLimits
from limits_app.core.planning import plan_for
from limits_app.core.record import schema_of
from limits_app.stores.memory import MemoryStore
from tests.core.sets import limit_set

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

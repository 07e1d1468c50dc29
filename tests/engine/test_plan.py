"""Plans: requests compiled once for each form, and the changes that a release settles."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.errors import InvalidRequest, StaleConfiguration, UsageNotReported
from limits_app.engine.keys import IDEMPOTENCY_LEVEL, EntityScopes, scope_of, shared_scope, short_key
from limits_app.engine.limits import (
    CallLimit,
    LimitDefinition,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.engine.planning import plan_for
from limits_app.engine.record import LEASE_US, lease_us_of, schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.memory import MemoryStore
from tests.acquiring.sets import limit_set, used
from tests.acquiring.test_modes import EVERYWHERE

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
    plan = plan_for([USER, TEAM, ONCE], ["tpm", "team:tpm"], left_out=())
    keys = ["tpm", "call_count", "db", "team:tpm", "team:gpu", "idempotency:call_count"]
    assert [limit.key for limit in plan.shape.limits] == keys
    assert [limit.position for limit in plan.shape.limits] == list(range(6))
    assert [limit.scope_index for limit in plan.shape.limits] == [0, 0, 0, 1, 1, 2]
    assert [limit.key for limit in plan.shape.permits] == ["db", "team:gpu"]
    assert plan.shape.must_report == {"tpm", "team:tpm"}
    assert plan.scope_keys == (USER.key, TEAM.key, ONCE.key)
    assert plan.short_keys() == plan.short_keys() == [short_key(key) for key in plan.scope_keys]
    assert plan.buckets[3] == (TEAM.key, "tpm")
    without_team = plan_for([TEAM, USER], ["tpm"], left_out=("team:gpu",))
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
    shape = plan_for([USER, ONCE], ["tpm", "log"], left_out=()).shape
    amounts, fits = shape.amounts({"tpm": 30, "log": 30})
    assert fits
    reported = {
        limit.position: used[limit.key] * limit.rule.parts_per_unit for limit in shape.limits if limit.key in used
    }
    settled = (shape.changes_of_cancel if refunds_unreported else shape.changes)(reported, amounts)
    assert {limit.key: settled[limit.position] / limit.rule.parts_per_unit for limit in shape.limits} == {
        limit.key: changes.get(limit.key, 0) for limit in shape.limits
    }


def test_an_amount_that_nothing_refunds_keeps_the_idempotency_key() -> None:
    scoped = ScopedLimits(scope_of("api", "log"), schema_of((LOG,)))
    shape = plan_for([scoped, ONCE], ["log"], left_out=()).shape
    amounts, _ = shape.amounts({"log": 5})
    assert shape.changes_of_cancel({}, amounts) == [-5, 0]


def test_a_quota_and_a_permit_with_the_same_key_are_requested_together_unless_the_amount_is_0(
    store: MemoryStore,
) -> None:
    quota = ScopedLimits(scope_of("api", "quota"), schema_of((QuotaLimit.per_day("x", 5),)))
    slots = ScopedLimits(scope_of("api", "slots"), schema_of((ResourceLimit("x", 3),)))
    limits = LimitSet.composed([quota, slots], store)
    for amount, keys in ((2, ["x", "x"]), (0, ["x"]), (2, ["x", "x"]), (0, ["x"])):
        shape = limits.prepare({"x": amount}).claim.shape
        assert [limit.key for limit in shape.limits] == keys
        assert bool(shape.permits) is bool(amount)


def test_a_set_has_the_keys_that_a_request_may_name(store: MemoryStore) -> None:
    assert limit_set(store, TPM, CALLS, DB).keys == ["tpm", "call_count", "db"]
    assert LimitSet.composed([USER, TEAM], store).keys == ["team:tpm", "team:gpu", "tpm", "log", "call_count", "db"]


def test_plans_of_many_forms_are_dropped_and_compiled_again(store: MemoryStore) -> None:
    limits = limit_set(store, *[RateLimit(f"k{number}", 1000, 60) for number in range(10)])
    pairs = [(one, other) for one in limits.keys for other in limits.keys if one != other]
    triples = [(*pair, key) for pair in pairs for key in limits.keys[:3] if key not in pair]
    shapes = [limits.prepare(dict.fromkeys(keys, 1)).claim.shape for keys in triples]
    assert [tuple(limit.key for limit in shape.named) for shape in shapes] == [
        tuple(sorted(keys, key=limits.keys.index)) for keys in triples
    ]


def test_parts_of_a_plan_are_compiled_once_and_the_oldest_are_dropped(store: MemoryStore) -> None:
    limits = limit_set(store, *[RateLimit(f"k{number}", 1000, 60) for number in range(9)])
    shape = limits.prepare(dict.fromkeys(limits.keys, 1)).claim.shape
    subsets = [[limit for limit in shape.limits if number >> limit.position & 1] for number in range(1, 1 << 9)]
    for subset in [*subsets, *subsets[:3]]:
        part = shape.part(subset)
        assert part is shape.part(subset)
        assert [limit.key for limit in part.limits] == [limit.key for limit in subset]
        assert [limit.position for limit in part.limits] == list(range(len(subset)))


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


def over(store: MemoryStore, **resources: tuple[LimitDefinition, ...]) -> LimitSet:
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


def named_clients(first: LimitSet, count: int) -> list[LimitSet]:
    """The set, whose entity is `user`, for other clients."""
    scopes = EntityScopes(first.scopes, "user")
    return [first.bound(scopes.of(f"user:{number}"), version=7, identity=number) for number in range(count)]


def in_use(limits: LimitSet) -> dict[str, object]:
    """What is used, by key, of limits of which anything is."""
    return {key: amount for key, amount in used(limits).items() if amount}


def test_a_shape_is_compiled_once_for_a_thousand_clients(store: MemoryStore) -> None:
    first = LimitSet.composed([USER], store, version=store.version())
    requests: list[dict[str, int]] = [{"tpm": 1, "log": 1}, {"tpm": 2, "db": 0}, {"tpm": 3, "call_count": 2}]
    claims = [client.prepare(requested) for client in named_clients(first, 1000) for requested in requests]
    assert len({id(claim.shape) for claim in claims}) == len(requests)


def test_clients_of_a_shape_share_only_shared_limits(store: MemoryStore) -> None:
    everyone = ScopedLimits(shared_scope("api", "gpu"), schema_of((ResourceLimit("gpu", 3),)))
    version = store.advance_version()
    template = LimitSet.composed([USER, everyone], store, version=version, resource="api", identity="user")
    ann, ben = (client.at_version(version) for client in named_clients(template, 2))
    with ann.try_acquire({"tpm": 40}) as taken:
        taken.update({"tpm": 40})
        assert [one.entity for one in taken.outcome.passed] == ["user:0", "user:0", "user:0", None]
        with ben.try_acquire({"tpm": 1}) as other:
            other.update({"tpm": 1})
            assert in_use(ben) == {"tpm": 1, "call_count": 1, "db": 1, "gpu": 2}
            assert in_use(ann) == {"tpm": 40, "call_count": 1, "db": 1, "gpu": 2}
    assert in_use(template) == {}
    assert [one.scope for one in ben.scoped] == [scope_of("api", "user:1"), everyone.scope]
    assert (ben.resource, ben.identity, ben.version) == ("api", 1, version)


def test_a_bound_set_takes_permits_of_its_client_once_in_a_block(store: MemoryStore) -> None:
    version = store.advance_version()
    template = LimitSet.composed([replace(USER, schema=schema_of((DB,)))], store, version=version, identity="user")
    ann, ben = (client.at_version(version) for client in named_clients(template, 2))
    scopes = EntityScopes(template.scopes, "user")
    with ann.acquire():
        again = template.bound(scopes.of("user:0"), version=version, identity=0)
        with again.acquire(), ann.at_version(version).acquire(), ben.acquire():
            assert (in_use(ann), in_use(ben)) == ({"db": 1}, {"db": 1})


def test_a_bound_set_without_limits_or_version_calls_no_store(store: MemoryStore) -> None:
    empty = LimitSet.composed([], store, version=store.version())
    assert empty.at_version(store.advance_version()).try_acquire()
    with pytest.raises(StaleConfiguration):
        empty.try_acquire()
    free = empty.bound((), version=None).try_acquire()
    store.advance_version()
    assert free
    assert free.claim.decided_at == 0


def test_a_set_is_bound_to_as_many_scopes_as_it_has(store: MemoryStore) -> None:
    limits = LimitSet.composed([USER, TEAM], store)
    with pytest.raises(InvalidRequest, match="scopes must be one for each of the 2 scopes of the set, not 1"):
        limits.bound([USER.scope], version=None)


def test_a_bound_set_is_pickled_with_its_own_scopes() -> None:
    template = LimitSet.composed([USER], EVERYWHERE, version=EVERYWHERE.version())
    client = named_clients(template, 1)[0]
    again = pickle.loads(pickle.dumps(client))
    assert (again.scopes, again.version) == (client.scopes, 7)
    assert [one.schema.limits for one in again.scoped] == [one.schema.limits for one in client.scoped]

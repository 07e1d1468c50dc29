"""Pools that administrators set: by name, and as what serves a resource."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pytest_django import Settings

from limits_app import limits
from limits_app.acquiring.acquisition import Acquisition
from limits_app.engine.errors import (
    InvalidLimit,
    InvalidRequest,
    LimitExceeded,
    LimitTimeout,
    NeverAdmissible,
    StaleConfiguration,
    StoreUnavailable,
    UnknownPool,
)
from limits_app.engine.keys import EntityScopes
from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit, ResourceLimit
from limits_app.models import Entity, Pool, PoolMember, Resource
from limits_app.policies import PolicyChain, balancers, policy_source, resolver
from limits_app.policies.balancing import Balancers
from limits_app.policies.pools import PoolCache
from limits_app.services.explain_pool import MemberStanding
from limits_app.services.several import Share
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.opened import put_store
from tests.services.failing import FailingStore
from tests.services.pool_rows import CALLS, NAME, make_member, make_pool, serve

TPM = RateLimit.per_minute("tpm", 60)


def who(*acquisitions: Acquisition) -> str:
    """Which members have served, in order; `-` for a refusal."""
    return "".join(str(one.config["member"]) if one else "-" for one in acquisitions)


def many(number: int, resource: str = NAME, **options: Any) -> str:
    """Which members serve so many requests of a resource."""
    return who(*[limits.try_acquire(resource, **options) for _ in range(number)])


def test_pool_by_name_admits_the_amounts_of_its_members() -> None:
    make_pool({"a": [CALLS], "b": [CALLS]})
    pool = limits.pool(NAME)
    assert who(*[pool.try_acquire() for _ in range(7)]) == "ababab-"
    with pytest.raises(LimitTimeout):
        pool.acquire(timeout=0)


def test_all_of_one_name_are_one_pool_and_take_turns_together() -> None:
    make_pool({"a": [CALLS], "b": [CALLS]})
    pool = limits.pool(NAME)
    elsewhere = pickle.loads(pickle.dumps(pool))
    assert who(pool.try_acquire(), limits.pool(NAME).try_acquire(), elsewhere.try_acquire()) in {"aba", "bab"}
    assert limits.pool(NAME).peek().allowed
    stats: Any = limits.pool(NAME).get_stats()
    assert sum(one["call_count"]["used"] for one in stats["limit_sets"]) == 3


def test_it_is_a_pool_like_any_other() -> None:
    make_pool({"a": [CALLS], "b": [CALLS]}, load_balancing="failover", failover=False)
    pool = limits.pool(NAME)
    assert len(pool) == 2
    assert [one.config["member"] for one in pool] == ["a", "b"]
    assert pool[1]["call_count"] == CALLS
    assert pool.get_stats()["load_balancing"] == "failover"
    assert repr(pool) == "limits.pool('bedrock/claude')"


def test_asyncio_has_it_too() -> None:
    make_pool({"a": [CALLS]})

    async def four() -> str:
        pool = limits.pool(NAME)
        first = await pool.aacquire()
        return who(first, *[await pool.atry_acquire() for _ in range(3)])

    assert asyncio.run(four()) == "aaa-"


def test_invalid_and_unknown_names_are_rejected() -> None:
    with pytest.raises(InvalidLimit, match="must be a letter"):
        limits.pool("no name")
    nobody = limits.pool("nobody")
    with pytest.raises(UnknownPool, match="the pool 'nobody' does not exist"):
        nobody.try_acquire()


def test_a_change_counts_on_the_next_acquire() -> None:
    pool = make_pool({"a": [CallLimit(1, 3600)]})
    named = limits.pool(NAME)
    assert who(named.try_acquire(), named.try_acquire()) == "a-"
    make_member(pool, "b", [CALLS], order=9)
    assert who(named.try_acquire()) == "b"
    PoolMember.objects.filter(name="b").update(enabled=False)
    assert who(named.try_acquire()) == "-"
    pool.members.get(name="a").limits.update(text="2/d")
    assert who(named.try_acquire(), named.try_acquire()) == "a-"
    assert len(named) == 1
    PoolMember.objects.filter(name="b").update(enabled=True)
    assert len(named) == 2


def test_members_cool_down_by_name_or_index_and_return(clock: FakeClock) -> None:
    pool = make_pool({"a": [CALLS], "b": [CALLS]}, load_balancing="failover")
    serve("chat", pool)
    limits.pool(NAME).cool_down("a", 30)
    assert many(1, "chat") == "b"
    assert limits.pool(NAME).cooling_seconds(0) == 30
    make_member(pool, "c", [CALLS], order=9)
    assert many(1, "chat") == "b", "also when the pool has changed"
    clock.advance(31)
    assert many(1, "chat") == "a"
    async_to_sync(limits.pool(NAME).acool_down)(1, 30)
    assert many(3, "chat") == "aac"
    with pytest.raises(InvalidRequest, match="'d' is not an enabled member of bedrock/claude; enabled are: a, b, c"):
        limits.pool(NAME).cool_down("d", 1)


def test_own_limits_and_those_of_one_member_are_charged_together() -> None:
    serve("chat", make_pool({"a": [TPM], "b": [TPM]}))
    limits.set_resource_limits("chat", [RateLimit.per_minute("tpm", 100)])
    for _ in range(2):
        with limits.acquire("chat", entity="user:1", requested={"tpm": 50}) as acquisition:
            acquisition.update({"tpm": 40})
    status = limits.status("chat", entity="user:1")
    assert status.limits["tpm"]["used"] == 80
    assert {name: one["tpm"]["used"] for name, one in status.members.items()} == {"a": 40, "b": 40}
    with pytest.raises(LimitExceeded) as caught:
        limits.acquire("chat", entity="user:1", requested={"tpm": 25})
    assert caught.value.outcome.violations[0].member is None
    assert limits.acquire("chat", entity="user:2", requested={"tpm": 20})
    assert not limits.try_acquire("chat", entity="user:3", requested={"tpm": 21})


def test_the_wait_is_for_the_earliest_member_and_the_own_limits() -> None:
    serve("chat", make_pool({"slow": [TPM], "quick": [RateLimit.per_second("tpm", 10)]}, load_balancing="failover"))
    assert who(*[limits.try_acquire("chat", requested={"tpm": n}) for n in (60, 10)]) == "slowquick"
    refused = limits.try_acquire("chat", requested={"tpm": 5}).outcome
    assert refused.retry_after == pytest.approx(0.5, abs=0.01)
    assert [(one.resource, one.member, one.level) for one in refused.violations] == [(NAME, "quick", "pool_member")]
    assert refused.summary().startswith("'tpm' of bedrock/claude at quick has 0")


def test_members_without_a_requested_rate_are_no_candidates() -> None:
    serve("chat", make_pool({"a": [CALLS], "b": [TPM]}))
    limits.set_resource_limits("chat", [RateLimit.per_minute("tpm", 100), RateLimit.per_minute("images", 5)])
    assert many(2, "chat", requested={"tpm": 1}) == "bb"
    assert "a" in many(2, "chat", requested={"images": 1})
    with pytest.raises(InvalidRequest, match="no limit set of the pool has all requested limits: 'words'"):
        limits.try_acquire("chat", requested={"words": 1})


def test_requested_amounts_may_depend_on_the_effective_limits() -> None:
    serve("chat", make_pool({"a": [CALLS, TPM], "b": [TPM]}))
    assert many(1, "chat", requested=lambda found: dict.fromkeys(found.rates, 1)) == "a"
    assert {limit.key for limit in limits.limit_set("chat")} == {"tpm"}


def test_a_pool_without_an_enabled_member_rejects_all_requests() -> None:
    pool = make_pool({"a": [CALLS]})
    serve("chat", pool)
    PoolMember.objects.update(enabled=False)
    assert not limits.try_acquire("chat")
    assert limits.check("chat").summary() == "everything is blocked"
    assert "a: off" in limits.explain("chat").text()
    pool.members.all().delete()
    assert not limits.try_acquire("chat")


def test_cascades_shared_limits_and_shadows_go_with_pools() -> None:
    serve("chat", make_pool({"a": [CALLS], "b": [CALLS]}))
    tenant = Entity.objects.create(identifier="tenant:1")
    Entity.objects.create(identifier="user:1", parent=tenant, cascade=True)
    limits.set_entity_limits("tenant:1", [CallLimit(4, 3600)], resource="chat")
    limits.set_resource_limits("chat", [CallLimit(5, 3600)], shared=["call_count"])
    limits.set_entity_limits("user:1", [CallLimit(1, 3600)], resource="chat", enforcement="shadow")
    served = [limits.try_acquire("chat", entity="user:1") for _ in range(5)]
    assert Counter(who(*served)) == {"a": 2, "b": 2, "-": 1}
    assert [bool(one.outcome.shadowed) for one in served[:4]] == [False, True, True, True]
    assert limits.status("chat").limits["call_count"]["used"] == 4


def test_asyncio_is_served_too() -> None:
    serve("chat", make_pool({"a": [CALLS], "b": [CALLS]}))

    async def ask() -> tuple[str, bool, int, str]:
        first = await limits.aacquire("chat", timeout=1)
        second = await limits.atry_acquire("chat")
        outcome = await limits.acheck("chat")
        status = await limits.astatus("chat")
        explanation = await limits.aexplain("chat")
        assert explanation.pool is not None
        return who(first, second), outcome.allowed, len(status.members), explanation.pool.name

    served, *rest = asyncio.run(ask())
    assert sorted(served) == ["a", "b"]
    assert rest == [True, 2, NAME]
    assert asyncio.run(limits.areset("chat"))


def test_a_limit_set_of_a_pooled_resource_waits_and_travels() -> None:
    serve("chat", make_pool({"a": [CALLS]}))
    found = limits.limit_set("chat")
    assert who(found.acquire()) == "a"
    assert found.peek().allowed
    assert found.get_stats() == {}
    reduced: Any = found.__reduce__()
    restore, state = reduced
    assert who(restore(*state).try_acquire()) == "a"


def test_a_pooled_set_is_bound_to_other_clients_of_its_members() -> None:
    serve("chat", make_pool({"a": [CALLS], "b": [CALLS]}))
    limits.set_resource_limits("chat", [CallLimit(3, 3600)])
    ann: Any = limits.limit_set("chat", entity="user:1")
    scopes = EntityScopes(ann.scopes, "user:1")
    ben = ann.bound(scopes.of("user:2"), version=ann.version, identity=("chat", "user:2"))
    shapes = [{one.prepare(None).claim.shape for one in limit_set.pool} for limit_set in (ann, ben)]
    assert shapes[0] == shapes[1]
    assert Counter(who(*[ben.try_acquire() for _ in range(4)])) == {"a": 2, "b": 1, "-": 1}
    assert [one.scope.entity for one in ben.own] == ["user:2"]
    assert ben.get_stats()["call_count"]["used"] == 3
    assert ann.get_stats()["call_count"]["used"] == 0
    assert Counter(who(*[ann.try_acquire() for _ in range(3)])) == {"a": 1, "b": 2}
    cyd = ann.bound(scopes.of("user:3"), version=ann.version)
    assert who(cyd.try_acquire()) == "-", "all clients share the members"
    later = ann.at_version(ann.store.advance_version())
    assert later.pool[0].prepare(None).claim.plan is ann.pool[0].prepare(None).claim.plan
    assert later.member_stats()["b"]["call_count"]["used"] == 3
    with pytest.raises(StaleConfiguration):
        ann.peek()


def test_resetting_a_resource_leaves_its_pool_alone() -> None:
    serve("chat", make_pool({"a": [CALLS]}))
    limits.set_resource_limits("chat", [CallLimit(2, 3600)])
    assert many(3, "chat") == "aa-"
    assert limits.reset("chat")
    assert many(2, "chat") == "a-"


def test_secrets_are_looked_up_when_the_config_is_read(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool({"a": [CALLS]})
    config = {"region": "eu", "auth": {"api_key": {"env": "BEDROCK_KEY"}}, "ids": [{"setting": "BEDROCK_ID"}, 1]}
    pool.members.update(config=config)
    serve("chat", pool)
    settings.BEDROCK_ID = "id"
    acquisition = limits.acquire("chat")
    with pytest.raises(ImproperlyConfigured, match=r"member 'a' of the pool needs for 'auth' .* variable BEDROCK_KEY"):
        _ = acquisition.config
    monkeypatch.setenv("BEDROCK_KEY", "hush")
    assert acquisition.config == {"region": "eu", "auth": {"api_key": "hush"}, "ids": ["id", 1], "member": "a"}
    del settings.BEDROCK_ID
    with pytest.raises(ImproperlyConfigured, match="for 'ids' the setting BEDROCK_ID"):
        _ = limits.acquire("chat").config
    explanation = limits.explain("chat")
    for shown in (
        repr(acquisition.limit_set),
        explanation.text(),
        str(explanation.as_dict()),
        str(limits.status("chat")),
    ):
        assert "hush" not in shown


def test_an_explanation_names_the_chosen_member_and_why_others_are_skipped(clock: FakeClock) -> None:
    pool = make_pool(
        {"a": [TPM], "b": [TPM], "c": [TPM], "d": [CALLS], "e": [TPM], "f": [RateLimit("tpm", 5, 60)]},
        load_balancing="failover",
    )
    pool.members.filter(name="e").update(enabled=False)
    serve("chat", pool)
    assert many(1, "chat", requested={"tpm": 60}) == "a"
    limits.pool(NAME).cool_down("b", 12)
    found = limits.explain("chat", requested={"tpm": 10})
    assert found.pool is not None
    assert found.pool.chosen is not None
    assert {one.name: one.standing for one in found.pool.members} == {
        "a": MemberStanding.REFUSES,
        "b": MemberStanding.COOLING_DOWN,
        "c": MemberStanding.SERVES,
        "d": MemberStanding.UNABLE,
        "e": MemberStanding.DISABLED,
        "f": MemberStanding.NEVER,
    }
    assert found.text().splitlines()[2:] == [
        "It is served by the pool bedrock/claude (failover): c would serve.",
        "a: rejects: retry in 10 s; tpm: 0 of 60 left, 10 requested.",
        "b: cooling down for 12 s; tpm: 60 of 60 left, 10 requested.",
        "c: would serve; tpm: 60 of 60 left, 10 requested.",
        "d: lacks the requested limits.",
        "e: off.",
        "f: request exceeds the maximum; tpm: 5 of 5 left, 10 requested.",
    ]
    plain = found.as_dict()["pool"]
    assert isinstance(plain, dict)
    assert plain["chosen"] == "c"
    assert limits.acquire("chat", requested={"tpm": 10}).config["member"] == "c"


def test_explanation_without_amounts_shows_limits_of_a_single_member() -> None:
    budget = QuotaLimit("budget", 100, "day")
    serve("chat", make_pool({"a": [TPM, budget], "b": [TPM, CALLS]}))
    assert limits.acquire("chat", requested={"tpm": 5, "budget": 30}).config["member"] == "a"
    found = limits.explain("chat")
    assert found.pool is not None
    shown = {one.name: {limit.key: limit.remaining for limit in one.limits} for one in found.pool.members}
    assert shown == {"a": {"budget": 70, "tpm": 55}, "b": {"call_count": CALLS.capacity, "tpm": 60}}
    named = limits.explain("chat", requested={"tpm": 1})
    assert named.pool is not None
    assert [limit.key for limit in named.pool.members[0].limits] == ["tpm"]


def test_an_explanation_of_a_blocked_resource_promises_nothing_of_its_members() -> None:
    serve("chat", make_pool({"a": [TPM], "b": [ResourceLimit("slots", 2)]}))
    limits.set_resource_limits("chat", [], effect="blocked")
    for requested in (None, {"tpm": 5}):
        lines = limits.explain("chat", requested=requested).text().splitlines()
        assert "blocked: all requests are rejected until its policy is changed." in lines
        assert "none of its members would serve" in lines[3]
        assert lines[4].startswith("a: rejects, since everything is blocked; tpm: 60 of 60 left, ")
        assert not any("given back" in line for line in lines)


def test_an_explanation_of_an_inadmissible_request_to_a_pool() -> None:
    serve("chat", make_pool({"a": [TPM], "b": [TPM]}, failover=False))
    found = limits.explain("chat", requested={"tpm": 61})
    assert not found.outcome.allowed
    assert found.outcome.never
    assert found.pool is not None
    assert found.pool.chosen is None
    assert "(round robin, no failover): none of its members would serve." in found.text()


def test_a_pool_is_read_once_for_all_entities_which_take_turns_together() -> None:
    serve("chat", make_pool({"a": [CALLS], "b": [CALLS], "c": [CALLS]}))
    served = [limits.acquire("chat", entity=f"user:{number}") for number in range(3, 12)]
    assert Counter(who(*served)) == {"a": 3, "b": 3, "c": 3}
    with CaptureQueriesContext(connection) as queries:
        limits.try_acquire("chat", entity="user:2")
        limits.try_acquire("chat", entity="user:2")
    assert len(queries) == 1
    resolver.clear()
    with CaptureQueriesContext(connection) as queries:
        limits.try_acquire("chat", entity="user:2")
    assert len(queries) == 2


def test_a_pool_counts_as_soon_as_it_serves_and_no_longer() -> None:
    pool = make_pool({"a": [CallLimit(1, 3600)]})
    limits.set_resource_limits("chat", [CallLimit(9, 3600)])
    assert limits.try_acquire("chat").config == {}
    serve("chat", pool)
    assert many(2, "chat") == "a-"
    Resource.objects.filter(name="chat").update(pool=None)
    assert limits.try_acquire("chat").config == {}
    Pool.objects.all().delete()
    assert limits.try_acquire("chat")


def test_a_pool_that_was_renamed_meanwhile_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    serve("chat", make_pool({"a": [CALLS]}))
    read, names = policy_source.read, iter(["old", NAME, "gone", "gone"])

    def read_before(*key: Any) -> PolicyChain:
        return replace(read(*key), pool=next(names))

    monkeypatch.setattr(policy_source, "read", read_before)
    assert many(1, "chat") == "a"
    with pytest.raises(UnknownPool):
        limits.try_acquire("chat", entity="user:1")


def test_only_so_many_pools_are_kept() -> None:
    cache, found, store = PoolCache(most=2), Balancers(most=2), MemoryStore()
    for name in ("one", "two", "three"):
        make_pool({"a": [CALLS]}, name=name)
        found.find(cache.members(name, "default", store, 1).name, "random", (1,))
    with CaptureQueriesContext(connection) as queries:
        three, two, one = [cache.members(name, "default", store, 1) for name in ("three", "two", "one")]
    assert len(queries) == 1
    first = [found.find(members.name, "random", (1,)) for members in (two, three)]
    assert [found.find(members.name, "random", (1,)) for members in (two, three)] == first
    found.find(one.name, "random", (1,))
    assert found.find(two.name, "random", (1,)) not in first


def test_several_resources_are_acquired_with_one_member_of_the_pool() -> None:
    serve("chat", make_pool({"a": [TPM], "b": [TPM]}, load_balancing="failover"))
    limits.set_resource_limits("api", [CallLimit(3, 3600)])
    shares = [Share("api", "user:1"), Share("chat", "user:1", {"tpm": 50}), Share("chat", "tenant:1", {"tpm": 50})]
    first, second, third = [limits.try_acquire_all(shares) for _ in range(3)]
    assert who(first, second, third) == "ab-"
    assert {(one.resource, one.member) for one in first.outcome.passed} == {("api", None), (NAME, "a")}
    assert limits.status("api", entity="user:1").limits["call_count"]["used"] == 2


@pytest.mark.parametrize(("policy", "served"), [("allow", "aaaaa"), ("local", "ab---")])
def test_members_during_an_outage(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, policy: str, served: str
) -> None:
    settings.LIMITS = {**settings.LIMITS, "ON_UNAVAILABLE": policy, "EXPECTED_PROCESSES": 2}
    store = FailingStore(MemoryStore())
    put_store(monkeypatch, store)
    serve("chat", make_pool({"a": [CallLimit(2, 3600)], "b": [CallLimit(2, 3600)]}, load_balancing="failover"))
    assert limits.check("chat").allowed
    store.down = True
    assert many(5, "chat") == served
    assert limits.try_acquire("chat").outcome.degraded
    if policy == "local":
        with pytest.raises(NeverAdmissible):
            limits.try_acquire("chat", requested={"call_count": 3})
        with pytest.raises(StoreUnavailable):
            limits.try_acquire("chat", requested={"call_count": 2})


@pytest.mark.slow
@hypothesis_settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["round_robin", "least_loaded", "failover"]),
    st.booleans(),
    st.lists(st.lists(st.sampled_from([3, 5, 8]), max_size=2), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 20)), max_size=12),
)
def test_explain_check_and_acquire_never_disagree(
    clock: FakeClock, balancing: str, failover: bool, members: list[list[int]], asked: list[tuple[int, int, int]]
) -> None:
    for model in (Resource, Pool):
        model.objects.all().delete()
    limits.delete_system_limits()
    limits.set_system_limits([RateLimit("tpm", 12, 60)])
    rows = {str(n): [RateLimit("tpm", capacity, 60) for capacity in one[:1]] for n, one in enumerate(members)}
    serve("chat", make_pool(rows, load_balancing=balancing, failover=failover))
    balancers.clear()
    for user, amount, seconds in asked:
        options: Any = {"entity": f"user:{user}", "requested": {"tpm": amount}}
        told = limits.explain("chat", **options)
        assert told.pool is not None
        if told.outcome.never:
            for ask in (limits.check, limits.try_acquire):
                with pytest.raises(NeverAdmissible):
                    ask("chat", **options)
            continue
        checked = limits.check("chat", **options)
        acquisition = limits.try_acquire("chat", **options)
        assert told.outcome == checked
        assert checked.allowed is acquisition.successful
        assert (told.pool.chosen is None) is (not acquisition)
        if told.pool.chosen is not None:
            assert acquisition.config["member"] == told.pool.chosen.name
        else:
            assert checked.violations == acquisition.outcome.violations
        acquisition.cancel()
        clock.advance(seconds)

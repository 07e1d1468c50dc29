"""Several pools that serve one request: one member of each, chosen and charged in one step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import sleep
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pytest_django import Settings

from limits_app import CallLimit, InvalidRequest, LimitTimeout, RateLimit, ResourceLimit, conf, limits
from limits_app.core.acquisition import Acquisition
from limits_app.models import Pool, Resource
from limits_app.services.pools import member_use
from limits_app.services.together import Share, Together
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.services.failing import FailingStore
from tests.services.pool_rows import make_pool, serve

BOTH: dict[str, Any] = {"chat": None, "images": None}


def calls(number: int) -> CallLimit:
    """So many calls an hour."""
    return CallLimit(number, 3600)


def set_up(chat: Mapping[str, int], images: Mapping[str, int], **fields: Any) -> None:
    """Two resources, each served by a pool whose members admit so many calls; `fields` are those of the first pool."""
    first = make_pool({name: [calls(number)] for name, number in chat.items()}, name="texts", **fields)
    serve("chat", first)
    serve("images", make_pool({name: [calls(number)] for name, number in images.items()}, name="pictures"))


def who(acquisition: Acquisition) -> str:
    """Which members have served; `-` for a refusal."""
    if not acquisition:
        return "-"
    config: Any = acquisition.config
    return f"{config['texts']['member']}{config['pictures']['member']}"


def taken(times: int = 1) -> list[str]:
    """Who has served each of so many requests of both."""
    return [who(limits.try_acquire(BOTH)) for _ in range(times)]


def used(pool: str) -> list[object]:
    """How many calls of each member are used."""
    return [one["call_count"]["used"] for one in member_use(pool).values()]


def test_each_pool_has_its_turns_and_its_config() -> None:
    set_up({"a": 9, "b": 9}, {"x": 9, "y": 9, "z": 9})
    assert taken(4) == ["ax", "by", "az", "bx"]
    assert (used("texts"), used("pictures")) == ([2, 2], [2, 1, 1])


def test_what_one_pool_refuses_charges_nothing_of_the_other() -> None:
    set_up({"a": 9}, {"x": 1, "y": 1})
    assert taken(3) == ["ax", "ay", "-"]
    assert (used("texts"), used("pictures")) == ([2], [1, 1])
    outcome = limits.try_acquire(BOTH).outcome
    assert [one.resource for one in outcome.violations] == ["pictures"]
    assert outcome.retry_after == 3600


def test_own_limits_of_each_resource_are_charged_too() -> None:
    set_up({"a": 9}, {"x": 9})
    limits.set_resource_limits("chat", [RateLimit("tpm", 100, 3600), ResourceLimit("slots", 2)])
    limits.set_resource_limits("images", [calls(1)])
    request = {"chat": {"tpm": 60}, "images": None}
    with limits.acquire(request, entity="user:1") as acquisition:
        acquisition.update({"chat:tpm": 50})
        assert limits.status("chat", entity="user:1").limits["slots"]["used"] == 1
    assert not limits.try_acquire(request, entity="user:1")
    assert limits.status("chat", entity="user:1").limits["tpm"]["used"] == 50
    assert (used("texts"), used("pictures")) == ([1], [1])


def test_two_resources_of_one_pool_are_served_by_one_member_beside_another_pool() -> None:
    set_up({"a": 9, "b": 9}, {"x": 9})
    serve("talk", Pool.objects.get(name="texts"))
    acquisition = limits.try_acquire({"chat": None, "talk": None, "images": None})
    assert who(acquisition) == "ax"
    assert (used("texts"), used("pictures")) == ([1, 0], [1])


@pytest.mark.parametrize(
    ("balancing", "served"),
    [
        pytest.param({"load_balancing": "failover"}, ["ax", "ay", "bx"], id="each_in_its_own_order"),
        pytest.param({"load_balancing": "least_loaded"}, ["bx", "by", "bx"], id="the_emptiest_pair"),
        pytest.param({"load_balancing": "failover", "failover": False}, ["ax", "ay", "-"], id="the_chosen_pair_alone"),
    ],
)
def test_pools_that_balance_in_different_ways(balancing: dict[str, Any], served: list[str]) -> None:
    set_up({"a": 2, "b": 8}, {"x": 50, "y": 50}, **balancing)
    if balancing["load_balancing"] == "least_loaded":
        limits.pool("texts").try_acquire()
        limits.pool("texts").try_acquire()
    assert taken(3) == served


def test_who_is_put_aside_serves_nobody_until_all_of_a_pool_are(clock: FakeClock) -> None:
    set_up({"a": 50, "b": 50}, {"x": 50, "y": 50}, load_balancing="failover")
    limits.pool("texts").cool_down("a", 60)
    limits.pool("pictures").cool_down("x", 30)
    assert taken(2) == ["by", "by"]
    limits.pool("texts").cool_down("b", 60)
    assert {pair[1] for pair in taken(4)} == {"y"}, "whoever is aside in a pool that has others stays so"
    clock.advance(60)
    assert taken(2) == ["ax", "ay"]


def test_one_waits_for_the_pair_that_is_there_first(clock: FakeClock) -> None:
    set_up({"a": 1}, {"x": 9})
    taken()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(limits.acquire, BOTH, timeout=None)
        while not registry.store().line.busy:
            sleep(0)
        clock.advance(3600)
        assert who(waiting.result(10)) == "ax"


def test_so_may_a_task_until_the_time_is_up(clock: FakeClock) -> None:
    set_up({"a": 1}, {"x": 9})
    taken()

    async def course() -> None:
        assert not await limits.atry_acquire(BOTH)
        waiting = [asyncio.ensure_future(limits.aacquire(BOTH, timeout=seconds)) for seconds in (5, 4000)]
        for _ in range(20):
            await asyncio.sleep(0)
        clock.advance(5)
        with pytest.raises(LimitTimeout):
            await waiting[0]
        clock.advance(3595)
        assert who(await waiting[1]) == "ax"

    asyncio.run(course())


def test_a_request_with_a_key_is_charged_once() -> None:
    set_up({"a": 9}, {"x": 9})
    for _ in range(3):
        assert limits.try_acquire(BOTH, idempotency_key="one")
    assert (used("texts"), used("pictures")) == ([1], [1])


def test_a_change_of_either_pool_counts_on_the_next_acquire() -> None:
    set_up({"a": 9}, {"x": 9, "y": 9})
    taken()
    Pool.objects.get(name="pictures").members.filter(name="x").update(enabled=False)
    assert taken(2) == ["ay", "ay"]


def test_one_can_look_without_taking_a_turn() -> None:
    set_up({"a": 9, "b": 9}, {"x": 9, "y": 9})
    shares = [Share("chat"), Share("images")]
    for _ in range(2):
        assert {one.member for one in Together(shares).limit_set().peek().passed} == {"a", "x"}
    assert taken() == ["ax"]


def test_too_many_combinations_are_an_error() -> None:
    set_up({f"a{number}": 1 for number in range(13)}, {f"x{number}": 1 for number in range(5)})
    with pytest.raises(InvalidRequest, match="texts and pictures have more than 64 combinations"):
        limits.try_acquire(BOTH)


def test_while_the_store_is_down_policy_decides_for_both(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.LIMITS = {**settings.LIMITS, "ON_UNAVAILABLE": "local", "EXPECTED_PROCESSES": 2}
    store = FailingStore(MemoryStore())
    monkeypatch.setitem(registry._OPENED, ("default", conf.store_settings()), store)
    set_up({"a": 6}, {"x": 2, "y": 2})
    assert limits.check("chat").allowed
    store.down = True
    served = [limits.try_acquire(BOTH) for _ in range(3)]
    assert [who(one) for one in served] == ["ax", "ay", "-"]
    assert all(one.outcome.degraded for one in served)


@hypothesis_settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(
    chat=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    images=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    balancing=st.sampled_from(["round_robin", "random", "weighted", "least_loaded", "failover"]),
    alone=st.lists(st.sampled_from(["texts", "pictures"]), max_size=4),
)
def test_a_request_is_served_exactly_as_long_as_each_pool_has_a_member_that_can(
    chat: Sequence[int], images: Sequence[int], balancing: str, alone: Sequence[str]
) -> None:
    Resource.objects.all().delete()
    Pool.objects.all().delete()
    set_up(
        {f"a{place}": number for place, number in enumerate(chat)},
        {f"x{place}": number for place, number in enumerate(images)},
        load_balancing=balancing,
    )
    left = {"texts": sum(chat), "pictures": sum(images)}
    registry.store().reset([part.scope.key for pool in left for one in limits.pool(pool) for part in one.scoped])
    for pool in alone:
        left[pool] -= bool(limits.pool(pool).try_acquire())
    served = [name for name in taken(max(left.values()) + 1) if name != "-"]
    assert len(served) == min(left.values())


def test_never_more_than_there_is_under_many_threads() -> None:
    set_up({"a": 20, "b": 30}, {"x": 25, "y": 15})
    shares = [Share("chat"), Share("images")]
    with ThreadPoolExecutor(8) as pool:
        served = list(pool.map(lambda _: bool(limits.try_acquire_all(shares)), range(80)))
    assert sum(served) == 40
    assert used("pictures") == [25, 15]

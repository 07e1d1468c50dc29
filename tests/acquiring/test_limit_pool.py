"""Limit pools without waiting: who serves a request, what is refused, and what a pool says of itself."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from random import seed
from typing import Any

import pytest

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.balancing import Balancer, balancer_named, checked_weights
from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.pool import LimitPool
from limits_app.acquiring.store import Store
from limits_app.engine.amounts import NOTHING
from limits_app.engine.errors import InvalidRequest, LimitTimeout, NeverAdmissible, NotShareable, StoreUnavailable
from limits_app.engine.limits import CallLimit, LimitDefinition, RateLimit, ResourceLimit
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import open_process_store
from limits_app.testing import FakeClock
from tests.acquiring.sets import used, used_up

TPM = RateLimit("tpm", 10, 10)
"""One unit per second."""
CALLS = CallLimit(3, 3600)
DB = ResourceLimit("db", 1)
BALANCERS = ("round_robin", "random", "weighted", "least_loaded", "failover")


def sets_of(store: Store, *limits: LimitDefinition, number: int = 3) -> list[LimitSet]:
    """So many sets of the same limits, each with its own state and name."""
    return [LimitSet(limits, store=store, config={"name": name}) for name in "abcdefgh"[:number]]


def pool_of(store: Store, *limits: LimitDefinition, number: int = 3, **options: Any) -> LimitPool:
    return LimitPool(sets_of(store, *limits, number=number), **options)


def names(*acquisitions: Acquisition) -> str:
    """Which sets have served, in order; `-` for a refusal."""
    return "".join(str(one.config["name"]) if one else "-" for one in acquisitions)


def many(pool: LimitPool, number: int, requested: Mapping[str, float] | None = None) -> str:
    """Which sets serve so many requests."""
    return names(*[pool.try_acquire(requested) for _ in range(number)])


def test_sets_take_turns(store: MemoryStore) -> None:
    assert many(pool_of(store, CALLS), 7) == "abcabca"
    assert many(pool_of(store, CALLS, worker_index=1), 4) == "bcab"


def test_next_set_serves_when_one_rejects(store: MemoryStore) -> None:
    pool = pool_of(store, CALLS)
    used_up(pool[1], "call_count")
    assert many(pool, 7) == "accaca-"
    assert many(pool, 1) == "-"


def test_the_first_of_a_failover_serves_until_it_refuses(store: MemoryStore) -> None:
    assert many(pool_of(store, CALLS, load_balancing="failover"), 10) == "aaabbbccc-"


def test_the_least_loaded_is_that_of_which_the_largest_share_is_free(store: MemoryStore) -> None:
    sets = [LimitSet([CallLimit(size, 3600)], store=store, config={"name": size}) for size in (1, 2, 4)]
    pool = LimitPool(sets, "least_loaded")
    assert Counter(pool.try_acquire().config["name"] for _ in range(7)) == {1: 1, 2: 2, 4: 4}
    assert not pool.try_acquire()


def test_among_equally_loaded_sets_turns_are_taken(store: MemoryStore) -> None:
    assert many(pool_of(store, DB, load_balancing="least_loaded"), 1) == "a"
    assert many(pool_of(store, DB, load_balancing="least_loaded", worker_index=2), 1) == "c"


@pytest.mark.parametrize("name", BALANCERS)
@pytest.mark.parametrize("number", [1, 3])
def test_every_balancer_uses_all_members(name: str, number: int, clock: FakeClock) -> None:
    stores = [MemoryStore(clock=clock) for _ in range(number)] * 3
    sets = [sets_of(store, CALLS)[index] for index, store in enumerate(stores[:3])]
    assert Counter(many(LimitPool(sets, name), 10)) == {"a": 3, "b": 3, "c": 3, "-": 1}


def test_the_least_loaded_is_found_in_several_stores(clock: FakeClock) -> None:
    sets = [sets_of(MemoryStore(clock=clock), CALLS)[index] for index in range(3)]
    used_up(sets[0], "call_count")
    sets[2].try_acquire()
    assert many(LimitPool(sets, "least_loaded"), 1) == "b"
    assert many(LimitPool(sets[:1], "least_loaded"), 1) == "-"


def test_only_sets_that_have_all_requested_rates_are_asked(store: MemoryStore) -> None:
    calls = CallLimit(100, 3600)
    limits = {"a": [calls], "b": [calls, TPM], "c": [calls, TPM, RateLimit("out", 5, 60)]}
    pool = LimitPool([LimitSet(some, store=store, config={"name": name}) for name, some in limits.items()])
    assert set(many(pool, 4, {"tpm": 1})) == {"b", "c"}
    assert many(pool, 1, {"tpm": 1, "out": 1}) == "c"
    assert many(pool, 2) == "aa", "the others must be told how much"
    assert set(many(pool, 3, NOTHING)) == {"a", "b", "c"}, "a request that names nothing leaves rates alone"


def test_a_request_that_names_nothing_is_served_by_sets_from_which_it_takes_something(store: MemoryStore) -> None:
    limits = {"a": [CALLS, DB], "b": [TPM], "c": [TPM, CALLS], "d": []}
    pool = LimitPool([LimitSet(some, store=store, config={"name": name}) for name, some in limits.items()])
    assert many(pool, 6, NOTHING) == "acdccd", "a has one permit"
    assert pool.peek(NOTHING).allowed
    with pytest.raises(InvalidRequest, match=r"nothing is requested of tpm: rates and quotas need \{key: amount\}"):
        LimitPool([pool[1], LimitSet([TPM], store=store)]).try_acquire(NOTHING)


def test_an_unknown_rate_is_rejected_and_the_error_lists_the_rates(store: MemoryStore) -> None:
    out = [LimitSet([RateLimit("out", 5, 60)], store=store) for _ in range(2)]
    pool = LimitPool([LimitSet([CALLS, TPM], store=store), *out])
    for requested, names_ in (
        ({"typo": 1}, "'typo'"),
        ({"tpm": 1, "out": 1}, "'tpm', 'out'"),
        ({"tpm": 1, "typo": 0}, "'tpm', 'typo'"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            pool.try_acquire(requested)
        assert isinstance(caught.value, ValueError)
        assert str(caught.value) == (
            f"no limit set of the pool has all requested limits: {names_}; sets have: call_count, tpm | out"
        )
    with pytest.raises(InvalidRequest, match=r"requested limits: 'typo'; sets have: nothing$"):
        LimitPool([LimitSet()]).try_acquire({"typo": 1})
    assert used(pool[0]) == {"call_count": 0, "tpm": 0}


@pytest.mark.parametrize("requested", [["tpm"], [["tpm"]], "tpm", 5, [("tpm", 1)]])
def test_a_request_that_is_no_mapping_is_an_error(requested: Any, store: MemoryStore) -> None:
    pool = pool_of(store, TPM)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="requested must map keys to amounts"):
            pool.try_acquire(requested)
        pool.try_acquire({"tpm": 1})


def test_missing_calls_and_permits_are_skipped(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    pool = LimitPool([LimitSet([TPM], store=store), LimitSet([TPM, DB], store=store)], "failover")
    with caplog.at_level(logging.WARNING, "limits_app"):
        assert pool.try_acquire({"tpm": 1, "db": 1, "call_count": 2})
    assert used(pool[0]) == {"tpm": 1}
    assert [record.getMessage().split(" is ")[0] for record in caplog.records] == ["key 'db'", "key 'call_count'"]


def test_number_of_kept_shapes_is_bounded(store: MemoryStore) -> None:
    pool = LimitPool([LimitSet([ResourceLimit(f"r{number}", 1) for number in range(300)], store=store)])
    for number in range(300):
        assert pool.try_acquire({f"r{other}": 0 for other in range(300) if other != number} | {f"r{number}": 1})
    assert pool[0].get_stats()["r299"]["used"] == 1


def test_an_empty_set_admits_every_request(store: MemoryStore) -> None:
    free = LimitPool([LimitSet(config={"name": "a"}), LimitSet([CALLS], store=store, config={"name": "b"})])
    assert many(free, 9) == "ababab" + "aaa"
    full = LimitPool([free[1], free[0]], "least_loaded")
    assert many(full, 2) == "aa"


def test_a_refusal_is_that_of_the_set_that_would_admit_first(store: MemoryStore) -> None:
    pool = pool_of(store, TPM)
    for one, amount in zip(pool, (9, 6, 8), strict=True):
        assert one.try_acquire({"tpm": amount})
    refused = pool.try_acquire({"tpm": 5})
    assert not refused
    assert refused.config == {"name": "b"}
    assert refused.outcome.retry_after == 1
    assert [used(one)["tpm"] for one in pool] == [9, 6, 8]


def test_interrupted_charge_is_refunded(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_acquisition: object) -> None:
        raise KeyboardInterrupt

    pool = pool_of(store, TPM, DB, load_balancing="least_loaded")
    with monkeypatch.context() as patched:
        patched.setattr(store.renewer, "add", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pool.try_acquire({"tpm": 5, "db": 1})
    assert [used(limits) for limits in pool] == [{"tpm": 0, "db": 0}] * 3


def test_a_soft_limit_does_not_delay_a_rejection(store: MemoryStore) -> None:
    soft = RateLimit("soft", 1, 3600, soft=True)
    pool = pool_of(store, TPM, soft, number=2)
    for limits, amounts in zip(pool, ({"tpm": 8, "soft": 1000}, {"tpm": 9, "soft": 0}), strict=True):
        assert limits.try_acquire(amounts)
    rejected = pool.try_acquire({"tpm": 5, "soft": 1})
    assert rejected.config == {"name": "a"}
    assert rejected.outcome.retry_after == 3


@pytest.mark.parametrize("name", BALANCERS)
def test_without_failover_the_chosen_one_decides(name: str, store: MemoryStore) -> None:
    pool = pool_of(store, CallLimit(1, 3600), load_balancing=name, failover=False)
    refused = [pool.try_acquire() for _ in range(30)]
    assert Counter(names(*refused))["-"] >= 27
    if name == "failover":
        assert names(*refused) == "a" + "-" * 29


def test_without_failover_the_emptiest_decides_alone(store: MemoryStore) -> None:
    sets = [LimitSet([RateLimit("tpm", size, 60)], store=store, config={"name": size}) for size in (10, 100)]
    assert sets[1].try_acquire({"tpm": 50})
    pool = LimitPool(sets, "least_loaded", failover=False)
    assert pool.try_acquire({"tpm": 10}).config["name"] == 10
    assert pool.try_acquire({"tpm": 10}).config["name"] == 100
    assert not pool.try_acquire({"tpm": 50})


@pytest.mark.parametrize("failover", [True, False])
@pytest.mark.parametrize("name", BALANCERS)
def test_largest_set_decides_whether_a_request_can_ever_be_admitted(
    name: str, failover: bool, store: MemoryStore
) -> None:
    sets = [LimitSet([CALLS, RateLimit("tpm", size, 60)], store=store) for size in (10, 100, 30)]
    pool = LimitPool(sets, name, failover=failover)
    for verb in (pool.try_acquire, pool.acquire, pool.peek) * 3:
        with pytest.raises(NeverAdmissible, match="'tpm' can never admit 500: its most is 100"):
            verb({"tpm": 500})
    assert pool.foresee({"tpm": 500}).outcome.never


def test_request_that_the_only_set_never_admits_is_an_error_too(store: MemoryStore) -> None:
    with pytest.raises(NeverAdmissible):
        pool_of(store, TPM, number=1).try_acquire({"tpm": 11})


@pytest.mark.parametrize("failover", [True, False])
@pytest.mark.parametrize("name", BALANCERS)
def test_sets_that_can_never_admit_are_skipped(name: str, failover: bool, store: MemoryStore) -> None:
    sizes = {"a": 5, "b": 50, "c": 10}
    sets = [LimitSet([RateLimit("tpm", sizes[one], 60)], store=store, config={"name": one}) for one in sizes]
    pool = LimitPool(sets, name, failover=failover)
    assert many(pool, 2, {"tpm": 20}) == "bb"
    refused = pool.try_acquire({"tpm": 20})
    assert (bool(refused), refused.config["name"], refused.outcome.never) == (False, "b", False)
    with pytest.raises(LimitTimeout):
        pool.acquire({"tpm": 20}, timeout=0)


def test_a_store_that_is_down_is_no_refusal(clock: FakeClock) -> None:
    class Down(MemoryStore):
        def acquire(self, claim: Any) -> bool:
            raise StoreUnavailable("out of reach")

    sets = [LimitSet([CALLS], store=store) for store in (Down(clock=clock), MemoryStore(clock=clock))]
    with pytest.raises(StoreUnavailable):
        LimitPool(sets).try_acquire()
    assert used(sets[1]) == {"call_count": 0}


@pytest.mark.parametrize("name", BALANCERS)
def test_an_acquisition_is_that_of_its_set(name: str, store: MemoryStore) -> None:
    pool = pool_of(store, TPM, DB, load_balancing=name)
    held = [pool.acquire({"tpm": 4, "db": 1}) for _ in range(3)]
    assert sorted(names(*held)) == ["a", "b", "c"]
    assert not pool.try_acquire({"tpm": 1, "db": 1})
    for one in held:
        one.update({"tpm": 1})
        one.release()
    assert [used(one) for one in pool] == [{"tpm": 1, "db": 0}] * 3


def test_a_nested_acquire_does_not_take_permits_again_that_it_has(store: MemoryStore) -> None:
    pool = pool_of(store, DB, CALLS, number=1)
    with pool.acquire(), pool.acquire(timeout=0) as inner:
        assert inner
        assert used(pool[0]) == {"db": 1, "call_count": 2}


def test_set_returns_after_its_cool_down(store: MemoryStore, clock: FakeClock) -> None:
    pool = pool_of(store, CallLimit(100, 3600))
    pool.cool_down(1, 5)
    assert many(pool, 4) == "acac"
    clock.advance(4.999999)
    assert set(many(pool, 4)) == {"a", "c"}
    clock.advance(0.000001)
    assert set(many(pool, 6)) == {"a", "b", "c"}


def test_a_set_that_is_put_aside_is_not_asked_when_the_others_refuse(store: MemoryStore) -> None:
    pool = pool_of(store, DB)
    pool.cool_down(0, 5)
    assert Counter(many(pool, 4, {"db": 1})) == {"b": 1, "c": 1, "-": 2}
    pool.cool_down(0, 0)
    assert set(many(pool, 3, {"db": 0})) == {"a", "b", "c"}


def test_when_all_are_put_aside_none_is(store: MemoryStore) -> None:
    pool = pool_of(store, CallLimit(100, 3600))
    for index in range(3):
        pool.cool_down(index, 5)
    assert set(many(pool, 6)) == {"a", "b", "c"}


@pytest.mark.parametrize("failover", [True, False])
@pytest.mark.parametrize("name", BALANCERS)
def test_when_all_that_could_ever_admit_are_put_aside_none_is(name: str, failover: bool, store: MemoryStore) -> None:
    sizes = {"a": 10, "b": 100, "c": 10}
    sets = [LimitSet([RateLimit("tpm", sizes[one], 60)], store=store, config={"name": one}) for one in sizes]
    pool = LimitPool(sets, name, failover=failover)
    pool.cool_down(1, 5)
    assert pool.peek({"tpm": 50}).allowed
    assert pool.try_acquire({"tpm": 30}).config["name"] == "b"
    assert pool.acquire({"tpm": 70}).config["name"] == "b"
    assert pool.try_acquire({"tpm": 50}).outcome.retry_after == 30
    assert pool.peek({"tpm": 50}).retry_after == 30
    with pytest.raises(LimitTimeout):
        pool.acquire({"tpm": 50}, timeout=0)
    assert pool.try_acquire({"tpm": 5}).config["name"] in {"a", "c"}, "for these it is put aside all the same"
    with pytest.raises(NeverAdmissible, match="its most is 100"):
        pool.try_acquire({"tpm": 101})


def test_putting_aside_counts_from_the_last_time(store: MemoryStore, clock: FakeClock) -> None:
    pool = pool_of(store, CallLimit(100, 3600), number=2)
    pool.cool_down(0, 5)
    clock.advance(3)
    pool.cool_down(0, 5)
    clock.advance(4)
    assert many(pool, 2) == "bb"
    clock.advance(1)
    assert set(many(pool, 2)) == {"a", "b"}


def test_a_task_can_let_a_set_cool_down(store: MemoryStore) -> None:
    pool = pool_of(store, DB)
    asyncio.run(pool.acool_down(0, 5))
    assert pool.cooling_seconds(0) == pytest.approx(5)
    assert "a" not in many(pool, 4)


def test_a_pool_is_made_of_its_sets(store: MemoryStore) -> None:
    sets = sets_of(store, CALLS, TPM)
    pool = LimitPool(iter(sets), "failover")
    assert list(pool) == sets
    assert len(pool) == 3
    assert (pool[0], pool[-1]) == (sets[0], sets[2])
    assert repr(pool).startswith("LimitPool([LimitSet([")
    assert pool[1:] == tuple(sets[1:])  # type: ignore[call-overload]
    for which, use in product(
        (3, -4), (pool.__getitem__, pool.cooling_seconds, lambda which: pool.cool_down(which, 1))
    ):
        with pytest.raises(IndexError, match=rf"the pool has no set {which}: it has 3, from 0 to 2"):
            use(which)


def test_a_limit_is_found_by_its_key_in_a_single_set_only(store: MemoryStore) -> None:
    assert pool_of(store, TPM, number=1)["tpm"] == TPM
    with pytest.raises(KeyError, match="the set has no limit 'rpm', only: tpm"):
        _ = pool_of(store, TPM, number=1)["rpm"]
    with pytest.raises(TypeError, match=r"a pool of 3 sets has several limits 'tpm': choose a set, as in pool\[0\]"):
        _ = pool_of(store, TPM)["tpm"]


def test_stats_are_those_of_the_sets(store: MemoryStore) -> None:
    pool = pool_of(store, TPM, load_balancing="random", number=2)
    assert pool[1].try_acquire({"tpm": 4})
    assert pool.get_stats() == {
        "num_limit_sets": 2,
        "load_balancing": "random",
        "limit_sets": [pool[0].get_stats(), pool[1].get_stats()],
    }


ONE = LimitSet([DB])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LimitPool([]), "a pool needs at least one limit set"),
        (lambda: LimitPool([ONE, LimitSet([DB]), ONE]), "the same limit set was passed twice"),
        *[
            (lambda sets=sets: LimitPool(sets), r"limit_sets must be several, as in LimitPool\(\[limit_set\]\), not ")
            for sets in (ONE, None, 5)
        ],
        *[
            (lambda one=one: LimitPool([ONE, one]), "limit_sets must be limit sets, not ")
            for one in (LimitPool([ONE]), DB, "db", None)
        ],
        *[
            (lambda name=name: LimitPool([ONE], name), "load_balancing must be the name of a balancer, not ")
            for name in (["random"], None, 1)
        ],
        *[
            (lambda index=index: LimitPool([ONE], worker_index=index), "worker_index must be a whole number, 0 or more")
            for index in (-1, True, 1.0, "0", None)
        ],
        *[
            (lambda time=time: LimitPool([ONE]).cool_down(0, time), "seconds must be a number, 0 or more, not ")
            for time in (None, -1, float("nan"), float("inf"), True, "5")
        ],
    ],
)
def test_invalid_arguments_are_rejected(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_pool_follows_its_sets_into_another_process(tmp_path: Path) -> None:
    store = open_process_store(tmp_path, map_megabytes=4)
    pool = pool_of(
        store, CallLimit(2, 3600), load_balancing="weighted", weights=[1, 2, 3], worker_index=1, failover=False
    )
    pool.cool_down(1, 3600)
    pool.cool_down(2, 3600)
    again = pickle.loads(pickle.dumps(pool))
    assert (again.load_balancing, again.weights, again.worker_index, again.failover) == (
        "weighted",
        (1, 2, 3),
        1,
        False,
    )
    assert many(again, 3) == "aa-"
    assert many(pool, 1) == "-"
    store.close()


def test_a_pool_in_memory_stays_where_it_is(store: MemoryStore) -> None:
    with pytest.raises(NotShareable, match="mode='process'"):
        pickle.dumps(pool_of(store, DB))


THREE = (0, 1, 2)


def balancer(name: str, weights: tuple[float, ...] = (1, 1, 1), worker_index: int = 0) -> Balancer:
    return balancer_named(name)(weights, worker_index)


@pytest.mark.parametrize("name", ["round_robin", "least_loaded"])
def test_in_turns_each_is_first_and_the_others_follow_it(name: str) -> None:
    in_turns = balancer(name)
    assert [tuple(in_turns.order(THREE)) for _ in range(4)] == [(0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 1, 2)]


def test_turns_are_taken_among_the_candidates_of_each_request() -> None:
    in_turns = balancer("round_robin")
    orders = [tuple(in_turns.order(some)) for some in ((0, 1, 2), (1, 2), (2,), (0, 2))]
    assert orders == [(0, 1, 2), (2, 1), (2,), (2, 0)]


def test_threads_that_take_turns_do_not_get_the_same_one() -> None:
    in_turns = balancer("round_robin")
    with ThreadPoolExecutor(8) as executor:
        firsts = Counter(executor.map(lambda _: in_turns.order(THREE)[0], range(3000)))
    assert firsts == {0: 1000, 1: 1000, 2: 1000}


def test_random_orders_are_equally_frequent() -> None:
    seed(1)
    at_random = balancer("random")
    orders = Counter(tuple(at_random.order(THREE)) for _ in range(6000))
    assert len(orders) == 6
    assert all(abs(count - 1000) < 150 for count in orders.values())


def test_weighted_sets_are_first_in_proportion_to_their_weight() -> None:
    seed(1)
    weighted = balancer("weighted", (1, 2.5, 6.5))
    firsts = Counter(weighted.order(THREE)[0] for _ in range(10_000))
    assert [abs(firsts[index] - expected) < 200 for index, expected in enumerate((1000, 2500, 6500))] == [True] * 3


def test_with_weights_the_next_is_drawn_from_those_that_are_left() -> None:
    seed(1)
    weighted = balancer("weighted", (1, 3, 1_000_000))
    seconds = Counter(weighted.order(THREE)[1] for _ in range(10_000))
    assert abs(seconds[1] - 7500) < 200


@pytest.mark.parametrize("name", BALANCERS)
def test_all_candidates_are_in_the_order_once(name: str) -> None:
    for some in (THREE, (1,), (0, 2)):
        assert sorted(balancer(name).order(some)) == list(some)


@pytest.mark.parametrize("name", ["", "Random", "round-robin", "rr"])
def test_a_balancer_that_is_none_is_an_error_that_lists_them(name: str) -> None:
    with pytest.raises(ValueError, match="must be one of round_robin, random, weighted, least_loaded, failover"):
        balancer_named(name)


def test_each_set_has_one_weight_which_is_1_by_default() -> None:
    assert checked_weights(None, 3) == (1, 1, 1)
    assert checked_weights([1, 0.5, 10**9], 3) == (1, 0.5, 10**9)
    for weights in ([], [1], [1, 2, 3]):
        with pytest.raises(ValueError, match="weights must be one for each of the 2 limit sets"):
            checked_weights(weights, 2)


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), 10**400, True, "1", None])
def test_a_weight_is_a_number_above_zero(weight: Any) -> None:
    with pytest.raises(ValueError, match="a weight must be a number above 0, not "):
        checked_weights([1, weight], 2)


def test_preview_of_the_next_set_takes_no_turn() -> None:
    turns = balancer_named("round_robin")([1, 1, 1], 1)
    assert [turns.preview((0, 1, 2)) for _ in range(3)] == [(1, 2, 0)] * 3
    assert turns.order((0, 1, 2)) == (1, 2, 0)
    assert turns.preview((0, 1, 2)) == (2, 0, 1)
    assert balancer_named("random")([1, 1], 0).preview((0, 1)) == (0, 1)
    assert balancer_named("weighted")([1, 9], 0).preview((0, 1)) == [1, 0]
    assert balancer_named("failover")([1, 1], 0).preview((0, 1)) == (0, 1)

"""Counting on Redis: in the step that admits, beside the record of a scope, and gone when it is collected."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from struct import pack
from threading import Thread

import pytest
from redis import Redis

from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.counting import KEPT_HOURS, Batch, hour_of
from limits_app.engine.keys import scope_of, short_key
from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.in_thread import give_back
from limits_app.stores.redis import RedisClusterStore, RedisStore
from limits_app.stores.redis.opening import TAGS, tag_of
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import collected, counting, in_scope, settle, taken, total
from tests.servers.redis import RedisServer
from tests.stores.redis.support import PATIENT, claimed, names_of, prefix, record, scripts_run, store_on

HOUR = 3600
CALLS = CallLimit(1000, HOUR)
TOKENS = RateLimit("tokens", 10, HOUR)


def keys(client: Redis, store: RedisStore) -> list[bytes]:
    return sorted(client.scan_iter(f"{store.prefix}*", 1000))


def test_counting_needs_no_further_call(store: RedisStore, client: Redis) -> None:
    limits = counting(store, CALLS, TOKENS)
    settle(limits, taken(limits, {"tokens": 0}), {})
    before = scripts_run(client)
    for _ in range(5):
        settle(limits, taken(limits, {"tokens": 2}), {"tokens": -1})
    assert scripts_run(client) == before + 10
    assert total(store) == 11_000


def test_keys_contain_no_identifiers(store: RedisStore, client: Redis) -> None:
    limits = counting(store, CALLS, entity="ada@example.org")
    taken(limits)
    store.reset([one.scope.key for one in limits.scoped])
    taken(limits)
    assert store.collect_counts() is not None
    taken(limits)
    found = keys(client, store)
    assert len(found) == 3
    assert not any(b"ada" in key for key in found)


def test_collected_counts_are_deleted(store: RedisStore, client: Redis) -> None:
    silent = LimitSet.composed([in_scope(store, scope_of("conformance", "silent"), CALLS, counts=False)], store)
    limits = counting(store, CALLS)
    for one in (silent, limits):
        taken(one)
    states = [record(store, one) for one in (silent, limits)]
    assert client.hkeys(states[1]) != client.hkeys(states[0])
    assert client.pttl(states[1]) >= KEPT_HOURS * HOUR * 1000
    assert total(store) == 1_000
    assert client.hkeys(states[1]) == client.hkeys(states[0])
    assert client.memory_usage(states[1]) == client.memory_usage(states[0])
    assert client.pttl(states[1]) <= client.pttl(states[0]) + 1000
    assert not [key for key in keys(client, store) if key.endswith((b":usage", b":batch"))]


def test_lasting_record_never_expires(store: RedisStore, client: Redis) -> None:
    usual = counting(store, CALLS)
    own = LimitSet.composed([replace(usual.scoped[0], lasting=True)], store)
    for _ in range(2):
        taken(own)
        assert client.pttl(record(store, own)) == -1
        assert total(store) == 1_000
    assert client.pttl(record(store, own)) == -1


def test_kept_use_of_another_limit_survives_the_collection_of_counts(redis: RedisServer, client: Redis) -> None:
    clock = FakeClock()
    store = store_on(redis, clock=clock)
    short, long = counting(store, CallLimit(3, 1)), counting(store, RateLimit("tokens", 10, 24 * HOUR))
    assert long.try_acquire({"tokens": 10})
    for _ in range(3):
        taken(short)
        clock.advance(HOUR)
        assert store.collect_counts() is not None
        assert client.pttl(record(store, short)) > 24 * HOUR * 1000
    own = LimitSet.composed([replace(short.scoped[0], lasting=True)], store)
    taken(own)
    assert client.pttl(record(store, own)) == -1
    taken(short)
    assert client.pttl(record(store, short)) > 24 * HOUR * 1000, "the entity has no limits of its own any more"
    assert long.get_stats()["tokens"]["used"] == pytest.approx(10 * 21 / 24)
    store.close()


def test_counts_outlive_the_state_that_they_are_about(redis: RedisServer, client: Redis) -> None:
    clock = FakeClock()
    store = store_on(redis, clock=clock)
    limits = counting(store, CallLimit(3, 1))
    taken(limits)
    clock.advance(20 * HOUR)
    assert client.pttl(record(store, limits)) > HOUR * 1000
    assert total(store) == 1_000
    assert client.pttl(record(store, limits)) <= 61_000
    store.close()


def test_a_scope_that_has_nothing_left_to_report_is_passed_over(store: RedisStore) -> None:
    limits = counting(store, TOKENS)
    claim = taken(limits, {"tokens": 3})
    store.reset([one.scope.key for one in limits.scoped])
    settle(limits, claim, {"tokens": -3})
    assert store.collect_counts() is None
    settle(limits, taken(limits, {"tokens": 3}), {"tokens": -3})
    assert store.collect_counts() is None


def test_a_state_that_is_gone_takes_only_its_own_counts_along(store: RedisStore, client: Redis) -> None:
    limits, other = (counting(store, CALLS, entity=who) for who in ("evicted", "other"))
    taken(limits)
    taken(other)
    client.delete(record(store, limits))
    assert total(store) == 1_000
    taken(limits)
    client.delete(names_of(store).usage(TAGS[0], b""))
    store.reset([one.scope.key for one in limits.scoped])
    assert store.collect_counts() is None


def test_a_batch_that_is_full_is_followed_by_another(store: RedisStore) -> None:
    for number in range(501):
        taken(counting(store, CALLS, entity=f"number {number}"))
    first = store.collect_counts()
    assert first is not None
    assert first.is_full
    assert store.collect_counts() == first
    store.forget_counts(first.name)
    second = store.collect_counts()
    assert second is not None
    assert not second.is_full
    assert (len(first.counts), len(second.counts)) == (500, 1)


def test_collectors_have_their_own_batches_and_take_each_count_once(store: RedisStore) -> None:
    for number in range(1_200):  # a batch has 500
        taken(counting(store, CALLS, entity=f"number {number}"))
    batches = [store.collect_counts("", collector) for collector in (3, 0)]
    assert [store.collect_counts("", collector) for collector in (3, 0)] == batches, "until they are forgotten"

    def collect(collector: int) -> list[str]:
        entities: list[str] = []
        while (batch := store.collect_counts("", collector)) is not None:
            entities += [str(count.entity) for count in batch.counts]
            store.forget_counts(batch.name)
        return entities

    with ThreadPoolExecutor(store.collectors) as threads:
        by_collector = [*threads.map(collect, range(store.collectors))]
    assert min(len(by_collector[collector]) for collector in (3, 0)) >= 500
    collected = [entity for entities in by_collector for entity in entities]
    assert sorted(collected) == sorted(f"number {number}" for number in range(1_200))


def test_collecting_ends_while_requests_continue(store: RedisStore) -> None:
    sets = {who: counting(store, CALLS, entity=who) for who in map(str, range(600))}
    for limits in sets.values():
        taken(limits)
    found: list[str | None] = []
    is_full = True
    while is_full:
        batch = store.collect_counts()
        assert batch is not None
        found += [count.entity for count in batch.counts]
        for limits in sets.values():
            taken(limits)
        store.forget_counts(batch.name)
        is_full = batch.is_full
    assert set(found) == set(sets)
    assert len(found) <= 2 * len(sets)


def test_a_name_that_the_store_has_not_given_is_no_matter(store: RedisStore) -> None:
    taken(counting(store, CALLS))
    batch = store.collect_counts()
    for name in ("", "zz", "ff00", f"{TAGS[0].decode()}0", "käse"):
        store.forget_counts(name)
    assert store.collect_counts() == batch


def test_only_the_chosen_one_is_counted(store: RedisStore) -> None:
    quota = QuotaLimit.per_day("tokens", 10, soft=True)
    silent = in_scope(store, scope_of("conformance", "silent"), TOKENS, counts=False)
    sets = [LimitSet.composed([silent], store), counting(store, TOKENS, entity="first")]
    sets.append(
        LimitSet.composed([in_scope(store, scope_of("conformance", "last"), quota, counts=True), silent], store)
    )
    for emptiest_first in (False, True):
        for limits in sets[:2]:
            taken(limits, {"tokens": 6})
        claims = [claimed(limits, {"tokens": 6}) for limits in sets[:2]]
        assert store.acquire_first(claims, emptiest_first=emptiest_first) is None
        collected(store)
        store.reset([one.scope.key for limits in sets for one in limits.scoped])
        taken(sets[0], {"tokens": 6})
        claims = [claimed(limits, {"tokens": 6}) for limits in sets[:2]]
        assert store.acquire_first(claims, emptiest_first=emptiest_first) is claims[1]
        assert {key[1]: amount for key, amount in collected(store).items()} == {"first": 6_000}
        store.reset([one.scope.key for limits in sets for one in limits.scoped])
    assert taken(sets[2], {"tokens": 9}).admitted
    assert {key[1]: amount for key, amount in collected(store).items()} == {"last": 9_000}


def test_overdrawn_amounts_of_a_soft_limit_are_counted(store: RedisStore) -> None:
    limits = counting(store, RateLimit("tokens", 10, HOUR, soft=True))
    for _ in range(3):
        taken(limits, {"tokens": 8})
    assert total(store) == 24_000


def test_amounts_of_tasks_are_counted_and_those_of_abandoned_ones_are_not(store: RedisStore) -> None:
    limits = counting(store, CALLS, TOKENS)

    async def work() -> None:
        async with await limits.atry_acquire({"tokens": 4}) as acquired:
            acquired.update({"tokens": 1})
        abandoned = claimed(limits, {"tokens": 5})
        assert await store.aacquire(abandoned)
        await asyncio.to_thread(give_back, store, abandoned)

    asyncio.run(work())
    assert {key[4]: amount for key, amount in collected(store).items()} == {"tokens": 1_000, "call_count": 1_000}


def by_tag(store: RedisClusterStore, *limits: RateLimit | ResourceLimit) -> list[LimitSet]:
    """Sets for several people, in the order in which a cluster asks for them."""
    sets = [counting(store, *limits, entity=f"person {number}") for number in range(4)]
    return sorted(sets, key=lambda one: tag_of(short_key(one.scoped[0].scope.key)))


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_charges_refunded_because_a_later_server_rejects_are_not_counted(
    cluster_store: RedisClusterStore, algorithm: RateLimitAlgorithm
) -> None:
    sets = by_tag(cluster_store, RateLimit("tokens", 10, HOUR, algorithm), ResourceLimit("db", 9))
    family = LimitSet.composed([one for limits in sets for one in limits.scoped], cluster_store)
    assert taken(sets[-1], {"tokens": 10, "db": 1}).admitted
    for before in (0, 1):
        if before:
            assert taken(sets[0], {"tokens": before, "db": 1}).admitted
        assert not taken(family, {"tokens": 5, "db": 2}).admitted
    assert {key[1:2] + key[4:]: amount for key, amount in collected(cluster_store).items()} == {
        (sets[-1].scoped[0].scope.entity, "tokens"): 10_000,
        (sets[-1].scoped[0].scope.entity, "db"): 1_000,
        (sets[0].scoped[0].scope.entity, "tokens"): 1_000,
        (sets[0].scoped[0].scope.entity, "db"): 1_000,
    }
    assert cluster_store.collect_counts() is None


def test_an_hour_that_ends_on_a_refusal_of_several_servers_is_counted_as_it_was(cluster: list[RedisServer]) -> None:
    clock = FakeClock()
    store = RedisClusterStore(url=cluster[0].url, prefix=prefix(), clock=clock, **PATIENT)
    sets = by_tag(store, RateLimit("tokens", 10, 100 * HOUR))
    family = LimitSet.composed([one for limits in sets for one in limits.scoped], store)
    first = hour_of(clock())
    taken(sets[0], {"tokens": 2})
    taken(sets[-1], {"tokens": 10})
    clock.advance(HOUR)
    assert not taken(family, {"tokens": 5}).admitted
    counts = {(key[1], key[3]): amount for key, amount in collected(store).items()}
    assert counts == {
        (sets[0].scoped[0].scope.entity, first): 2_000,
        (sets[-1].scoped[0].scope.entity, first): 10_000,
    }
    store.close()


def test_collecting_until_a_batch_is_not_full_visits_all_servers(cluster_store: RedisClusterStore) -> None:
    people = [f"person {number}" for number in range(40)]
    for who in people:
        taken(counting(cluster_store, CALLS, entity=who))
    found, is_full = Counter[str | None](), True
    while is_full:
        batch = cluster_store.collect_counts()
        assert batch is not None
        found.update(count.entity for count in batch.counts)
        # There is always something new beside what was collected.
        taken(counting(cluster_store, CALLS, entity=batch.counts[0].entity or ""))
        cluster_store.forget_counts(batch.name)
        is_full = batch.is_full
    assert set(found) == set(people)
    assert found.total() <= len(people) + 1


def waiting(store: RedisStore) -> bytes:
    """The key of what waits to be collected."""
    return names_of(store).usage(names_of(store).tags[0], b"")


def test_usage_without_a_roll_up_is_bounded_and_the_oldest_scopes_expire(store: RedisStore, client: Redis) -> None:
    oldest = counting(store, CallLimit(1000, 1), entity="oldest")
    taken(oldest)
    assert client.pttl(record(store, oldest)) > 24 * HOUR * 1000
    now = store.oldest_hour()
    assert now is not None
    entry = b"c" + pack("<d", now) + b"[]"
    for _ in range(10):
        client.rpush(waiting(store), *[entry] * 100_000)
    taken(counting(store, CALLS, entity="newest"))
    assert client.lindex(waiting(store), 0) == entry
    assert client.hkeys(record(store, oldest)) == [b"call_count"]
    assert 0 < client.pttl(record(store, oldest)) <= 61_000
    assert client.llen(waiting(store)) == 1_000_000


def test_usage_without_a_roll_up_for_a_month_is_dropped_and_later_usage_kept(redis: RedisServer, client: Redis) -> None:
    clock = FakeClock()
    store = store_on(redis, clock=clock)
    idle, busy = [counting(store, CALLS, entity=entity) for entity in ("idle", "busy")]
    taken(idle)
    for _ in range(KEPT_HOURS // 24 + 2):
        taken(busy)
        clock.advance(24 * HOUR)
    taken(busy)
    first = store.oldest_hour()
    client.rpush(waiting(store), *[b"c" + pack("<d", hour_of(clock())) + b"[]"] * (256 - client.llen(waiting(store))))
    taken(counting(store, CALLS, entity="next"))
    oldest = store.oldest_hour()
    assert first is not None
    assert oldest is not None
    assert first + 24 <= oldest
    assert oldest >= hour_of(clock()) - KEPT_HOURS - 1
    assert client.hkeys(record(store, idle)) in ([], [b"call_count"])
    assert len(client.hkeys(record(store, busy))) == 2
    assert client.pttl(waiting(store)) > KEPT_HOURS * HOUR * 1000
    store.close()


def test_usage_from_before_a_change_of_the_limits_is_collected(redis: RedisServer, client: Redis) -> None:
    clock = FakeClock()
    store = store_on(redis, clock=clock)
    scope = scope_of("conformance", "ada")
    before, after = [
        LimitSet.composed([in_scope(store, scope, *limits, counts=True)], store)
        for limits in ((CALLS, TOKENS), (TOKENS,))
    ]
    taken(before, {"tokens": 2})
    taken(after, {"tokens": 3})
    clock.advance(HOUR)
    taken(after, {"tokens": 4})
    assert client.pttl(record(store, after)) > KEPT_HOURS * HOUR * 1000
    hour = hour_of(clock())
    assert {(key[3], key[4]): amount for key, amount in collected(store).items()} == {
        (hour - 1, "tokens"): 5_000,
        (hour - 1, "call_count"): 1_000,
        (hour, "tokens"): 4_000,
    }
    assert client.hkeys(record(store, after)) == [b"call_count", b"tokens"]
    store.close()


def test_two_collectors_take_each_entry_once(store: RedisStore, client: Redis) -> None:
    limits = counting(store, TOKENS)
    first, *others = [taken(limits, {"tokens": 1}) for _ in range(8)]
    settle(limits, first, {"tokens": 0})
    batches = dict[str, Batch]()

    def collect() -> None:
        while (batch := store.collect_counts()) is not None:
            batches[batch.name] = batch
            store.forget_counts(batch.name)

    for claim in others:
        total(store)
        settle(limits, claim, {"tokens": 2})  # of an hour that is not counted any more
        batches.clear()
        threads = [Thread(target=collect) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [count.amounts for batch in batches.values() for count in batch.counts] == [{"tokens": 2_000}]
    assert client.llen(waiting(store)) == 0


def commands_run(client: Redis) -> Counter[str]:
    """How often the server has run each command, those that scripts call included."""
    return Counter(
        {name.removeprefix("cmdstat_"): stats["calls"] for name, stats in client.info("commandstats").items()}
    )


def test_a_scope_that_is_new_costs_few_commands(store: RedisStore, client: Redis) -> None:
    for entity in ("ada", "bob"):
        taken(counting(store, CALLS, entity=entity))
    before = commands_run(client)
    taken(counting(store, CALLS, entity="cyd"))
    spent = commands_run(client) - before
    assert spent["pexpire"] == 1, "the time until what waits expires begins again with every 256th entry"
    assert spent["exists"] == 0, "only a server without memory needs to know it"
    assert spent.total() - spent["info"] <= 9, spent
    assert client.pttl(waiting(store)) > KEPT_HOURS * HOUR * 1000


def test_the_usage_of_an_alternative_has_the_name_of_its_entity(store: RedisStore) -> None:
    ada, bob, cyd = [counting(store, CALLS, TOKENS, entity=entity) for entity in ("ada", "bob", "cyd")]
    for full in (ada, bob):
        taken(full, {"tokens": 10})
    assert store.acquire_first([claimed(limits, {"tokens": 3}) for limits in (ada, bob, cyd)]) is not None
    tokens = {entity: amount for (_, entity, _, _, key), amount in collected(store).items() if key == "tokens"}
    assert tokens == {"ada": 10_000, "bob": 10_000, "cyd": 3_000}

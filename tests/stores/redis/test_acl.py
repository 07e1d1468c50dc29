"""A user with exactly the rights that are documented, on each version, can do all that a store does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from redis import Redis

from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.errors import RecordUnavailable, StoreUnavailable
from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.engine.periods import QuotaPeriod
from limits_app.stores.redis import RedisClusterStore, RedisStore, acl_commands, acl_rules, prefix_for
from limits_app.testing.conformance.contract import counting
from tests.servers.machine import HOST
from tests.servers.redis import RedisServer, redis_server
from tests.stores.redis.support import PATIENT, record
from tests.stores.support import PATIENCE, has_subscribed, limits_of, until, waking_of, watching

HOUR = 3600
AMOUNTS = [*RateLimitAlgorithm, "day"]
SITE = "shop*[1]"
"""The site's prefix, with signs that mean something in patterns."""


@contextmanager
def as_user(*servers: RedisServer) -> Iterator[str]:
    """Give a user the documented rights, and no other ones; its URL. The servers report what they denied it."""
    clients = [Redis(port=server.port) for server in servers]
    for client in clients:
        client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", *acl_rules(SITE))
        client.execute_command("ACL", "LOG", "RESET")
    yield f"redis://app:secret@{HOST}:{servers[0].port}"
    denied = {entry["object"] for client in clients for entry in client.acl_log()}
    for client in clients:
        client.close()
    assert not {name for name in denied if not name.startswith("client")}  # redis-py sends CLIENT SETINFO as it may


@pytest.fixture
def server(redis_binary: str) -> Iterator[RedisServer]:
    with redis_server(binary=redis_binary) as server:
        yield server


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    with as_user(server) as url, closing(RedisStore(url=f"{url}/3", prefix=prefix_for(SITE), **PATIENT)) as store:
        yield store


def every_kind(store: RedisStore, capacity: int = 100, window: int = HOUR, period: str = "day") -> LimitSet:
    """Limits of every algorithm."""
    rates = [RateLimit(name, capacity, window, RateLimitAlgorithm(name)) for name in RateLimitAlgorithm]
    quota = QuotaLimit("day", capacity, QuotaPeriod(period))
    return limits_of(store, *rates, CallLimit(capacity, window), quota, ResourceLimit("db", 2))


def use(limits: LimitSet, amount: int = 2) -> None:
    """Charge all limits, and settle less and more."""
    amounts = dict.fromkeys(AMOUNTS, amount)
    for used in (amount - 1, amount + 1):
        with limits.try_acquire(amounts) as acquired:
            acquired.update(dict.fromkeys(amounts, used))
    limits.try_acquire(amounts | {"sliding_window": 49})


def test_verbs(store: RedisStore) -> None:
    limits = every_kind(store)
    use(limits)
    use(every_kind(store, window=2 * HOUR, period="week"))  # states of other rules are carried over
    held = limits.try_acquire(dict.fromkeys(AMOUNTS, 1))
    assert not store.renew([held.claim])
    held.cancel()
    assert limits.get_stats()
    store.reset([limits.scoped[0].scope.key])
    store.reset([limits.scoped[0].scope.key], ["day"])
    limits_of(store, CallLimit(1, HOUR), version=store.advance_version()).try_acquire()
    assert store.eviction_policy() == "noeviction"
    many = limits_of(store, RateLimit("log", 10**6, 1, RateLimitAlgorithm.SLIDING_WINDOW))
    for _ in range(50):
        assert many.try_acquire({"log": 1})


def test_tasks_and_pools(store: RedisStore) -> None:
    limits = every_kind(store)

    async def use_in_task() -> None:
        acquired = await limits.atry_acquire(dict.fromkeys(AMOUNTS, 2))
        acquired.update(dict.fromkeys(AMOUNTS, 1))
        await acquired.arelease()

    asyncio.run(use_in_task())
    sets = [limits_of(store, CallLimit(1, HOUR), entity=name) for name in "abc"]
    chosen = [store.acquire_first([one.prepare(None).claim for one in sets], emptiest_first=True) for _ in range(4)]
    assert [claim is not None for claim in chosen] == [True, True, True, False]


def test_waiters_are_woken(store: RedisStore) -> None:
    limits = limits_of(store, ResourceLimit("db", 1))
    held = limits.try_acquire()
    with ThreadPoolExecutor(1) as executor:
        waiter = executor.submit(limits.acquire)
        until(lambda: has_subscribed(store))
        held.release()
        acquisition = waiter.result(PATIENCE)
    assert acquisition.successful
    acquisition.release()
    waking_of(store).announce()


def test_usage_is_collected(store: RedisStore) -> None:
    limits = counting(store, CallLimit(100, HOUR))
    assert limits.try_acquire()
    assert store.oldest_hour() is not None
    batch = store.collect_counts()
    assert batch is not None
    store.forget_counts(batch.name)
    assert store.collect_counts() is None


def test_keys_of_another_type_are_set_aside(server: RedisServer, store: RedisStore) -> None:
    limits = limits_of(store, CallLimit(100, HOUR))
    with Redis(port=server.port, db=3) as client:
        client.set(record(store, limits), "something else")
        with pytest.raises(RecordUnavailable):
            limits.try_acquire()
        assert limits.try_acquire()
        assert all(key.startswith(SITE.encode()) for key in client.scan_iter())


def test_a_cluster(cluster: list[RedisServer]) -> None:
    with as_user(*cluster) as url, closing(RedisClusterStore(url=url, prefix=prefix_for(SITE), **PATIENT)) as store:
        before = store.version()
        use(every_kind(store))
        assert store.advance_version() > before


@pytest.mark.parametrize("missing", ["~", "&"])
def test_keys_and_channels_of_other_sites_are_denied(server: RedisServer, missing: str) -> None:
    rules = [rule for rule in acl_rules(SITE) if not rule.startswith(missing)]
    with Redis(port=server.port) as client:
        client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", *rules, f"{missing}other*")
    with closing(
        RedisStore(url=f"redis://app:secret@{HOST}:{server.port}", prefix=prefix_for(SITE), **PATIENT)
    ) as store:
        denied = limits_of(store, CallLimit(100, HOUR)).try_acquire if missing == "~" else waking_of(store).announce
        with pytest.raises(StoreUnavailable, match=r"NOPERM.*docs/stores\.md"):
            denied()


@contextmanager
def with_rights(server: RedisServer, *rules: str) -> Iterator[RedisStore]:
    """A store whose user has some rights."""
    with Redis(port=server.port) as client:
        client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", *rules)
    with closing(
        RedisStore(url=f"redis://app:secret@{HOST}:{server.port}", prefix=prefix_for(SITE), **PATIENT)
    ) as store:
        yield store


@pytest.mark.parametrize("amount", [10, 30])
def test_a_release_that_may_not_be_announced_refunds_once(server: RedisServer, amount: int) -> None:
    with with_rights(server, *[rule for rule in acl_rules(SITE) if not rule.startswith("&")]) as store:
        limits = limits_of(store, RateLimit("tokens", 100, 24 * HOUR))
        first, last = limits.try_acquire({"tokens": 60}), limits.try_acquire({"tokens": amount})
        [scope] = last.claim.plan.scope_keys
        with closing(RedisStore(url=server.url, prefix=prefix_for(SITE), **PATIENT)) as other, watching(other, scope):
            pass  # another process has noted that it waits
        last.update({"tokens": 0})
        for _ in range(3):
            with suppress(StoreUnavailable):
                last.release()
        assert first
        assert 40 <= limits.get_stats()["tokens"]["available"] < 41


def test_a_release_that_was_denied_in_the_middle_is_no_lost_lease_afterwards(server: RedisServer) -> None:
    with with_rights(server, *acl_rules(SITE)) as store:
        limits = limits_of(store, ResourceLimit("workers", 2), RateLimit("tokens", 100, 24 * HOUR))
        held = limits.try_acquire({"tokens": 60})
        with Redis(port=server.port) as client:
            client.execute_command("ACL", "SETUSER", "app", "-hset")
            with pytest.raises(StoreUnavailable, match="NOPERM"):
                held.release()
            client.execute_command("ACL", "SETUSER", "app", "+hset")
        held.release()
        assert not held.lost_lease
        assert limits.try_acquire({"workers": 1, "tokens": 40})
        assert not limits.try_acquire({"workers": 0, "tokens": 1})


def test_the_documentation_lists_the_same() -> None:
    text = Path("docs/stores.md").read_text()
    listed = text[text.index("An ACL user needs access") :].partition(".\n")[0]
    assert re.findall(r"`([A-Z|]+)`", listed) == list(acl_commands())

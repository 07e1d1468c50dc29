"""Servers that are down, silent, full or replicas: a clear error, soon, and all is well when they are back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest
from redis import Redis
from redis.connection import Connection

from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.errors import RecordUnavailable, StoreBlocked, StoreFull, StoreUnavailable
from limits_app.engine.keys import short_key
from limits_app.engine.limits import AnyLimit, CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.redis import RedisStore
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import counting
from tests.servers.machine import free_ports
from tests.servers.redis import RedisServer, redis_server
from tests.stores.redis.support import idle_of, listeners, names_of, record
from tests.stores.support import (
    PATIENCE,
    has_subscribed,
    limits_of,
    until,
    used,
    watching,
)
from tests.threads import no_more_threads

HOUR = 3600


@pytest.fixture
def server(redis_binary: str) -> Iterator[RedisServer]:
    with redis_server(binary=redis_binary) as started:
        yield started


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    store = RedisStore(url=server.url, connect_seconds=1, reply_seconds=1)
    yield store
    server.resume()
    store.close()


@pytest.fixture
def limits(store: RedisStore) -> LimitSet:
    limits = limits_of(store, CallLimit(100, HOUR))
    assert limits.try_acquire()
    return limits


def test_unreachable_server_is_unavailable() -> None:
    store = RedisStore(url=f"redis://127.0.0.1:{free_ports()[0]}/0")
    with pytest.raises(StoreUnavailable, match="cannot be reached") as caught:
        limits_of(store, CallLimit(1, HOUR)).try_acquire()
    assert caught.value.__cause__ is not None


def test_a_server_that_was_restarted_is_found_again(server: RedisServer, limits: LimitSet) -> None:
    for _ in range(3):
        server.kill()
        with pytest.raises(StoreUnavailable):
            limits.try_acquire()
        server.start()
        assert limits.try_acquire()


def test_a_server_that_does_not_reply_is_unavailable_after_the_timeout(server: RedisServer, limits: LimitSet) -> None:
    store = RedisStore(url=server.url)
    quick = limits_of(store, CallLimit(100, HOUR))
    assert quick.try_acquire()
    server.freeze()
    started = monotonic()
    with pytest.raises(StoreUnavailable):
        quick.try_acquire()
    took = monotonic() - started
    server.resume()
    assert 0.1 <= took < 1
    assert quick.try_acquire()
    store.close()


KNOWN: dict[str, list[AnyLimit]] = {
    **{str(algorithm): [RateLimit("x", 5, HOUR, algorithm)] for algorithm in RateLimitAlgorithm},
    "quota": [QuotaLimit("x", 5, "month"), CallLimit(9, HOUR)],
    "permits": [ResourceLimit("x", 5), CallLimit(9, HOUR)],
}


@pytest.fixture
def full(server: RedisServer) -> Iterator[Callable[[], None]]:
    """Leave the server without memory for more state, until the end of the test."""
    with Redis(port=server.port) as client:
        yield lambda: client.config_set("maxmemory", 1)
        client.config_set("maxmemory", 0)


@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
@pytest.mark.parametrize("made", [limits_of, counting])
def test_known_scopes_are_decided_by_a_full_server_and_new_ones_are_not(
    server: RedisServer,
    store: RedisStore,
    full: Callable[[], None],
    known: list[AnyLimit],
    made: Callable[..., LimitSet],
) -> None:
    limits = made(store, *known, entity="known")
    assert limits.try_acquire({"x": 2}).claim.admitted
    full()
    other = RedisStore(url=server.url, connect_seconds=1, reply_seconds=1)  # as a process that was started meanwhile
    again = made(other, *known, entity="known")
    held = again.try_acquire({"x": 3})
    assert held
    assert not limits.try_acquire({"x": 1})
    with pytest.raises(StoreFull, match=r"no memory for more state .*raise its maxmemory"):
        limits_of(store, *known, entity="new").try_acquire({"x": 1})
    assert used(limits, "x") == pytest.approx(5, abs=0.1)
    if isinstance(known[0], ResourceLimit):
        assert other.renew([held.claim]) == []
        held.release()
        assert used(limits, "x") == 2
    assert used(limits_of(store, *known, entity="new"), "x") == 0
    other.close()


@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
def test_known_scopes_are_decided_by_a_full_server_whose_clock_was_set_back(
    server: RedisServer, full: Callable[[], None], known: list[AnyLimit]
) -> None:
    clock = FakeClock()
    store = RedisStore(url=server.url, clock=clock, connect_seconds=1, reply_seconds=1)
    limits = limits_of(store, *known, entity="known")
    assert limits.try_acquire({"x": 5}).claim.admitted
    full()
    clock.advance(-9000 * HOUR)
    assert not limits.try_acquire({"x": 1})
    store.close()


def test_limits_can_be_changed_and_reset_on_a_full_server(store: RedisStore, full: Callable[[], None]) -> None:
    assert limits_of(store, CallLimit(5, HOUR)).try_acquire({"call_count": 5})
    full()
    version = store.version()
    assert store.advance_version() > version
    assert limits_of(store, CallLimit(7, HOUR)).try_acquire({"call_count": 2})
    assert not limits_of(store, CallLimit(7, HOUR)).try_acquire()
    limits = limits_of(store, CallLimit(7, HOUR))
    store.reset([scoped.scope.key for scoped in limits.scoped])
    assert limits.try_acquire({"call_count": 7})


def test_counted_usage_gives_way_for_new_scopes_on_a_full_server(store: RedisStore, full: Callable[[], None]) -> None:
    for number in range(4):
        assert counting(store, CallLimit(5, HOUR), entity=f"counted {number}").try_acquire()
    full()
    for number in range(2):  # in place of two entries of usage each
        assert counting(store, CallLimit(5, HOUR), entity=f"new {number}").try_acquire()
    with pytest.raises(StoreFull):
        counting(store, CallLimit(5, HOUR), entity="another one").try_acquire()
    assert all(used(counting(store, CallLimit(5, HOUR), entity=f"counted {number}")) > 0.9 for number in range(4))


def test_a_primary_that_became_a_replica_is_unavailable(server: RedisServer, limits: LimitSet) -> None:
    with Redis(port=server.port) as client:
        client.replicaof("127.0.0.1", free_ports()[0])
        with pytest.raises(StoreUnavailable, match="refuses"):
            limits.try_acquire()
        client.replicaof("NO", "ONE")
    assert limits.try_acquire()


def test_waiting_without_a_subscription_logs_a_warning(
    server: RedisServer, store: RedisStore, limits: LimitSet
) -> None:
    server.kill()
    with pytest.raises(StoreUnavailable), watching(store, "v1:somewhere:-"):
        pass


def test_waiting_works_without_a_thread_and_the_next_waiter_is_woken(server: RedisServer, store: RedisStore) -> None:
    other = RedisStore(url=server.url)
    held = limits_of(other, ResourceLimit("db", 1)).try_acquire()
    limits = limits_of(store, ResourceLimit("db", 1))
    with ThreadPoolExecutor(1) as executor, no_more_threads():
        waiter = executor.submit(limits.acquire)
        until(lambda: store.line.busy)
        held.release()
        served = waiter.result(PATIENCE)
        assert served.successful
        served.release()
    held = limits_of(other, ResourceLimit("db", 1)).try_acquire()
    with ThreadPoolExecutor(1) as executor:
        waiter = executor.submit(limits.acquire)
        until(listeners)
        held.release()
        served = waiter.result(PATIENCE)
    assert served.successful
    served.release()
    other.close()


def test_a_listener_that_was_cut_off_listens_again(
    server: RedisServer, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watching(store, "v1:somewhere:-"):
        pass
    with Redis(port=server.port) as client:

        def listeners() -> set[str]:
            return {one["id"] for one in client.client_list(_type="pubsub")}

        before = listeners()
        client.client_kill_filter(_id=before.pop())
        until(lambda: listeners() and has_subscribed(store))
        # From now on notes are renewed all the time.
        monkeypatch.setattr("limits_app.stores.redis.waking._SECONDS_BETWEEN_NOTES", -1)
        with watching(store, "v1:elsewhere:-"):
            key = names_of(store).scope(short_key("v1:elsewhere:-"))
            client.delete(key)
            until(lambda: client.hexists(key, "!"))


def test_an_interruption_leaves_no_reply_for_another_call(
    store: RedisStore, limits: LimitSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = list(idle_of(store))
    monkeypatch.setattr(Connection, "read_response", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        limits.try_acquire()
    monkeypatch.undo()
    assert limits.try_acquire()
    assert not held[0].is_connected
    assert used(limits) == pytest.approx(3, abs=0.1), "what was interrupted stays charged"


def _interrupted(*_: object, **__: object) -> object:
    raise KeyboardInterrupt


def test_a_key_of_another_type_is_one_error_of_its_scope_and_is_set_aside(
    server: RedisServer, store: RedisStore, limits: LimitSet, caplog: pytest.LogCaptureFixture
) -> None:
    other = limits_of(store, CallLimit(100, HOUR), entity="other")
    with Redis(port=server.port) as client:
        client.set(record(store, other), "something else")
        with pytest.raises(RecordUnavailable, match="WRONGTYPE"):
            other.try_acquire()
        assert limits.try_acquire()
        assert other.try_acquire()
        aside = record(store, other) + b":unreadable"
        assert client.get(aside) == b"something else"
        assert 0 < client.ttl(aside) <= 86_400
    assert f"it is now {aside!r} for a day, and counting starts again" in caplog.text
    assert isinstance(RecordUnavailable(), StoreBlocked), "which opens no circuit breaker"


def test_logs_and_leases_of_another_type_are_set_aside_too(server: RedisServer, store: RedisStore) -> None:
    windows = RateLimit("x", 100, HOUR, algorithm=RateLimitAlgorithm.SLIDING_WINDOW)
    limits = limits_of(store, windows, ResourceLimit("db", 5))
    held = limits.try_acquire({"x": 1})
    short = short_key(limits.scoped[0].scope.key)
    with Redis(port=server.port) as client:
        client.delete(record(store, limits))
        client.hset(names_of(store).log(short, "x"), "a", "b")
        client.set(names_of(store).leases(short, "db"), "something else")
        with pytest.raises(RecordUnavailable, match="WRONGTYPE"):
            held.release()
        assert client.keys(b"*:unreadable")
    assert limits.try_acquire({"x": 1})


@pytest.mark.parametrize("command", ["evalsha", "eval", "hset"])
def test_the_error_names_the_command_that_an_acl_user_lacks(server: RedisServer, command: str) -> None:
    with Redis(port=server.port) as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", f"-{command}")
        store = RedisStore(url=f"redis://app:secret@127.0.0.1:{server.port}/0", connect_seconds=1, reply_seconds=1)
        with pytest.raises(StoreUnavailable, match=r"NOPERM|no permissions"):
            limits_of(store, CallLimit(100, HOUR)).try_acquire()
        client.execute_command("ACL", "SETUSER", "app", "+@all")
        assert limits_of(store, CallLimit(100, HOUR)).try_acquire()
        store.close()

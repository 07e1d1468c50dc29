"""Errors of the server are recognized by what they are, on each version; one poisoned key concerns its scope alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest
from redis import Redis, exceptions

from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.change_log import ALL, ROWS
from limits_app.engine.errors import RecordUnavailable, StoreUnavailable
from limits_app.engine.limits import CallLimit
from limits_app.stores.redis import RedisStore
from limits_app.stores.redis.errors import ErrorKind, error_kind
from tests.servers.machine import HOST, free_ports
from tests.servers.proxy import Proxy, proxy
from tests.servers.redis import RedisServer, redis_cluster, redis_server
from tests.stores.redis.support import (
    PATIENT,
    add_idle,
    drop_idle,
    idle_of,
    loops_of,
    names_of,
    of_this_loop,
    record,
    store_on,
)
from tests.stores.support import connections_of, limits_of, until

HOUR = 3600
WRITE, READ = "return redis.call('HSET', KEYS[1], 'f', '1')", "return redis.call('GET', KEYS[1])"
UNDECLARED = "return redis.call('SET', ARGV[1], '1')"


@pytest.fixture
def server(redis_binary: str) -> Iterator[RedisServer]:
    """A server of each version."""
    with redis_server(binary=redis_binary) as started:
        yield started


@pytest.fixture
def client(server: RedisServer) -> Iterator[Redis]:
    with Redis(port=server.port) as client:
        yield client


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    with closing(store_on(server)) as store:
        yield store


def kinds(*calls: Callable[[], object]) -> set[ErrorKind]:
    """The kinds of the errors that the calls raise."""
    found = set()
    for call in calls:
        with pytest.raises(exceptions.RedisError) as caught:
            call()
        found.add(error_kind(caught.value))
    return found


def test_types_and_memory(client: Redis) -> None:
    client.hset("h", "f", "v")
    assert kinds(lambda: client.get("h"), lambda: client.eval(READ, 1, "h")) == {ErrorKind.WRONG_TYPE}
    client.config_set("maxmemory", 1)
    assert kinds(lambda: client.set("k", "v"), lambda: client.eval(WRITE, 1, "k")) == {ErrorKind.OUT_OF_MEMORY}


def test_replicas(client: Redis) -> None:
    client.replicaof(HOST, str(free_ports()[0]))
    assert kinds(lambda: client.set("k", "v"), lambda: client.eval(WRITE, 1, "k")) == {ErrorKind.READ_ONLY}
    client.config_set("replica-serve-stale-data", "no")
    assert kinds(lambda: client.get("k"), lambda: client.eval(READ, 1, "k")) == {ErrorKind.MASTER_DOWN}


def test_a_primary_without_the_replicas_that_it_needs(client: Redis) -> None:
    client.config_set("min-replicas-to-write", 1)
    assert kinds(lambda: client.set("k", "v"), lambda: client.eval(WRITE, 1, "k")) == {ErrorKind.NO_REPLICAS}


def test_rights_of_a_user_whose_name_is_an_error(server: RedisServer, client: Redis) -> None:
    rights = ("on", ">secret", "~own*", "resetchannels", "+@all", "-hset", "-get")
    client.execute_command("ACL", "SETUSER", "OOM", *rights)
    with Redis(port=server.port, username="OOM", password="secret") as user:
        calls: list[Callable[[], object]] = [
            lambda: user.get("own"),
            lambda: user.eval(WRITE, 1, "own"),
            lambda: user.set("other", "v"),
            lambda: user.eval(UNDECLARED, 0, "other"),
            lambda: user.publish("other", "v"),
            lambda: user.eval("return redis.call('PUBLISH', ARGV[1], '1')", 0, "other"),
        ]
        assert kinds(*calls) == {ErrorKind.NO_PERMISSION}


def test_clusters(redis_binary: str) -> None:
    options = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
    with redis_server(*options, binary=redis_binary) as alone, Redis(port=alone.port) as client:
        assert kinds(lambda: client.get("k"), lambda: client.eval(WRITE, 1, "k")) == {ErrorKind.CLUSTER_DOWN}
    with redis_cluster(binary=redis_binary) as servers:
        for server in servers:
            with Redis(port=server.port) as client, suppress(exceptions.MovedError):
                client.set("k", "v")
        found = set()
        for server in servers:
            with Redis(port=server.port) as client:
                try:
                    client.eval(WRITE, 1, "j")
                except exceptions.RedisError as error:
                    found.add(error_kind(error))
        assert found == {ErrorKind.MOVED}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.AskError("3999 127.0.0.1:6381"), ErrorKind.ASK),
        (exceptions.MovedError("3999 127.0.0.1:6381"), ErrorKind.MOVED),
        (exceptions.TryAgainError("Multiple keys request during rehashing of slot"), ErrorKind.TRY_AGAIN),
        (
            exceptions.ResponseError("Error running script (call to f_0): @user_script:7: -TRYAGAIN x"),
            ErrorKind.TRY_AGAIN,
        ),
        (exceptions.ResponseError("Error running script: @user_script: 7: -ASK 3999 127.0.0.1:6381"), ErrorKind.ASK),
        (exceptions.ResponseError("LOADING Redis is loading the dataset in memory script: 0"), ErrorKind.LOADING),
        (exceptions.ResponseError("MISCONF Redis is configured to save RDB snapshots, but"), ErrorKind.NOT_SAVED),
        (exceptions.ResponseError("@user_script: 172: -MISCONF Errors writing to the AOF file"), ErrorKind.NOT_SAVED),
        (exceptions.ResponseError("ERR ACL failure in script: User OOM has no permissions"), ErrorKind.NO_PERMISSION),
        (exceptions.ResponseError("unknown command 'ASK', with args beginning with: 'OOM'"), ErrorKind.OTHER),
        (exceptions.ResponseError("wrong number of arguments for 'hset' command"), ErrorKind.OTHER),
        (None, ErrorKind.OTHER),
    ],
)
def test_errors_that_servers_seldom_send(error: Exception | None, kind: ErrorKind) -> None:
    assert error_kind(error) is kind


def test_keys_that_scopes_share_are_set_aside_too(
    store: RedisStore, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    limits = limits_of(store, CallLimit(9, HOUR), version=store.version())
    key = names_of(store).version(names_of(store).tags[0])
    client.rpush(key, "something else")
    with pytest.raises(RecordUnavailable):
        limits.try_acquire()
    assert limits.try_acquire()
    client.delete(key)
    client.rpush(key, "something else")
    with pytest.raises(RecordUnavailable):
        store.version()
    assert store.version() == 0
    key = names_of(store).changes("")
    client.hset(key, "something", "else")
    with pytest.raises(RecordUnavailable):
        store.advance_version([ALL])
    first = store.advance_version([ALL])
    assert store.changes_since(first - 1) is None
    second = store.advance_version([ROWS])
    assert store.changes_since(first) == (second, (ROWS,))
    names, collect = names_of(store), store.collect_counts
    for key in (names.batch(names.tags[0], b"", 0), names.usage(names.tags[0], b"")):
        client.set(key, "something else")
        with pytest.raises(RecordUnavailable):
            collect()
        assert collect() is None
        assert client.get(key + b":unreadable") == b"something else"
    assert caplog.text.count("for a day, and counting starts again") == 5


def test_a_task_sets_a_key_of_another_type_aside(store: RedisStore, client: Redis) -> None:
    limits = limits_of(store, CallLimit(9, HOUR))

    async def acquire() -> bool:
        client.lpush(record(store, limits), "something else")
        with pytest.raises(RecordUnavailable):
            await limits.atry_acquire()
        return bool(await limits.atry_acquire())

    assert asyncio.run(acquire())


class Address:
    """An address whose server is replaced while connections to the former one stay open."""

    def __init__(self, address: Proxy, former: RedisServer, present: RedisServer) -> None:
        self._address, self._former, self._present = address, former, present
        self.store = RedisStore(url=f"redis://{HOST}:{address.port}/0", **PATIENT)
        self.limits = limits_of(self.store, CallLimit(10**6, HOUR))

    async def use(self, number: int) -> list[bool]:
        return [bool(one) for one in await asyncio.gather(*[self.limits.atry_acquire() for _ in range(number)])]

    def fill(self, number: int) -> None:
        """Let threads have so many idle connections."""
        add_idle(connections_of(self.store), number)

    def demote(self) -> None:
        with Redis(port=self._former.port) as client:
            client.replicaof(HOST, str(self._present.port))
        self._address.target = self._present.port

    def clients(self) -> int:
        """How many clients the former server has."""
        with Redis(port=self._former.port) as client:
            return len(client.client_list(_type="normal"))


@pytest.fixture
def address(redis_binary: str) -> Iterator[Address]:
    with (
        redis_server(binary=redis_binary) as former,
        redis_server(binary=redis_binary) as present,
        proxy(former.port, lambda _: False) as between,
    ):
        address = Address(between, former, present)
        yield address
        address.store.close()


def test_no_request_of_a_thread_fails_after_a_demotion_and_idle_connections_are_closed(address: Address) -> None:
    address.fill(16)
    assert address.limits.try_acquire()
    address.demote()
    assert all(address.limits.try_acquire() for _ in range(20))
    until(lambda: address.clients() == 1)


def test_no_request_of_a_task_fails_after_a_demotion_and_idle_connections_are_closed(address: Address) -> None:
    address.fill(3)

    async def demoted() -> None:
        assert all(await address.use(14))
        address.demote()
        for _ in range(20):
            assert await address.use(1) == [True]
        assert all(await address.use(30))
        until(lambda: address.clients() == 1)

    asyncio.run(demoted())


def test_a_thread_that_notices_a_demotion_closes_the_connections_of_tasks(address: Address) -> None:
    address.fill(2)

    async def demoted() -> None:
        assert all(await address.use(9))
        address.demote()
        assert await asyncio.to_thread(address.limits.try_acquire)
        own = await of_this_loop(address.store)
        assert not own.idle
        assert all(await address.use(9))

    asyncio.run(demoted())
    until(lambda: address.clients() == 1)


@pytest.mark.parametrize("as_task", [False, True])
def test_a_connection_in_use_when_idle_ones_are_dropped_is_not_kept(redis: RedisServer, *, as_task: bool) -> None:
    def drop(_: bytes) -> bool:
        drop_idle(between_store[0])
        return False

    between_store: list[RedisStore] = []
    with proxy(redis.port, drop) as between:
        between_store.append(RedisStore(url=f"redis://{HOST}:{between.port}/0", **PATIENT))
        with closing(between_store[0]) as store:
            limits = limits_of(store, CallLimit(10**6, HOUR))

            async def acquire() -> bool:
                admitted = bool(await limits.atry_acquire())
                own = await of_this_loop(store)
                return admitted and not own.idle

            assert asyncio.run(acquire()) if as_task else limits.try_acquire()
            assert not idle_of(store)


def test_an_event_loop_that_was_closed_keeps_no_connections(redis: RedisServer) -> None:
    with closing(store_on(redis)) as store:
        limits, loop = limits_of(store, CallLimit(10**6, HOUR)), asyncio.new_event_loop()
        loop.run_until_complete(limits.atry_acquire())
        [own] = loops_of(store).values()
        loop.run_until_complete(own.idle[0].disconnect())
        loop.close()
        drop_idle(store)
        assert not own.idle


def test_a_replica_alone_is_unavailable(server: RedisServer, client: Redis, store: RedisStore) -> None:
    limits = limits_of(store, CallLimit(9, HOUR))
    client.replicaof(HOST, str(free_ports()[0]))
    for acquire in (limits.try_acquire, lambda: asyncio.run(_acquired(limits))):
        with pytest.raises(StoreUnavailable, match="READONLY"):
            acquire()
    client.replicaof("NO", "ONE")
    assert limits.try_acquire()


async def _acquired(limits: LimitSet) -> bool:
    return bool(await limits.atry_acquire())


@pytest.mark.parametrize("as_task", [False, True])
def test_a_server_that_is_loading_is_unavailable_and_charges_nothing(redis_binary: str, *, as_task: bool) -> None:
    with redis_server("--rdbcompression", "no", binary=redis_binary) as server:
        with Redis(port=server.port) as client:
            client.mset({f"key {number}": bytes(500_000) for number in range(80)})
            client.save()
        with closing(store_on(server)) as store:
            limits = limits_of(store, CallLimit(9, HOUR))
            acquire = (lambda: asyncio.run(_acquired(limits))) if as_task else limits.try_acquire
            assert acquire()
            server.kill()
            server.start("--key-load-delay", "20000")  # microseconds
            with pytest.raises(StoreUnavailable, match=r"LOADING|loading"):
                acquire()
            until(lambda: _works(limits))
            assert limits.get_stats()["call_count"]["used"] == pytest.approx(1, abs=0.1)


def _works(limits: LimitSet) -> bool:
    with suppress(StoreUnavailable):
        return bool(limits.try_acquire())
    return False

"""A store behind Sentinel, where some of the Sentinels do not answer, or do not accept the password."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from threading import Thread

import pytest
from redis import Redis
from redis.sentinel import Sentinel

from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import CallLimit
from limits_app.stores.redis import RedisStore
from tests.servers.machine import HOST
from tests.servers.redis import redis_sentinel
from tests.stores.redis.support import idle_of, prefix
from tests.stores.support import limits_of

pytestmark = [pytest.mark.product, pytest.mark.server]

HOUR = 3600
SECONDS = {"connect_seconds": 2.0, "reply_seconds": 2.0}


@contextmanager
def broken_sentinel(react: Callable[[socket.socket], object]) -> Iterator[tuple[int, list[socket.socket]]]:
    """The port of a Sentinel that never answers, and its connections; `react` gets each of them."""
    connections: list[socket.socket] = []
    with socket.create_server((HOST, 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connections.append(connection)
                react(connection)

        thread = Thread(target=accept)
        thread.start()
        try:
            yield server.getsockname()[1], connections
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in connections:
                connection.close()


@pytest.mark.parametrize(
    "react", [lambda connection: None, socket.socket.close], ids=["does not reply", "closes connections"]
)
def test_a_sentinel_without_an_answer_is_asked_once(react: Callable[[socket.socket], object]) -> None:
    with redis_sentinel() as (primary, _, sentinel), broken_sentinel(react) as (port, connections):
        manager = Sentinel([(HOST, port), (HOST, sentinel.port)], sentinel_kwargs={"password": None})
        with closing(RedisStore(client=manager.master_for("limits"), prefix=prefix(), **SECONDS)) as store:
            limits = limits_of(store, CallLimit(5, HOUR))
            assert limits.try_acquire()
            primary.stop()
            primary.start()
            assert limits.try_acquire()
        assert len(connections) == 1


def test_all_sentinels_are_named_with_their_errors() -> None:
    with redis_sentinel() as (*_, sentinel), broken_sentinel(socket.socket.close) as (port, _):
        with Redis(port=sentinel.port) as administrator:
            administrator.execute_command("ACL SETUSER default resetpass >right")
        manager = Sentinel([(HOST, port), (HOST, sentinel.port)], sentinel_kwargs={"password": "wrong"})
        store = RedisStore(client=manager.master_for("limits"), prefix=prefix(), **SECONDS)
        with pytest.raises(StoreUnavailable) as caught, closing(store):
            limits_of(store, CallLimit(5, HOUR)).try_acquire()
    message = str(caught.value)
    assert re.search(rf"'limits' : {HOST}:{port} - \S*ConnectionError", message)
    assert re.search(rf"{HOST}:{sentinel.port} - \S*AuthenticationError", message)
    assert "ConnectionPool" not in message


def test_a_sentinel_that_was_without_an_answer_is_not_forgotten() -> None:
    with redis_sentinel() as (*_, sentinel), broken_sentinel(socket.socket.close) as (port, connections):
        manager = Sentinel([(HOST, port), (HOST, sentinel.port)], sentinel_kwargs={"password": None})
        with closing(RedisStore(client=manager.master_for("limits"), prefix=prefix(), **SECONDS)) as store:
            limits = limits_of(store, CallLimit(5, HOUR))
            assert limits.try_acquire()
            sentinel.kill()
            assert limits.try_acquire()  # over a connection that is open
            store.close()
            with pytest.raises(StoreUnavailable):
                limits.try_acquire()
        assert len(connections) == 2


def test_an_isolated_primary_is_left_for_the_new_one() -> None:
    with redis_sentinel() as (primary, replica, sentinel), Redis(port=sentinel.port) as watcher:
        manager = Sentinel([(HOST, sentinel.port)])
        store = RedisStore(client=manager.master_for("limits"), prefix=prefix(), **SECONDS)
        with closing(store), Redis(port=primary.port) as old, Redis(port=replica.port) as new:
            limits = limits_of(store, CallLimit(5, HOUR))
            assert limits.try_acquire()
            new.replicaof("NO", "ONE")
            watcher.execute_command("SENTINEL REMOVE limits")
            watcher.execute_command(f"SENTINEL MONITOR limits {HOST} {replica.port} 1")
            old.config_set("min-replicas-to-write", 1)
            assert limits.try_acquire()
            [connection] = idle_of(store)
            assert connection.port == replica.port

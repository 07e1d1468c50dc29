"""Links: what is lost on the way, at every point of it, and sockets that are closed whatever happens."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from limits_app.stores.redis.commands import Call
from limits_app.stores.redis.links import Link, Links, Unanswered
from limits_app.stores.redis.remembered import Remembered
from redis import Redis

from limits_app.core.errors import StoreUnavailable
from limits_app.core.limits import CallLimit, RateLimit
from limits_app.stores.redis import RedisStore
from tests.servers.proxy import proxy
from tests.servers.redis import RedisServer, redis_server
from tests.stores.redis.support import PATIENT, calm_down, hurry, limits_of, store_on, used

HOUR = 3600
MOST_TRIES = 20
"""To be quick on a machine that others use too."""

PING = Command(b"ECHO", b"hello")


@pytest.fixture
def links(store: RedisStore) -> Links:
    return store._links


def lost(link: Link) -> Link:
    """A link whose connection is gone."""
    link.socket.shutdown(socket.SHUT_RDWR)
    return link


def test_a_lost_connection_is_made_anew(links: Links) -> None:
    links._idle.keep(lost(links.open()))
    assert links.run(PING) == b"hello"


def test_a_reply_that_somebody_else_waits_for_is_asked_for_again_when_it_is_lost(links: Links) -> None:
    assert links.heard(lost(links.open()), PING) == b"hello"


def test_a_reply_in_many_pieces_is_put_together(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limits_app.stores.redis.links.CHUNK", 1)
    assert links.run(PING) == b"hello"


def test_a_server_that_hangs_up_whenever_it_is_asked_is_given_up(redis: RedisServer) -> None:
    asked: list[bytes] = []

    def loses(command: bytes) -> bool:
        asked.append(command)
        return b"hello" in command

    with proxy(redis.port, loses) as lossy:
        store = RedisStore(url=f"redis://127.0.0.1:{lossy.port}/0", **PATIENT)
        with pytest.raises(Unanswered, match="does not answer"):
            store._connections.run(PING)
        assert sum(b"hello" in command for command in asked) == 9
        store.close()


def test_a_link_that_is_one_too_many_is_not_kept(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limits_app.stores.redis.links._MOST_IDLE", 1)
    link = links.open()
    links._idle.links.append(links.open())
    links._idle.links.append(link)
    assert links.run(PING) == b"hello"
    assert link.socket.fileno() == -1
    assert len(links._idle.links) == 1


def test_nobody_is_asked_again_when_there_is_no_time_left(redis: RedisServer) -> None:
    asked: list[bytes] = []

    def loses(command: bytes) -> bool:
        asked.append(command)
        return b"hello" in command

    with proxy(redis.port, loses) as lossy:
        store = RedisStore(url=f"redis://127.0.0.1:{lossy.port}/0", **PATIENT)
        store._links._idle.keep(store._links.open())
        store._links.reply_seconds = 0
        with pytest.raises(Unanswered):
            store._connections.run(PING)
        assert sum(b"hello" in command for command in asked) == 1
        store.close()


def test_a_silent_server_is_asked_twice_and_takes_no_longer_than_it_may(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_on(redis)
    hurry(store, links=MOST_TRIES, seconds=RedisStore.DEFAULTS["reply_seconds"])
    took, again = [], []
    once_more = Links._once_more

    def noted(links: Links, *asked: Any) -> Any:
        again.append(asked)
        return once_more(links, *asked)

    monkeypatch.setattr(Links, "_once_more", noted)
    redis.freeze()
    try:
        while not took or (min(took) >= 0.15 and len(took) < MOST_TRIES):
            started = monotonic()
            with pytest.raises(Unanswered):
                store._connections.run(PING)
            took.append(monotonic() - started)
    finally:
        redis.resume()
    assert min(took) < 0.15
    assert len(again) == len(took)
    store.close()


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called on, nobody hears the first reply that comes."""
    exchange, silences = Link.exchange, iter([True])

    def silent_at_first(link: Link, call: Call, again: bool = False) -> Any:
        reply = exchange(link, call, again)
        if next(silences, False):
            raise TimeoutError
        return reply

    return lambda: monkeypatch.setattr(Link, "exchange", silent_at_first)


def test_a_server_that_answers_the_second_time_only_is_heard(store: RedisStore, silence: Callable[[], None]) -> None:
    limits = limits_of(store, CallLimit(10, HOUR))
    silence()
    assert limits.try_acquire()
    assert used(limits) == pytest.approx(1, abs=0.1)


def test_a_server_may_refuse_the_second_time(links: Links, silence: Callable[[], None]) -> None:
    silence()
    with pytest.raises(StoreUnavailable, match="Redis refuses: ERR unknown command"):
        links.run(Command(b"NOSUCH", b"key"))


def test_a_server_that_is_silent_twice_is_given_up(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(link: Link, call: Call, again: bool = False) -> Any:
        raise TimeoutError

    monkeypatch.setattr(Link, "exchange", silent)
    with pytest.raises(Unanswered, match="does not answer"):
        links.run(PING)


def test_an_interruption_while_asking_again_leaves_nothing_open(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def interrupted(link: Link, call: Call, again: bool = False) -> Any:
        opened.append(link)
        raise TimeoutError if len(opened) == 1 else KeyboardInterrupt

    monkeypatch.setattr(Link, "exchange", interrupted)
    with pytest.raises(KeyboardInterrupt):
        links.run(PING)
    assert [link.socket.fileno() for link in opened] == [-1, -1]


def test_a_connection_that_is_lost_while_a_script_is_loaded_is_a_question_without_an_answer(
    store: RedisStore, redis: RedisServer
) -> None:
    def loses(command: bytes) -> bool:
        return b"SCRIPT" in command

    with proxy(redis.port, loses) as lossy, Redis(port=redis.port) as client:
        other = RedisStore(url=f"redis://127.0.0.1:{lossy.port}/0", prefix=store.prefix, **PATIENT)
        limits = limits_of(other, CallLimit(10, HOUR))
        client.script_flush()
        with pytest.raises(Unanswered):
            limits.try_acquire()
        other.close()


def test_a_script_that_cannot_be_loaded_is_a_refusal(store: RedisStore, redis: RedisServer) -> None:
    limits = limits_of(store, CallLimit(10, HOUR))
    with Redis(port=redis.port) as client:
        client.script_flush()
        client.execute_command("ACL SETUSER default -script")
        try:
            with pytest.raises(StoreUnavailable, match="NOPERM"):
                limits.try_acquire()
        finally:
            client.execute_command("ACL SETUSER default +script")
    assert limits.try_acquire()


def test_what_could_not_be_asked_at_all_is_not_remembered() -> None:
    with redis_server() as server:
        store = store_on(server)
        limits = limits_of(store, RateLimit("tokens", 100, HOUR))
        held = limits.try_acquire({"tokens": 10})
        store._links.close()
        server.kill()
        with pytest.raises(StoreUnavailable):
            store.settle(held, [-held.amounts[0]])
        assert len(store._unsettled) == 0
        store.close()


def test_a_store_that_nobody_has_closed_leaves_no_socket_open(redis: RedisServer) -> None:
    store = store_on(redis)
    assert limits_of(store, CallLimit(10, HOUR)).try_acquire()
    link = store._links._idle.take()
    assert link is not None
    store._links._idle.keep(link)
    sockets = link.socket
    del store, link
    gc.collect()
    assert sockets.fileno() == -1


def test_what_was_never_answered_is_remembered_for_so_many_and_no_more(redis: RedisServer) -> None:
    store = store_on(redis)
    store._unsettled = Remembered(2)
    limits = limits_of(store, RateLimit("tokens", 100, HOUR))
    held = [limits.try_acquire({"tokens": 10}) for _ in range(3)]
    hurry(store, links=3)
    redis.freeze()
    try:
        for one in held:
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    store.settle(one, [-one.amounts[0]])
    finally:
        redis.resume()
    prepared = store._prepared.plan(held[0].plan)
    assert [(one, prepared) in store._unsettled for one in held] == [False, True, True]
    calm_down(store)
    for one in held:
        store.settle(one, [-one.amounts[0]])
    assert len(store._unsettled) == 0
    assert used(limits, "tokens") == 0
    store.close()

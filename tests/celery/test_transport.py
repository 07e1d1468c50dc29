"""The Redis transport that loses nothing: what a consumer that dies leaves behind, and what waits on the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from queue import Empty
from time import time
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Message, Queue
from kombu.transport.redis import Mutex
from redis import Redis, ResponseError

from limits_app.integrations.celery_redis import Transport, held_back
from tests.servers.ports import HOST
from tests.servers.redis import RedisServer, redis_server

FIRST = Queue("first", Exchange("work"), routing_key="first")
SECOND = Queue("second", Exchange("work"), routing_key="second")


@pytest.fixture(scope="module")
def running() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def server(running: RedisServer) -> Iterator[Redis]:
    """An empty server."""
    with Redis(HOST, running.port, decode_responses=True) as client:
        client.flushall()
        yield client


@pytest.fixture(params=["", "site-"], ids=["plain", "prefixed"])
def broker(request: pytest.FixtureRequest, running: RedisServer, server: Redis) -> Iterator[Connection]:
    """A connection with the transport, with and without a prefix of all keys."""
    options = {"global_keyprefix": request.param}
    with Connection(f"redis://{HOST}:{running.port}", transport=Transport, transport_options=options) as connection:
        yield connection


def put(broker: Connection, *bodies: Any, queue: Queue = FIRST, **options: Any) -> None:
    """Send messages."""
    with broker.Producer() as producer:
        for body in bodies:
            producer.publish(body, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue], **options)


def taken(broker: Connection, *queues: Queue, seconds: float = 0.3, ack: bool = True) -> list[Any]:
    """What comes out of queues, until nothing does for a while."""
    found: list[Any] = []

    def note(body: Any, message: Message) -> None:
        found.append(body)
        if ack:
            message.ack()

    with broker.channel() as channel, Consumer(channel, queues or [FIRST], callbacks=[note]), suppress(TimeoutError):
        while True:
            broker.drain_events(timeout=seconds)
    return found


def test_messages_come_in_their_order_from_all_queues_and_priorities(broker: Connection) -> None:
    put(broker, 1, 2, 3)
    put(broker, "later", priority=9)
    put(broker, "other", queue=SECOND)
    found = taken(broker, FIRST, SECOND)
    assert [body for body in found if isinstance(body, int)] == [1, 2, 3]
    assert sorted(body for body in found if isinstance(body, str)) == ["later", "other"]


def a_minute_goes_by(server: Redis) -> None:
    """What waits for less than that has its time."""
    waiting = next(key for key in server.scan_iter("*waiting"))
    for message, moment in server.zrange(waiting, 0, -1, withscores=True):
        server.zadd(waiting, {message: moment - 100})


def test_what_waits_comes_when_its_time_has_come_before_all_others(broker: Connection, server: Redis) -> None:
    put(broker, "fresh")
    put(broker, "tomorrow", headers=held_back(86400))
    put(broker, "third", headers=held_back(70))
    put(broker, "second", headers=held_back(60))
    put(broker, "now", headers=held_back(-1))
    assert taken(broker) == ["fresh", "now"]
    put(broker, "fresh again")
    a_minute_goes_by(server)
    assert taken(broker) == ["second", "third", "fresh again"]
    assert FIRST(broker.default_channel).queue_declare(passive=True).message_count == 1


def test_who_listens_hears_of_what_waits_when_its_time_has_come(broker: Connection) -> None:
    began = time()
    put(broker, "soon", headers=held_back(0.2))
    assert taken(broker, seconds=1) == ["soon"]
    assert time() - began > 0.2


def test_several_whose_time_has_come_keep_their_order(broker: Connection, server: Redis) -> None:
    for number in range(3):
        put(broker, number, headers=held_back(60 + number))
    a_minute_goes_by(server)
    assert taken(broker) == [0, 1, 2]
    assert not any(server.scan_iter("*waiting"))


def test_a_message_that_was_taken_and_never_read_is_noted_and_comes_back(broker: Connection, server: Redis) -> None:
    put(broker, "lost?")
    with broker.channel() as channel:
        consumer = Consumer(channel, [FIRST], callbacks=[])
        consumer.consume()
        broker.transport.cycle.on_poll_start()
        # As if the worker had died: nobody reads the answer, but the server has acted.
        while server.llen(f"{channel.global_keyprefix}first"):
            pass
        assert server.zcard(f"{channel.global_keyprefix}unacked_index") == 1
        channel.client.connection.disconnect()
        channel._in_poll = None
        channel.visibility_timeout = 0
        channel.qos.restore_visible()
        consumer.cancel()
    assert taken(broker) == ["lost?"]
    assert not server.exists(f"{channel.global_keyprefix}unacked")


def test_a_worker_that_is_killed_while_it_looks_for_lost_messages_stops_the_others_for_seconds_only(
    broker: Connection, server: Redis
) -> None:
    channel = broker.default_channel
    with Mutex(channel.client, channel.unacked_mutex_key, channel.unacked_mutex_expire):
        assert 0 < server.ttl(next(server.scan_iter("*unacked_mutex"))) <= 5


def test_a_queue_is_emptied_and_deleted_with_those_who_wait(broker: Connection, server: Redis) -> None:
    queue = FIRST(broker.default_channel)
    put(broker, "now")
    put(broker, "later", headers=held_back(60))
    assert queue.purge() == 2
    put(broker, "later", headers=held_back(60))
    queue.delete()
    assert not list(server.scan_iter("*first*"))


def test_nothing_is_asked_where_no_queue_is_listened_to(broker: Connection) -> None:
    with broker.channel() as channel:
        channel._brpop_start()
        assert not channel._in_poll


def test_an_error_of_the_server_is_one_and_leaves_no_answer_behind(broker: Connection, server: Redis) -> None:
    put(broker, "kept")
    with broker.channel() as channel:
        Consumer(channel, [FIRST], callbacks=[]).consume()
        wrong = f"{channel.global_keyprefix}first"
        server.rename(wrong, "aside")
        server.set(wrong, "no list")
        broker.transport.cycle.on_poll_start()
        with pytest.raises(ResponseError):
            channel._brpop_read()
        assert not channel._in_poll
        server.delete(wrong)
        broker.transport.cycle.on_poll_start()
        with pytest.raises(Empty):
            channel._brpop_read()


def test_a_message_that_is_none_is_an_error_and_holds_up_nobody(broker: Connection, server: Redis) -> None:
    with broker.channel() as channel:
        Consumer(channel, [FIRST], callbacks=[]).consume()
        server.lpush(f"{channel.global_keyprefix}first", "no message")
        broker.transport.cycle.on_poll_start()
        with pytest.raises(ValueError, match="Expecting value"):
            channel._brpop_read()
    put(broker, "fine")
    assert taken(broker) == ["fine"]


def test_a_server_that_is_gone_is_an_error_of_the_connection() -> None:
    with (
        redis_server() as server,
        Connection(f"redis://{HOST}:{server.port}", transport=Transport) as broker,
        broker.channel() as channel,
    ):
        Consumer(channel, [FIRST], callbacks=[]).consume()
        broker.transport.cycle.on_poll_start()
        with pytest.raises(Empty):
            channel._brpop_read()
        server.freeze()  # or there may be an answer before it is gone, that there is nothing
        broker.transport.cycle.on_poll_start()
        server.kill()
        with pytest.raises(broker.connection_errors):
            channel._brpop_read()
        assert not channel._in_poll

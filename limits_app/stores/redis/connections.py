"""Connections to one server, of redis-py: held for the next call while they work, each used by one thread at a time.

They are made with the class and the options of the connection pool of the site's client, so that TLS, ACL users,
Unix sockets and Sentinel work. Only the timeouts and the retries are the store's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any, Final

from redis import asyncio as asyncio_redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.retry import Retry

from limits_app.core.errors import RecordUnavailable, StoreUnavailable
from limits_app.core.runtime import on_fork
from limits_app.stores.connection_limit import ConnectionLimit
from limits_app.stores.redis.calls import Command
from limits_app.stores.redis.exactly_once import AGAIN, Slots, Unanswered

LOST: Final = (OSError, exceptions.ConnectionError, exceptions.TimeoutError)
"""What redis-py raises when a connection was lost, or the server is silent."""

_SECONDS_FOR_SILENT_SERVERS: Final = 0.03
_MOST_ATTEMPTS: Final = 8

_TASK_CLASSES: Final[Mapping[type[Any], type[Any]]] = {
    Connection: asyncio_redis.Connection,
    SSLConnection: asyncio_redis.SSLConnection,
    UnixDomainSocketConnection: asyncio_redis.UnixDomainSocketConnection,
}
"""The connection classes for tasks; connections of other classes, such as those of Sentinel, are used from threads."""


class Connections:
    """The connections to one server. Raises StoreUnavailable where it cannot be reached or cannot execute a call.

    `task_class` is the class of connections for tasks; None where tasks have to use threads.
    """

    def __init__(self, pool: Any, slots: Slots, *, connect_seconds: float, reply_seconds: float) -> None:
        self.pool = pool
        self.slots = slots
        self.connect_seconds = connect_seconds
        self.reply_seconds = reply_seconds
        self.task_class = _TASK_CLASSES.get(pool.connection_class)
        self._limit = ConnectionLimit()
        self._idle = deque[Any]()
        on_fork(self)

    def after_fork(self) -> None:
        """Leave the connections to the parent process."""
        self._idle.clear()

    def close(self) -> None:
        """Close idle connections."""
        with suppress(IndexError):  # another thread may take it
            while self._idle:
                self._idle.pop().disconnect()

    def run(self, call: Command) -> Any:
        """Return the reply to a call, which is executed once although replies may be lost."""
        checkout = self._limit.check_out(self.reply_seconds)
        try:
            return self._run(call)
        finally:
            self._limit.check_in(checkout)

    def _run(self, call: Command) -> Any:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        call.begin(self.slots)
        try:
            reply = _execute(connection, call)
        except LOST as error:
            return self.run_again(call, error)
        except exceptions.ResponseError as error:
            self._limit.answered()
            call.refuse(self.slots)
            raise self.refused(error) from error
        self._limit.answered()
        self._idle.append(connection)
        return reply

    def run_again(self, call: Command, error: Exception) -> Any:
        """Send a call again over a new connection: once, and shortly, to a silent server, else while there is time.

        Raises Unanswered.
        """
        call.attempt = AGAIN
        deadline = monotonic() + self.reply_seconds
        for _ in range(_MOST_ATTEMPTS):
            is_silent = isinstance(error, TimeoutError | exceptions.TimeoutError)
            seconds = _SECONDS_FOR_SILENT_SERVERS if is_silent else self.reply_seconds
            connection = self.pool.connection_class(**self.options(seconds))
            try:
                reply = _execute(connection, call)
            except LOST as lost:
                error = lost
            except exceptions.ResponseError as refusal:
                raise self.refused(refusal) from refusal
            else:
                if is_silent:  # the timeouts of the connection are short
                    connection.disconnect()
                else:
                    self._idle.append(connection)
                return reply
            if is_silent or monotonic() > deadline:
                break
        raise Unanswered(f"Redis does not answer: {error}") from error

    def refused(self, error: exceptions.ResponseError) -> StoreUnavailable:
        """Return the error for a call that the server did not execute."""
        message = str(error)
        if message.startswith("WRONGTYPE"):
            return RecordUnavailable(f"another program has written a key of this scope with another type: {message}")
        if isinstance(error, exceptions.NoPermissionError) or "can't run this command" in message:  # within a script
            message += " (NOPERM: docs/stores.md lists the commands that the ACL user of the store needs)"
        return StoreUnavailable(f"Redis refuses the call with {type(error).__name__}: {message}")

    def options(self, most_seconds: float = inf) -> dict[str, Any]:
        """Return the options of connections, with timeouts of at most so many seconds, without retries of redis-py."""
        connect, reply = min(self.connect_seconds, most_seconds), min(self.reply_seconds, most_seconds)
        own = {"socket_connect_timeout": connect, "socket_timeout": reply, "health_check_interval": 0}
        retries = {"retry": Retry(NoBackoff(), 0), "retry_on_timeout": False, "retry_on_error": []}
        return {**self.pool.connection_kwargs, **own, **retries}

    def listening_pool(self) -> ConnectionPool:
        """Return a pool of connections for listening, which belongs to the caller."""
        options = self.options() | {"decode_responses": False}
        return ConnectionPool(connection_class=self.pool.connection_class, **options)

    def _connect(self) -> Any:
        connection = self.pool.connection_class(**self.options())
        try:
            connection.connect()
        except (*LOST, exceptions.RedisError) as error:
            raise StoreUnavailable(f"Redis cannot be reached: {error}") from error
        self._limit.answered()
        return connection


def _execute(connection: Any, call: Command) -> Any:
    """Send a call, with the text of the script where the server does not know it, and return the reply.

    The connection is closed after an error: of a primary that became a replica, so that Sentinel finds the new one.
    """
    try:
        connection.send_command(*call.words(), check_health=False)
        try:
            return connection.read_response(disable_decoding=True)
        except exceptions.NoScriptError:
            connection.send_command(*call.words_with_text(), check_health=False)
        return connection.read_response(disable_decoding=True)
    except BaseException:
        connection.disconnect()
        raise

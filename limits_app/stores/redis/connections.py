"""Connections to one server, of redis-py: held for the next call while they work, each used by one thread at a time.

They are made with the class and the options of the connection pool of the site's client, so that TLS, ACL users,
Unix sockets and Sentinel work. Only the timeouts are the store's, and nothing is retried: a call that was sent may have
been executed, and is never sent again. A call that the server refused, or that was not sent, may be.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from redis import asyncio as asyncio_redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.retry import Retry

from limits_app.acquiring import on_fork
from limits_app.engine.errors import RecordUnavailable, StoreUnavailable
from limits_app.stores.connection_limit import MOST_CONNECTIONS, ConnectionLimit
from limits_app.stores.redis.commands import RedisCommand
from limits_app.stores.redis.errors import LOST, REFUSED, NotPrimary, Unanswered, refusal
from limits_app.stores.redis.sentinels import primary_finder

logger = logging.getLogger("limits_app")

_TASK_CLASSES: Final[Mapping[type[Any], type[Any]]] = {
    Connection: asyncio_redis.Connection,
    SSLConnection: asyncio_redis.SSLConnection,
    UnixDomainSocketConnection: asyncio_redis.UnixDomainSocketConnection,
}
"""The connection classes for tasks; connections of other classes, such as those of Sentinel, are used from threads."""


class Connections:
    """The connections to one server. Raises StoreUnavailable where it cannot be reached or cannot execute a call.

    `set_aside` returns the call that renames the keys of a call that another program has written with another type.
    `task_class` is the class of connections for tasks; None where tasks have to use threads.
    """

    def __init__(
        self,
        pool: Any,
        set_aside: Callable[[RedisCommand], RedisCommand],
        *,
        connect_seconds: float,
        reply_seconds: float,
    ) -> None:
        self.pool = pool
        self._set_aside = set_aside
        self.connect_seconds = connect_seconds
        self.reply_seconds = reply_seconds
        self.task_class = _TASK_CLASSES.get(pool.connection_class)
        self._finder_option = primary_finder(pool, self._own_options())
        self._check_options()
        self._limit = ConnectionLimit()
        self._idle = deque[Any]()
        self.generation = 0
        """Grows when idle connections are dropped; connections that are older are not kept."""
        self.drop_idle_of_tasks: Callable[[], object] = lambda: None
        on_fork(self)

    def _check_options(self) -> None:
        """Make a connection, which is not opened, so that options that it does not have are an outage of the store."""
        try:
            self.pool.connection_class(**self.options())
        except (TypeError, ValueError, exceptions.RedisError) as error:
            raise StoreUnavailable(f"the options of the connections to Redis are invalid: {error}") from error

    def after_fork(self) -> None:
        """Leave the connections to the parent process."""
        self._idle.clear()

    def close(self) -> None:
        """Close idle connections."""
        with suppress(IndexError):  # another thread may take it
            while self._idle:
                self._idle.pop().disconnect()

    def run(self, call: RedisCommand) -> Any:
        """Return the reply to a call, which is executed once, or not at all.

        Raises Unanswered when it may have been executed, and another StoreUnavailable when it was not.
        """
        checkout = self._limit.check_out(self.reply_seconds)
        try:
            try:
                return self._run(call)
            except NotPrimary:
                return self._run(call)
        finally:
            self._limit.check_in(checkout)

    def _run(self, call: RedisCommand) -> Any:
        generation = self.generation  # first: of an idle connection it is at least this one
        connection = self._take_idle() or self._connect()
        try:
            reply = _execute(connection, call)
        except REFUSED as error:
            self._limit.answered()
            refused = self.refused(error, generation)
            if isinstance(refused, RecordUnavailable):
                self.set_aside(call, refused)
            raise refused from error
        except LOST as error:
            self._limit.silent()
            raise Unanswered(f"Redis does not answer: {error}") from error
        self._limit.answered()
        if generation == self.generation and len(self._idle) < MOST_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.disconnect()
        return reply

    def _take_idle(self) -> Any:
        """Return an idle connection that the server has not closed meanwhile; None without one."""
        # Without `suppress`, which takes as long as the rest.
        try:
            while True:
                connection = self._idle.pop()
                try:
                    if not connection.can_read():
                        return connection
                except LOST:
                    pass
                connection.disconnect()
        except IndexError:
            return None

    def _connect(self) -> Any:
        connection = self.pool.connection_class(**self.options())
        try:
            connection.connect()
        except (*LOST, exceptions.RedisError) as error:
            self._limit.silent()
            raise StoreUnavailable(f"Redis cannot be reached: {error}") from error
        self._limit.answered()
        return connection

    def refused(self, error: Exception, generation: int) -> StoreUnavailable:
        """Return the error for a call that the server did not execute; drop idle connections to a former primary."""
        refused = refusal(error)
        if isinstance(refused, NotPrimary):
            self._drop_idle(generation)
        return refused

    def _drop_idle(self, generation: int) -> None:
        """Close the idle connections of a generation, those of tasks too; once, whichever caller notices it first."""
        if generation == self.generation:
            self.generation += 1
            self.close()
            self.drop_idle_of_tasks()

    def set_aside(self, call: RedisCommand, error: RecordUnavailable) -> None:
        """Rename keys that another program has written with another type, so that the next request finds none."""
        with suppress(StoreUnavailable):  # such as of a user that may not rename keys
            for name in self._run(self._set_aside(call)):
                logger.warning("%s: it is now %s for a day, and counting starts again", error, name)

    def options(self) -> dict[str, Any]:
        """Return the options of connections, without retries of redis-py."""
        return {**self.pool.connection_kwargs, **self._own_options(), **self._finder_option}

    def _own_options(self) -> dict[str, Any]:
        """Return the timeouts as they are now, and no retries."""
        seconds = {"socket_connect_timeout": self.connect_seconds, "socket_timeout": self.reply_seconds}
        retries = {"retry": Retry(NoBackoff(), 0), "retry_on_timeout": False, "retry_on_error": []}
        return {**seconds, **retries, "health_check_interval": 0}

    def listening_pool(self) -> ConnectionPool:
        """Return a pool of connections for listening, which belongs to the caller."""
        options = self.options() | {"decode_responses": False}
        return ConnectionPool(connection_class=self.pool.connection_class, **options)


def _execute(connection: Any, call: RedisCommand) -> Any:
    """Send a call, with the text of the script where the server does not know it, and return the reply.

    The connection is closed after an error: of a primary that became a replica, so that Sentinel finds the new one.
    """
    try:
        connection.send_packed_command([call.packed()], check_health=False)
        try:
            return connection.read_response(disable_decoding=True)
        except exceptions.NoScriptError:
            connection.send_command(*call.words_with_text(), check_health=False)
        return connection.read_response(disable_decoding=True)
    except BaseException:
        connection.disconnect()
        raise

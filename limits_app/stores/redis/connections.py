"""Connections to one server, of redis-py: held for the next call while they work, each used by one thread at a time.

They are made with the class and the options of the connection pool of the site's client, so that TLS, ACL users,
Unix sockets and Sentinel work. Only the timeouts and the retries are the store's.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any, Final

from redis import asyncio as asyncio_redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.retry import Retry

from limits_app.acquiring.runtime import on_fork
from limits_app.engine.errors import RecordUnavailable, StoreFull, StoreUnavailable
from limits_app.stores.connection_limit import MOST_CONNECTIONS, ConnectionLimit
from limits_app.stores.redis.calls import Command
from limits_app.stores.redis.errors import NOT_PRIMARY, ErrorKind, error_kind
from limits_app.stores.redis.exactly_once import AGAIN, Slots, Unanswered

logger = logging.getLogger("limits_app")

LOST: Final = (OSError, exceptions.ConnectionError, exceptions.TimeoutError)
"""What redis-py raises when a connection was lost, or the server is silent."""
REFUSED: Final = (exceptions.ResponseError, exceptions.BusyLoadingError)
"""What redis-py raises when the server has not executed a call; the second is a ConnectionError."""

_SECONDS_FOR_SILENT_SERVERS: Final = 0.03
_MOST_ATTEMPTS: Final = 8

_TASK_CLASSES: Final[Mapping[type[Any], type[Any]]] = {
    Connection: asyncio_redis.Connection,
    SSLConnection: asyncio_redis.SSLConnection,
    UnixDomainSocketConnection: asyncio_redis.UnixDomainSocketConnection,
}
"""The connection classes for tasks; connections of other classes, such as those of Sentinel, are used from threads."""


class NotPrimary(StoreUnavailable):
    """The server decides nothing now; the call was not executed, and may be sent over a new connection."""


class Connections:
    """The connections to one server. Raises StoreUnavailable where it cannot be reached or cannot execute a call.

    `set_aside` returns the call that renames the keys of a call that another program has written with another type.
    `task_class` is the class of connections for tasks; None where tasks have to use threads.
    """

    def __init__(
        self,
        pool: Any,
        slots: Slots,
        set_aside: Callable[[Command], Command],
        *,
        connect_seconds: float,
        reply_seconds: float,
    ) -> None:
        self.pool = pool
        self.slots = slots
        self._set_aside = set_aside
        self.connect_seconds = connect_seconds
        self.reply_seconds = reply_seconds
        self.task_class = _TASK_CLASSES.get(pool.connection_class)
        self._limit = ConnectionLimit()
        self._idle = deque[Any]()
        self.generation = 0
        """Grows when idle connections are dropped; connections that are older are not kept."""
        self.drop_idle_of_tasks: Callable[[], object] = lambda: None
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
            try:
                return self._run(call)
            except NotPrimary:
                return self._run(call)
        finally:
            self._limit.check_in(checkout)

    def _run(self, call: Command) -> Any:
        generation = self.generation  # first: of an idle connection it is at least this one
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        call.begin(self.slots)
        try:
            reply = _execute(connection, call)
        except REFUSED as error:
            self._limit.answered()
            call.refuse(self.slots)
            raise self._refused(call, error, generation) from error
        except LOST as error:
            self.lost(error, generation)
            return self.run_again(call, error)
        self._limit.answered()
        self._keep(connection, generation)
        return reply

    def _keep(self, connection: Any, generation: int) -> None:
        if generation == self.generation and len(self._idle) < MOST_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.disconnect()

    def lost(self, error: Exception, generation: int) -> None:
        """Drop idle connections after one of them was closed, since the others have probably been closed too."""
        if not _is_silence(error):
            self._drop_idle(generation)

    def _drop_idle(self, generation: int) -> None:
        """Close the idle connections of a generation, those of tasks too; once, whichever caller notices it first."""
        if generation == self.generation:
            self.generation += 1
            self.close()
            self.drop_idle_of_tasks()

    def run_again(self, call: Command, error: Exception) -> Any:
        """Send a call again over a new connection: once, and shortly, to a silent server, else while there is time.

        Raises Unanswered.
        """
        call.attempt = AGAIN
        deadline = monotonic() + self.reply_seconds
        for _ in range(_MOST_ATTEMPTS):
            is_silent, generation = _is_silence(error), self.generation
            seconds = _SECONDS_FOR_SILENT_SERVERS if is_silent else self.reply_seconds
            connection = self.pool.connection_class(**self.options(seconds))
            try:
                connection.connect()  # sending would not ask Sentinel where to connect
                reply = _execute(connection, call)
            except REFUSED as refusal:
                self._limit.answered()
                raise self._refused(call, refusal, generation) from refusal
            except LOST as lost:
                error = lost
            else:
                self._limit.answered()
                if is_silent:  # the timeouts of the connection are short
                    connection.disconnect()
                else:
                    self._keep(connection, generation)
                return reply
            if is_silent or monotonic() > deadline:
                break
        self._limit.silent()
        raise Unanswered(f"Redis does not answer: {error}") from error

    def refused(self, error: Exception, generation: int) -> StoreUnavailable:
        """Return the error for a call that the server did not execute; drop idle connections to a former primary."""
        kind = error_kind(error)
        if kind is ErrorKind.WRONG_TYPE:
            return RecordUnavailable(f"another program has written a key of this scope with another type: {error}")
        if kind is ErrorKind.OUT_OF_MEMORY:
            return StoreFull(
                f"Redis has no memory for more state ({error}): raise its maxmemory, or free memory on the server"
            )
        message = f"Redis refuses the call with {kind.value}: {error}"
        if kind is ErrorKind.NO_PERMISSION:
            message += " (docs/stores.md lists what the ACL user of the store needs)"
        if kind not in NOT_PRIMARY:
            return StoreUnavailable(message)
        self._drop_idle(generation)
        return NotPrimary(message)

    def _refused(self, call: Command, error: Exception, generation: int) -> StoreUnavailable:
        refusal = self.refused(error, generation)
        if isinstance(refusal, RecordUnavailable):
            self.set_aside(call, refusal)
        return refusal

    def set_aside(self, call: Command, error: RecordUnavailable) -> None:
        """Rename keys that another program has written with another type, so that the next request finds none."""
        with suppress(StoreUnavailable):  # such as of a user that may not rename keys
            for name in self._run(self._set_aside(call)):
                logger.warning("%s: it is now %s for a day, and counting starts again", error, name)

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
            self._limit.silent()
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


def _is_silence(error: Exception) -> bool:
    """Return whether the server has not replied in time, rather than closed the connection."""
    return isinstance(error, TimeoutError | exceptions.TimeoutError)

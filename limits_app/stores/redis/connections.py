"""Connections to one server, of redis-py: held for the next call while they work, each used by one thread at a time.

They are made with the class and the options of the connection pool of the site's client, so that TLS, ACL users,
Unix sockets and Sentinel work. Only the timeouts and the retries are the store's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from time import monotonic
from typing import Any, Final
from weakref import WeakKeyDictionary

from redis import asyncio as asyncio_redis
from redis import exceptions
from redis.asyncio.retry import Retry as TaskRetry
from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.retry import Retry

from limits_app.core.errors import RecordUnavailable, StoreUnavailable
from limits_app.core.runtime import on_fork
from limits_app.stores.redis.calls import Command
from limits_app.stores.redis.exactly_once import AGAIN, FIRST, Slots, Unanswered

LOST: Final = (OSError, exceptions.ConnectionError, exceptions.TimeoutError)
"""What redis-py raises when a connection was lost, or the server is silent."""

_MOST_IDLE: Final = 64
_SECONDS_FOR_SILENT_SERVERS: Final = 0.03
_MOST_ATTEMPTS: Final = 8

_CODES: Final[Mapping[type[Exception], str]] = {
    exceptions.NoPermissionError: "NOPERM",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.AuthenticationError: "NOAUTH",
    exceptions.NoScriptError: "NOSCRIPT",
}
"""The codes of errors whose messages redis-py shortens."""


def options_with(pool: Any, *, connect_seconds: float, reply_seconds: float) -> dict[str, Any]:
    """Return the options of connections of a pool, with other timeouts and without retries of redis-py."""
    own = {
        "socket_connect_timeout": connect_seconds,
        "socket_timeout": reply_seconds,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "retry_on_error": [],
        "health_check_interval": 0,
    }
    return pool.connection_kwargs | own  # type: ignore[no-any-return]  # a dictionary


def unavailable(error: Exception) -> StoreUnavailable:
    """Return the error for what a server replies when it cannot execute a call."""
    message = str(error)
    if message.startswith("WRONGTYPE"):
        return RecordUnavailable(
            f"a key of this scope holds another type of value, which another program wrote: {error}"
        )
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), "")
    if "can't run this command" in message:  # a command within a script
        code = "NOPERM"
    if code and not message.startswith(code):
        message = f"{code} {message}"
    if code == "NOPERM":
        message += " (docs/stores.md lists the commands that the ACL user of the store needs)"
    return StoreUnavailable(f"Redis refuses: {message}")


class Connections:
    """The connections to one server. Raises StoreUnavailable where it cannot be reached or cannot execute a call."""

    def __init__(self, pool: Any, slots: Slots, *, connect_seconds: float, reply_seconds: float) -> None:
        self.pool = pool
        self.slots = slots
        self.connect_seconds = connect_seconds
        self.reply_seconds = reply_seconds
        self._idle = deque[Any]()
        on_fork(self)

    def after_fork(self) -> None:
        """Leave the connections to the parent process."""
        self._idle.clear()

    def close(self) -> None:
        """Close idle connections."""
        while self._idle:
            self._idle.pop().disconnect()

    def run(self, call: Command) -> Any:
        """Return the reply to a call, which is executed once although replies may be lost."""
        connection = self._idle.pop() if self._idle else self._connect(self.connect_seconds, self.reply_seconds)
        try:
            call.begin(self.slots)
            reply = _exchange(connection, call, FIRST)
        except exceptions.ResponseError as error:
            connection.disconnect()  # a primary that became a replica is left, so that Sentinel finds the new one
            return self.after_refusal(call, error, FIRST)
        except LOST as error:
            connection.disconnect()
            return self.run_again(call, error)
        except BaseException:
            connection.disconnect()
            raise
        self._keep(connection)
        return reply

    def run_again(self, call: Command, error: Exception) -> Any:
        """Send a call again over new connections: once, and shortly, to a silent server, else while there is time.

        Raises Unanswered.
        """
        deadline = monotonic() + self.reply_seconds
        for _ in range(_MOST_ATTEMPTS):
            is_silent = isinstance(error, TimeoutError | exceptions.TimeoutError)
            limit = _SECONDS_FOR_SILENT_SERVERS if is_silent else deadline - monotonic()
            if limit <= 0:
                break
            try:
                return self._run_briefly(call, min(limit, self.reply_seconds))
            except LOST as lost:
                error = lost
                if is_silent:
                    break
        raise Unanswered(f"Redis does not answer: {error}") from error

    def _run_briefly(self, call: Command, seconds: float) -> Any:
        connection = self._new(min(seconds, self.connect_seconds), seconds)
        try:
            connection.connect()
            return _exchange(connection, call, AGAIN)
        except exceptions.ResponseError as error:
            return self.after_refusal(call, error, AGAIN)
        finally:
            connection.disconnect()

    def after_refusal(self, call: Command, error: Exception, attempt: int) -> Any:
        """Load a script that the server has forgotten, and send the call again; other errors are raised."""
        if not isinstance(error, exceptions.NoScriptError) or call.script is None:
            call.was_refused(self.slots)
            raise unavailable(error) from error
        connection = self._connect(self.connect_seconds, self.reply_seconds)
        try:
            connection.send_packed_command(connection.pack_command("SCRIPT LOAD", call.script.text), check_health=False)
            connection.read_response(disable_decoding=True)
            reply = _exchange(connection, call, attempt)
        except exceptions.ResponseError as refusal:
            connection.disconnect()
            call.was_refused(self.slots)
            raise unavailable(refusal) from refusal
        except LOST as lost:
            connection.disconnect()
            raise Unanswered(f"Redis does not answer: {lost}") from lost
        except BaseException:
            connection.disconnect()
            raise
        self._keep(connection)
        return reply

    def listening_pool(self) -> ConnectionPool:
        """Return a pool of connections for listening, which belongs to the caller."""
        seconds = {"connect_seconds": self.connect_seconds, "reply_seconds": self.reply_seconds}
        options = options_with(self.pool, **seconds) | {"decode_responses": False}
        return ConnectionPool(connection_class=self.pool.connection_class, **options)

    @property
    def task_class(self) -> type[Any] | None:
        """The class of connections for tasks; None where tasks have to use threads."""
        return _TASK_CLASSES.get(self.pool.connection_class)

    def task_options(self) -> dict[str, Any]:
        """Return the options of connections for tasks."""
        seconds = {"connect_seconds": self.connect_seconds, "reply_seconds": self.reply_seconds}
        options = options_with(self.pool, **seconds)
        shared = {
            name: value
            for name, value in options.items()
            if name not in _THREAD_OPTIONS and not name.startswith(_POOL_OPTIONS)
        }
        # The timeouts are those of asyncio: with its own, redis-py may swallow a cancellation on Python 3.11.
        return shared | {"retry": TaskRetry(NoBackoff(), 0), "socket_timeout": None}

    def _keep(self, connection: Any) -> None:
        if len(self._idle) < _MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.disconnect()

    def _connect(self, connect_seconds: float, reply_seconds: float) -> Any:
        connection = self._new(connect_seconds, reply_seconds)
        try:
            connection.connect()
        except exceptions.ResponseError as error:
            raise unavailable(error) from error
        except (*LOST, exceptions.RedisError) as error:
            raise StoreUnavailable(f"Redis cannot be reached: {error}") from error
        return connection

    def _new(self, connect_seconds: float, reply_seconds: float) -> Any:
        options = options_with(self.pool, connect_seconds=connect_seconds, reply_seconds=reply_seconds)
        return self.pool.connection_class(**options)


def _exchange(connection: Any, call: Command, attempt: int) -> Any:
    connection.send_packed_command(call.packed(connection.pack_command, attempt), check_health=False)
    return connection.read_response(disable_decoding=True)


_TASK_CLASSES: Final[Mapping[type[Any], type[Any]]] = {
    Connection: asyncio_redis.Connection,
    SSLConnection: asyncio_redis.SSLConnection,
    UnixDomainSocketConnection: asyncio_redis.UnixDomainSocketConnection,
}
"""The connection classes for tasks; connections of other classes, such as those of Sentinel, are used from threads."""

_THREAD_OPTIONS: Final = frozenset({"parser_class", "command_packer", "redis_connect_func", "event_dispatcher"})
_POOL_OPTIONS: Final = "maint_notifications"


class TaskConnections:
    """The connections for the tasks of each event loop; what is rare is done in threads, over the other connections."""

    def __init__(self, connections: Any) -> None:
        self._connections = connections
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopConnections] = WeakKeyDictionary()
        on_fork(self)

    def after_fork(self) -> None:
        """Leave the connections to the parent process."""
        self._by_loop = WeakKeyDictionary()

    def close(self) -> None:
        """Forget idle connections, which are closed when their event loop is."""
        self._by_loop = WeakKeyDictionary()

    async def run(self, call: Command) -> Any:
        """As `Connections.run`. When the task is cancelled, the call may have been executed."""
        connection_class = self._connections.task_class
        if connection_class is None:
            return await asyncio.to_thread(self._connections.run, call)
        loop = asyncio.get_running_loop()
        held = self._by_loop.get(loop)
        if held is None:
            held = self._by_loop[loop] = _LoopConnections()
            await held.open()
        connection = held.idle.pop() if held.idle else await self._connect(connection_class)
        try:
            call.begin(self._connections.slots)
            async with asyncio.timeout(self._connections.reply_seconds):
                await connection.send_packed_command(call.packed(connection.pack_command, FIRST), check_health=False)
                reply = await connection.read_response(disable_decoding=True)
        except exceptions.ResponseError as error:
            await connection.disconnect(nowait=True)
            return await asyncio.to_thread(self._connections.after_refusal, call, error, FIRST)
        except LOST as error:
            await connection.disconnect(nowait=True)
            return await asyncio.to_thread(self._connections.run_again, call, error)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        if len(held.idle) < _MOST_IDLE and not held.is_closed:
            held.idle.append(connection)
        else:
            await connection.disconnect(nowait=True)
        return reply

    async def _connect(self, connection_class: type[Any]) -> Any:
        connection = connection_class(**self._connections.task_options())
        try:
            async with asyncio.timeout(self._connections.connect_seconds):
                await connection.connect()
        except exceptions.ResponseError as error:
            raise unavailable(error) from error
        except (*LOST, exceptions.RedisError) as error:
            raise StoreUnavailable(f"Redis cannot be reached: {error}") from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection


class _LoopConnections:
    """The idle connections of one event loop, which are closed when the loop shuts down its asynchronous generators."""

    def __init__(self) -> None:
        self.idle = deque[Any]()
        self.is_closed = False
        self._open = self._held()

    async def open(self) -> None:
        await anext(self._open)

    async def _held(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self.is_closed = True
            while self.idle:
                await self.idle.pop().disconnect(nowait=True)

"""Connections for tasks: those of redis.asyncio, for each event loop its own.

A call has its own task, which goes on when the caller is cancelled after the call was sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final
from weakref import WeakKeyDictionary

from redis import exceptions
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from limits_app.acquiring import on_fork
from limits_app.engine.errors import RecordUnavailable, StoreUnavailable
from limits_app.stores.connection_limit import MOST_CONNECTIONS, unanswered
from limits_app.stores.redis.commands import RedisCommand
from limits_app.stores.redis.errors import LOST, REFUSED, NotPrimary, Unanswered

_ONLY_FOR_THREADS: Final = ("parser_class", "command_packer", "redis_connect_func", "event_dispatcher", "maint_notif")
"""How the names of options begin that connections for tasks do not have."""
_PARTS: Final = 20

_can_read: Final = getattr(AbstractConnection, "can_read", None) or AbstractConnection.can_read_destructive
"""Whether a connection has an unread reply, or was closed by the server; redis-py before version 8 has the latter."""


class LoopConnections:
    """The connections of one event loop: `idle` ones, and how many tasks may use one at the same time."""

    def __init__(self) -> None:
        self.idle = deque[Any]()
        self.limit = asyncio.Semaphore(MOST_CONNECTIONS)
        self.answers = 0
        """How often the server has answered."""
        self.closing = self._close_at_shutdown()

    def drop_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the idle connections, from any thread."""
        with suppress(IndexError):
            while connection := self.idle.pop():
                if not loop.is_closed():
                    asyncio.run_coroutine_threadsafe(connection.disconnect(nowait=True), loop)

    async def _close_at_shutdown(self) -> AsyncGenerator[None, None]:
        """Close idle connections when the event loop shuts down its asynchronous generators."""
        try:
            yield
        finally:
            while self.idle:
                with suppress(*LOST):
                    await self.idle.pop().disconnect()
            # Both refer to the event loop, which would live as long as the store.
            self.limit = asyncio.Semaphore(MOST_CONNECTIONS)
            del self.closing


class SilenceTimeout:
    """Raises TimeoutError in its block after a server was silent for so many seconds.

    The time counts in parts, each once however late the event loop comes to it, so that a reply that waits in a busy
    event loop is not a silent server. With `connections`, an answer to any task starts the time again.
    """

    def __init__(self, seconds: float, connections: LoopConnections | None = None) -> None:
        self._part = seconds / _PARTS
        self._connections = connections

    async def __aenter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        await self._timeout.__aenter__()
        self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._next.cancel()
        await self._timeout.__aexit__(kind, error, traceback)

    def _begin(self) -> None:
        self._left = _PARTS
        self._answers = self._answered()
        self._next = self._loop.call_later(self._part, self._count)

    def _count(self) -> None:
        self._left -= 1
        if self._answered() != self._answers:
            self._begin()
        elif self._left:
            self._next = self._loop.call_later(self._part, self._count)
        else:
            self._timeout.reschedule(self._loop.time())

    def _answered(self) -> int:
        return 0 if self._connections is None else self._connections.answers


class TaskConnections:
    """The connections for the tasks of each event loop."""

    def __init__(self, connections: Any) -> None:
        self._connections = connections
        connections.drop_idle_of_tasks = self._drop_idle
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Forget the connections, which are closed with their event loop."""
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopConnections] = WeakKeyDictionary()

    async def run(self, call: RedisCommand, abandoned: Callable[[Any], object] = lambda _: None) -> Any:
        """As `Connections.run`. When the caller is cancelled, `abandoned` is called once the call has ended.

        It receives the reply, or the StoreUnavailable, of a call that was sent; None if it was not, and never will be.
        """
        exchange = asyncio.create_task(self._exchange(call))
        try:
            outcome = await asyncio.shield(exchange)
        except asyncio.CancelledError:
            exchange.add_done_callback(lambda ended: abandoned(None if ended.cancelled() else ended.result()))
            if not call.is_sent:
                exchange.cancel()
            raise
        if isinstance(outcome, StoreUnavailable):
            raise outcome
        return outcome

    async def _exchange(self, call: RedisCommand) -> Any:
        """Return the reply, or the error: nothing may be left to receive an exception."""
        try:
            own = await self._of_loop()
            if own.limit.locked():
                await self._wait(own)
            else:
                await own.limit.acquire()
            try:
                with suppress(NotPrimary):
                    return await self._run(own, call)
                return await self._run(own, call)
            finally:
                own.limit.release()
        except StoreUnavailable as error:
            return error

    async def _wait(self, own: LoopConnections) -> None:
        """Wait until the task may use a connection; see `ConnectionLimit.check_out`."""
        seconds = self._connections.reply_seconds
        try:
            async with SilenceTimeout(seconds, own):
                await own.limit.acquire()
        except TimeoutError as error:
            raise unanswered(seconds) from error

    async def _run(self, own: LoopConnections, call: RedisCommand) -> Any:
        connections, generation = self._connections, self._connections.generation
        connection = await self._take_idle(own) or await self._connect()
        call.is_sent = True
        try:
            reply = await self._execute(connection, call)
        except REFUSED as error:
            own.answers += 1
            call.is_sent = False
            refused = connections.refused(error, generation)
            if isinstance(refused, RecordUnavailable):
                await asyncio.to_thread(connections.set_aside, call, refused)
            raise refused from error
        except LOST as error:
            raise Unanswered(f"Redis does not answer: {error}") from error
        own.answers += 1
        if generation == connections.generation:
            own.idle.append(connection)
        else:
            await connection.disconnect(nowait=True)
        return reply

    async def _execute(self, connection: Any, call: RedisCommand) -> Any:
        """As `_execute` of connections for threads."""
        try:
            await connection.send_packed_command([call.packed()], check_health=False)
            try:
                return await self._reply(connection)
            except exceptions.NoScriptError:
                await connection.send_command(*call.words_with_text(), check_health=False)
            return await self._reply(connection)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise

    async def _reply(self, connection: Any) -> Any:
        """Read a reply, also while the event loop ends, which cancels all tasks."""
        while True:
            with suppress(asyncio.CancelledError):
                async with SilenceTimeout(self._connections.reply_seconds):
                    return await connection.read_response(disable_decoding=True, disconnect_on_error=False)

    async def _take_idle(self, own: LoopConnections) -> Any:
        """Return an idle connection that the server has not closed meanwhile; None without one."""
        if own.idle:
            await asyncio.sleep(0)  # the event loop reads the end of connections that were closed until now
        while own.idle:
            connection = own.idle.pop()
            with suppress(*LOST):
                if not await _can_read(connection):
                    return connection
            await connection.disconnect(nowait=True)
        return None

    def _drop_idle(self) -> None:
        """Close the idle connections of all event loops, of which others may run in other threads."""
        for reference in self._by_loop.keyrefs():
            loop = reference()
            own = None if loop is None else self._by_loop.get(loop)
            if loop is not None and own is not None:
                own.drop_idle(loop)

    async def _of_loop(self) -> LoopConnections:
        """Return the connections of this event loop."""
        loop = asyncio.get_running_loop()
        own = self._by_loop.get(loop)
        if own is None:
            own = self._by_loop[loop] = LoopConnections()
            await anext(own.closing)
        return own

    async def _connect(self) -> Any:
        options = self._connections.options()
        shared = {name: value for name, value in options.items() if not name.startswith(_ONLY_FOR_THREADS)}
        # Timeouts are counted here: with its own, redis-py may swallow a cancellation on Python 3.11.
        own = {"retry": Retry(NoBackoff(), 0), "socket_timeout": None, "socket_connect_timeout": None}
        connection = self._connections.task_class(**shared | own)
        try:
            async with SilenceTimeout(self._connections.connect_seconds):
                await connection.connect()
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if isinstance(error, (*LOST, exceptions.RedisError)):
                raise StoreUnavailable(f"Redis cannot be reached: {error}") from error
            raise
        return connection

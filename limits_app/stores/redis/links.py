"""Links: connections that are held, each used by one thread or task at a time.

They are made as the connection pool of the site's client makes its own, so that TLS, passwords, Unix sockets and
Sentinel work; what is sent and read afterwards goes past the client, which would take as long as the server.
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable
from struct import Struct
from time import monotonic
from typing import Any, Final

import hiredis
from redis.backoff import NoBackoff
from redis.connection import SSLConnection
from redis.exceptions import RedisError
from redis.retry import Retry

from limits_app.core.errors import StoreUnavailable
from limits_app.core.forking import on_fork
from limits_app.stores.redis.commands import NUMBERED, Call, Plain, Slot

__all__ = ["CHUNK", "LOST", "Idle", "Link", "Links", "ServerError", "Unanswered", "unheard_in"]

CHUNK: Final = 16_384
LOST: Final = (OSError, RedisError)
"""What a lost connection raises."""

_TIMEVAL: Final = Struct("@ll")
_MOST_IDLE: Final = 64
"""How many links are kept for the next rush."""

_SECONDS_FOR_THE_SILENT: Final = 0.03
_MOST_TRIES: Final = 8


class ServerError(Exception):
    """What a server replies when it cannot do what it was asked."""

    @property
    def code(self) -> str:
        """The first word."""
        return str(self).partition(" ")[0]


class Unanswered(StoreUnavailable):
    """The server may have done it, or not; whoever asks again with the same slot will know."""

    def __init__(self, message: str, slot: Slot) -> None:
        super().__init__(message)
        self.slot = slot


class _Left(threading.local):
    """What this thread has sent last without hearing the reply, since it was interrupted."""

    call: Call | None = None
    slot: Slot | None = None


_left: Final = _Left()


def unheard_in(call: Call, error: BaseException) -> Slot | None:
    """Whose record may have the reply to a call of this thread that ended in an error.

    None where it cannot have been executed.
    """
    if isinstance(error, Unanswered):
        return error.slot
    slot = _left.slot if _left.call is call else None
    _left.call = _left.slot = None
    return slot


class Link:
    """A connection and the slot of whoever uses it. Raises one of LOST when it is lost."""

    __slots__ = ("_connection", "_reader", "slot", "socket")

    def __init__(self, connection: Any, slot: Slot, reply_seconds: float) -> None:
        self._connection = connection
        self.slot = slot
        self._reader = hiredis.Reader(replyError=ServerError)
        connection.connect()
        self.socket: socket.socket = connection._sock
        self.limit(reply_seconds)

    def exchange(self, call: Call, again: bool = False) -> Any:
        """Send a call, and wait for the reply; what the server complains about is returned, not raised."""
        slot, pieces = self.slot, call.pieces
        if pieces is None or again:
            data = call.packed(slot, again)
        else:  # as that does, which is a call more
            head, tail, end, tag = pieces
            slot.number = number = slot.number + 1
            data = b"".join((head, slot.key if tag is None else slot.at(tag), tail, NUMBERED(number, 0), end))
        self.socket.sendall(data)
        self._reader.feed(self.socket.recv(CHUNK))  # as `read` does, which is two calls more
        reply = self._reader.gets()
        return self.receive() if reply is False else reply

    def receive(self) -> Any:
        """Wait for the reply to what was sent, or for the rest of it."""
        reply = self.read(self.socket.recv(CHUNK))
        while reply is False:
            reply = self.read(self.socket.recv(CHUNK))
        return reply

    def read(self, chunk: bytes) -> Any:
        """The reply of which a further piece has come; False while it is not complete."""
        if not chunk:
            raise ConnectionResetError("the server has closed the connection")
        self._reader.feed(chunk)
        return self._reader.gets()

    def parsed(self) -> Any:
        """The next of several replies that came in one piece; False when there is none."""
        return self._reader.gets()

    def limit(self, seconds: float) -> None:
        """Have the kernel limit how long a plain socket blocks, which saves a system call for each that could."""
        if type(self.socket) is not socket.socket:
            self.socket.settimeout(seconds)
            return
        limit = _TIMEVAL.pack(*divmod(max(int(seconds * 1_000_000), 1), 1_000_000))  # 0 would be for ever
        self.socket.settimeout(None)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def close(self) -> None:
        """Close the connection; in a child, only its own end of it."""
        self._connection.disconnect()


class Idle:
    """Links that nobody uses; those that are left when nobody can use them any more are closed."""

    __slots__ = ("__weakref__", "links", "pop")

    def __init__(self) -> None:
        self.links = deque[Link]()
        self.pop: Callable[[], Link] = self.links.pop
        """One of them; IndexError where there is none."""
        weakref.finalize(self, _close_all, self.links)

    def take(self) -> Link | None:
        """One of them, or None."""
        try:
            return self.pop()
        except IndexError:
            return None

    def keep(self, link: Link) -> None:
        """Keep a link for the next call, if there are not too many."""
        if len(self.links) < _MOST_IDLE:
            self.links.append(link)
        else:
            link.close()

    def close(self) -> None:
        """Close them."""
        _close_all(self.links)


def _close_all(links: deque[Link]) -> None:
    while links:
        links.pop().close()


class Links:
    """The links to one server, made when they are needed and kept while they work."""

    def __init__(
        self,
        pool: Any,
        reply_key: Callable[[bytes, bytes | None], bytes],
        *,
        connect_seconds: float,
        reply_seconds: float,
    ) -> None:
        self._pool = pool
        self._reply_key = reply_key
        self._connect_seconds = connect_seconds
        self.reply_seconds = reply_seconds
        self._idle = Idle()
        self._taken = self._idle.pop
        on_fork(self)

    def after_fork(self) -> None:
        """A child makes links of its own."""
        self.close()

    def close(self) -> None:
        """Close what is idle."""
        self._idle.close()

    def run(self, call: Call, slot: Slot | None = None) -> Any:
        """The reply to a call, which is executed once, even when the reply was lost on the way.

        `slot` is that of an earlier try which was never answered.
        Raises StoreUnavailable when the server cannot be reached or cannot do it.
        """
        try:
            link = self._taken() if slot is None else None  # as `Idle.take` does, which is a call more
        except IndexError:
            link = None
        link = link or self.open(slot)
        number = link.slot.number
        try:
            reply = link.exchange(call, slot is not None)
        except LOST as error:
            return self.again(link, call, error)
        except BaseException:
            # Whoever is interrupted here leaves a reply behind that nobody must take for another.
            link.close()
            if link.slot.number != number or slot is not None:  # else nothing was sent
                _left.call, _left.slot = call, link.slot
            raise
        # As `_answered` and `Idle.keep` do, which are two calls more.
        if reply.__class__ is ServerError:
            return self.complained(link, call, reply)
        idle = self._idle.links
        if len(idle) < _MOST_IDLE:
            idle.append(link)
        else:
            link.close()
        return reply

    def heard(self, link: Link, call: Call) -> Any:
        """The reply to a call that somebody else has sent; otherwise as `run`."""
        try:
            reply = link.receive()
        except LOST as error:
            return self.again(link, call, error)
        return self._answered(link, call, reply)

    def _answered(self, link: Link, call: Call, reply: Any) -> Any:
        if reply.__class__ is ServerError:
            return self.complained(link, call, reply)
        self._idle.keep(link)
        return reply

    def open(self, slot: Slot | None = None, seconds: float | None = None) -> Link:
        """A new link; `seconds` are for connecting and for each reply, if that is to be quick."""
        if slot is None:
            slot = Slot(os.urandom(8), self._reply_key)
        try:
            return Link(self.connection(seconds), slot, seconds or self.reply_seconds)
        except LOST as error:
            raise StoreUnavailable(f"Redis cannot be reached: {error}") from error

    @property
    def encrypted(self) -> bool:
        """Whether connections speak TLS, whose sockets cannot be waited for without blocking."""
        return issubclass(self._pool.connection_class, SSLConnection)

    def connection(self, seconds: float | None = None) -> Any:
        """A connection of redis-py that is not connected yet."""
        options = {
            "socket_connect_timeout": seconds or self._connect_seconds,
            "socket_timeout": seconds or self.reply_seconds,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_timeout": False,
            "retry_on_error": [],
            "health_check_interval": 0,
        }
        return self._pool.connection_class(**(self._pool.connection_kwargs | options))

    def again(self, link: Link, call: Call, error: Exception) -> Any:
        """Ask again over a new connection; the server knows whether it has done it before.

        A server that was silent is asked once more and shortly, one that hangs up as often as there is time.
        """
        slot, deadline = link.slot, monotonic() + self.reply_seconds
        link.close()
        for _ in range(_MOST_TRIES):
            silent = isinstance(error, BlockingIOError | TimeoutError)
            seconds = min(_SECONDS_FOR_THE_SILENT, self.reply_seconds) if silent else deadline - monotonic()
            if seconds <= 0:
                break
            try:
                link, reply = self._once_more(slot, call, seconds)
            except StoreUnavailable as unreachable:
                raise Unanswered(str(unreachable), slot) from error
            except LOST as lost:
                error = lost
                if silent:
                    break
            else:
                return self._answered(link, call, reply)
        raise Unanswered(f"Redis does not answer: {error}", slot) from error

    def _once_more(self, slot: Slot, call: Call, seconds: float) -> tuple[Link, Any]:
        link = self.open(slot, seconds)
        try:
            reply = link.exchange(call, again=True)
            link.limit(self.reply_seconds)
        except BaseException:
            link.close()
            raise
        return link, reply

    def complained(self, link: Link, call: Call, error: ServerError) -> Any:
        """Load a script that the server has forgotten; anything else means that it cannot do its work."""
        reply: Any = error
        if error.code == "NOSCRIPT" and call.script is not None:
            try:
                reply = link.exchange(Plain(b"SCRIPT", b"LOAD", call.script.text))
                if reply.__class__ is not ServerError:
                    reply = link.exchange(call, again=True)
            except LOST as lost:
                link.close()
                raise Unanswered(f"Redis does not answer: {lost}", link.slot) from lost
        if reply.__class__ is ServerError:
            # What is connected to a primary that has become a replica has to look for the new one.
            link.close()
            raise StoreUnavailable(f"Redis refuses: {reply}") from reply
        self._idle.keep(link)
        return reply

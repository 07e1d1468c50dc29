"""The way of tasks: what is asked most goes over sockets that do not block; all that is rare, in a thread.

Connecting, losing a connection and loading a script are the same as for threads, so the same code does them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from limits_app.core.errors import StoreUnavailable
from limits_app.core.forking import on_fork
from limits_app.stores.in_thread import in_thread, surely_in_thread
from limits_app.stores.redis.commands import Call
from limits_app.stores.redis.links import CHUNK, LOST, Idle, Link, Links, ServerError

__all__ = ["TaskLinks"]


class TaskLinks:
    """The links that the tasks of a process use, of whatever loop."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._encrypted = links.encrypted
        self._idle = Idle()
        on_fork(self)

    def after_fork(self) -> None:
        """A child makes links of its own."""
        self.close()

    def close(self) -> None:
        """Close what is idle."""
        self._idle.close()

    async def run(self, call: Call, abandoned: Callable[[Any], None], *, surely: bool = False) -> Any:
        """As `Links.run`; when the task is cancelled meanwhile, `abandoned` is told the reply, in a thread.

        Or the StoreUnavailable with which that ended. What the server was not asked yet is asked then only if `surely`.
        """
        if self._encrypted:
            leave = surely_in_thread if surely else in_thread
            return await leave(partial(self._links.run, call), abandoned)
        while (link := self._idle.take()) is None:
            # It comes in by the door, so that nobody has it who is cancelled meanwhile.
            if surely:
                await surely_in_thread(self._open, lambda _: _tell(abandoned, partial(self._links.run, call)))
            else:
                await asyncio.to_thread(self._open)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._links.reply_seconds):
                await loop.sock_sendall(link.socket, call.packed(link.slot, False))
                reply = link.read(await loop.sock_recv(link.socket, CHUNK))
                while reply is False:
                    reply = link.read(await loop.sock_recv(link.socket, CHUNK))
        except LOST as error:
            return await surely_in_thread(partial(self._links.again, link, call, error), abandoned)
        except BaseException:
            loop.run_in_executor(None, self._finish, link, call, abandoned)
            raise
        if reply.__class__ is ServerError:
            link.limit(self._links.reply_seconds)
            return await surely_in_thread(partial(self._links.complained, link, call, reply), abandoned)
        self._idle.keep(link)
        return reply

    def _open(self) -> None:
        link = self._links.open()
        link.socket.setblocking(False)
        self._idle.keep(link)

    def _finish(self, link: Link, call: Call, abandoned: Callable[[Any], None]) -> None:
        """Hear the end of what nobody waits for any more."""
        link.limit(self._links.reply_seconds)
        _tell(abandoned, partial(self._links.heard, link, call))


def _tell(abandoned: Callable[[Any], None], ask: Callable[[], Any]) -> None:
    """Ask, and tell the reply, or the error that came in its place."""
    try:
        ended = ask()
    except StoreUnavailable as error:
        ended = error
    abandoned(ended)

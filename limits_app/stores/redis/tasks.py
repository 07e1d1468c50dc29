"""The way of tasks: what is asked most goes over sockets that do not block; all that is rare, in a thread.

Connecting, losing a connection and loading a script are the same as for threads, so the same code does them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from limits_app.core.forking import on_fork
from limits_app.stores.redis.commands import Call
from limits_app.stores.redis.links import CHUNK, LOST, MOST_IDLE, Link, Links, ServerError

__all__ = ["TaskLinks"]


class TaskLinks:
    """The links that the tasks of a process use, of whatever loop."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._encrypted = links.encrypted
        self._idle: deque[Link] = deque()
        self._unfinished: set[asyncio.Task[None]] = set()
        on_fork(self)

    def after_fork(self) -> None:
        """A child makes links of its own."""
        self.close()

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop().close()

    async def run(self, call: Call, abandoned: Callable[[Any], None]) -> Any:
        """As `Links.run`; when the task is cancelled meanwhile, `abandoned` is told the reply, in a thread."""
        if self._encrypted:
            return await asyncio.to_thread(self._links.run, call)
        link = self._idle.pop() if self._idle else await self._open()
        data = call.packed(link.slot, again=False)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(link.socket, data)
        except LOST as error:
            return await asyncio.to_thread(self._links.again, link, call, error)
        except BaseException:
            link.close()
            raise
        try:
            async with asyncio.timeout(self._links.reply_seconds):
                reply = await self._receive(link)
        except LOST as error:
            return await asyncio.to_thread(self._links.again, link, call, error)
        except BaseException:
            self._finish_later(link, abandoned)
            raise
        if reply.__class__ is ServerError:
            link.limit(self._links.reply_seconds)
            return await asyncio.to_thread(self._links.complained, link, call, reply)
        self._keep(link)
        return reply

    def _keep(self, link: Link) -> None:
        if len(self._idle) < MOST_IDLE:
            self._idle.append(link)
        else:
            link.close()

    async def _open(self) -> Link:
        link = await asyncio.to_thread(self._links.open)
        link.socket.setblocking(False)
        return link

    async def _receive(self, link: Link) -> Any:
        loop = asyncio.get_running_loop()
        while True:
            reply = link.read(await loop.sock_recv(link.socket, CHUNK))
            if reply is not False:
                return reply

    def _finish_later(self, link: Link, abandoned: Callable[[Any], None]) -> None:
        task = asyncio.ensure_future(self._finish(link, abandoned))
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)

    async def _finish(self, link: Link, abandoned: Callable[[Any], None]) -> None:
        """Hear the end of what nobody waits for any more."""
        try:
            async with asyncio.timeout(self._links.reply_seconds):
                reply = await self._receive(link)
        except LOST:
            link.close()
            return
        await asyncio.to_thread(abandoned, reply)
        self._keep(link)

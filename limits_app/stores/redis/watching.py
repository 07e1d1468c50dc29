"""Waking waiters of other processes: a note in the record of a scope says that somebody waits, and whoever gives
something back there publishes it. One thread in each process that has waiters listens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, Final

from limits_app.core.errors import StoreUnavailable
from limits_app.core.forking import on_fork
from limits_app.core.keys import short_key
from limits_app.core.threads import started
from limits_app.core.waiting import WaitingLine
from limits_app.stores.redis.commands import Plain, Prepared
from limits_app.stores.redis.links import CHUNK, LOST, Link, Links
from limits_app.stores.redis.moments import Moments
from limits_app.stores.redis.names import Names
from limits_app.stores.redis.scripts import script

__all__ = ["EVERYBODY", "Watching"]

logger = logging.getLogger("limits_app")

EVERYBODY: Final = b"*"
"""Published when anything may have changed."""

_SECONDS_BETWEEN_NOTES: Final = 10.0
_SECONDS_OF_SILENCE: Final = 0.1
_IDLE_SECONDS: Final = 5.0
_SECONDS_TO_LISTEN: Final = 1.0


class Watching:
    """The waiting line of a process, which hears what other processes give back. `heard` is told before it is."""

    def __init__(self, links: Links, names: Names, moments: Moments, heard: Callable[[], None]) -> None:
        self._links = links
        self._names = names
        self._moments = moments
        self._heard = heard
        self.line = WaitingLine(self._watch, self._unwatch)
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Nobody listens in a child."""
        self._lock = Lock()
        self._watched: dict[bytes, str] = {}
        self._listening = Event()
        self._thread: Thread | None = None
        self._link: Link | None = None
        self._closed = False

    def close(self) -> None:
        """Stop listening; whoever waits is not woken by other processes any more."""
        thread, self._closed = self._thread, True
        if thread is not None:
            thread.join()
        self._closed = False

    def _watch(self, scope: str) -> None:
        key = self._names.scope(short_key(scope))
        with self._lock:
            self._watched[key] = scope
            if self._thread is None:
                self._thread = started(self._listen, "limits-listener")
            if self._thread is None:
                return  # without being woken, a waiter asks when the store has said that it may fit
        if not self._listening.wait(_SECONDS_TO_LISTEN):
            raise StoreUnavailable("Redis does not say what others give back: it cannot be reached")
        self._note([scope])

    def _unwatch(self, scope: str) -> None:
        with self._lock:
            self._watched.pop(self._names.scope(short_key(scope)), None)

    def _note(self, scopes: Iterable[str]) -> None:
        for scope in map(short_key, scopes):
            prepared = Prepared(script("watch"), [self._names.scope(scope)], b"", tag=self._names.tag(scope))
            self._links.run(prepared.call(self._moments.header()))

    def _listen(self) -> None:
        """Hear and tell, over one connection after the other, until nobody has waited for a while."""
        idle_since = monotonic()
        while True:
            with self._lock:
                if self._watched:
                    idle_since = monotonic()
                if self._closed or monotonic() - idle_since > _IDLE_SECONDS:
                    self._thread = None
                    self._listening.clear()
                    return
            try:
                self._hear()
            except (*LOST, StoreUnavailable):
                self._listening.clear()
                Event().wait(0.1)

    def _hear(self) -> None:
        """One connection, until it is lost or nobody waits any more."""
        link = self._links.open()
        try:
            link.limit(_SECONDS_OF_SILENCE)
            link.exchange(Plain(b"SUBSCRIBE", self._names.channel))
            self._listening.set()
            with self._lock:
                scopes = list(self._watched.values())
            if scopes:
                # What was published before is lost.
                self._note(scopes)
                self._tell(EVERYBODY)
            self._attend(link)
        finally:
            self._listening.clear()
            link.close()

    def _attend(self, link: Link) -> None:
        noted = idle_since = monotonic()
        while not self._closed:
            message = self._next(link)
            if message:
                self._tell(message[2])
            now = monotonic()
            if self._watched:
                idle_since = now
            elif now - idle_since > _IDLE_SECONDS:
                return
            if now - noted > _SECONDS_BETWEEN_NOTES:
                noted = now
                with self._lock:
                    scopes = list(self._watched.values())
                self._note(scopes)

    def _next(self, link: Link) -> Any:
        """The next message, or None after a while of silence."""
        message = link.parsed()
        while message is False:
            try:
                chunk = link.socket.recv(CHUNK)
            except (BlockingIOError, TimeoutError):
                return None
            message = link.read(chunk)
        return message

    def _tell(self, what: bytes) -> None:
        self._heard()
        if what == EVERYBODY:
            self.line.notify_all()
            return
        scope = self._watched.get(what)
        if scope is not None:
            self.line.notify([scope])

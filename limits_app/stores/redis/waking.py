"""Waking waiters of other processes when amounts are returned.

A process notes in the record of a scope that one of its threads waits for it; a process that returns something there
announces the scope on a channel. One thread of each process that has waiters listens to the channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from math import inf
from threading import Event, Thread
from time import monotonic
from typing import Any, Final

from redis.client import PubSub
from redis.exceptions import RedisError

from limits_app.acquiring import WaitingLine, on_fork, start_thread
from limits_app.engine import lasts, short_key
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.locks import RLock
from limits_app.stores.redis.calls import Calls
from limits_app.stores.redis.commands import RedisCommand

_EVERYTHING: Final = b"*"
"""Announced when anything may have changed."""

_SECONDS_BETWEEN_NOTES: Final = 10.0
_SECONDS_OF_SILENCE: Final = 0.1
_IDLE_SECONDS: Final = 5.0
_SECONDS_TO_SUBSCRIBE: Final = 1.0


class RedisWaking:
    """The waiting line of a process, and the thread that wakes it. `on_change` is called before waiters are woken."""

    def __init__(self, connections: Any, calls: Calls, on_change: Callable[[], None]) -> None:
        self._connections = connections
        self._calls = calls
        self._names = calls.names
        self._on_change = on_change
        self.line = WaitingLine(self._watch, self._unwatch)
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Start again without a thread in a child process."""
        # Reentrant, because a finalizer may wait while this thread holds the lock.
        self._lock = RLock()
        self._watched: dict[bytes, str] = {}
        self._subscribed = Event()
        self._thread: Thread | None = None
        self._is_closed = False
        self._idle_since = 0.0

    def announce(self, scope: bytes = _EVERYTHING) -> None:
        """Announce the key of a scope to all processes, or that anything may have changed."""
        self._connections.run(RedisCommand("PUBLISH", self._names.channel, scope))

    def close(self) -> None:
        """Stop listening; other processes wake no waiters any more."""
        thread, self._is_closed = self._thread, True
        if thread is not None:
            thread.join()
        self._is_closed = False

    def _watch(self, scope: str) -> None:
        with self._lock:
            self._watched[self._names.scope(short_key(scope))] = scope
            self._idle_since = monotonic()
            if self._thread is None:
                self._thread = start_thread(self._listen, "limits-listener")
            if self._thread is None:
                return  # waiters ask again when the store has said that they may be admitted
        if not self._subscribed.wait(_SECONDS_TO_SUBSCRIBE):
            raise StoreUnavailable("cannot subscribe to Redis; waiting requests will poll")
        self._note([self._names.scope(short_key(scope))])

    def _unwatch(self, scope: str) -> None:
        with self._lock:
            self._watched.pop(self._names.scope(short_key(scope)), None)
            self._idle_since = monotonic()

    def _note(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._connections.run(self._calls.script("renew", [key, key], bytes(24), b""))

    def _listen(self) -> None:
        """Listen over one connection after the other, until there were no waiters for a while."""
        while True:
            with self._lock:
                if self._has_ended():
                    self._thread = None
                    return
            try:
                with closing(self._connections.listening_pool()) as pool:
                    self._listen_with(PubSub(pool))
            except (OSError, RedisError, StoreUnavailable):
                Event().wait(_SECONDS_OF_SILENCE)
            finally:
                self._subscribed.clear()

    def _has_ended(self) -> bool:
        return self._is_closed or (not self._watched and not lasts(self._idle_since, _IDLE_SECONDS, monotonic()))

    def _listen_with(self, listener: PubSub) -> None:
        """Listen until the connection is lost, or nothing has waited for a while."""
        noted_at = -inf
        listener.subscribe(self._names.channel)
        while not self._has_ended():
            message = listener.get_message(timeout=_SECONDS_OF_SILENCE)
            if message is not None and message["type"] == "subscribe":
                self._subscribed.set()
                self._wake(_EVERYTHING)  # announcements before the subscription are lost
            elif message is not None:
                self._wake(message["data"])
            if self._subscribed.is_set() and not lasts(noted_at, _SECONDS_BETWEEN_NOTES, monotonic()):
                noted_at = monotonic()
                with self._lock:
                    keys = list(self._watched)
                self._note(keys)
        listener.close()

    def _wake(self, announced: bytes) -> None:
        self._on_change()
        if announced == _EVERYTHING:
            self.line.notify_all()
        elif (scope := self._watched.get(announced)) is not None:
            self.line.notify([scope])

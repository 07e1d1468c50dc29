"""Who waits: first come, first served for each bucket, without polling.

A waiter stands in the lines of the buckets that refused it. Only the first of a line asks the store,
and sleeps until the moment that the store named; the others sleep until somebody before them leaves.
Whoever gives something back, in this process or another, wakes the first of the lines it may help.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from threading import Event, Lock
from typing import Final, Protocol

from limits_app.core.forking import on_fork
from limits_app.core.parts import Bucket

__all__ = ["TaskWaiter", "ThreadWaiter", "Waiter", "WaitingLine"]

_TICKETS: Final = count(1)


class Waiter(Protocol):
    """Somebody who sleeps until woken."""

    ticket: int
    standing: tuple[Bucket, ...]

    def wake(self) -> None:
        """End its sleep, or its next one; from any thread."""

    def gone(self) -> bool:
        """Whether it will never take its turn, nor leave the line by itself."""


class ThreadWaiter:
    """A thread that waits."""

    __slots__ = ("_event", "standing", "ticket")

    def __init__(self) -> None:
        self.ticket = next(_TICKETS)
        self.standing: tuple[Bucket, ...] = ()
        self._event = Event()

    def wake(self) -> None:
        """End the sleep, or the next one."""
        self._event.set()

    def gone(self) -> bool:
        """A thread that ends leaves the line first."""
        return False

    def sleep(self, seconds: float | None) -> None:
        """Sleep for at most `seconds` (None: until woken)."""
        self._event.wait(seconds)
        self._event.clear()


class TaskWaiter:
    """A task of a running event loop that waits."""

    __slots__ = ("_event", "_loop", "standing", "ticket")

    def __init__(self) -> None:
        import asyncio  # only programs that use it pay for its import

        self.ticket = next(_TICKETS)
        self.standing: tuple[Bucket, ...] = ()
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def wake(self) -> None:
        """End the sleep, or the next one; from any thread."""
        # Raised when the loop was closed under its tasks.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)

    def gone(self) -> bool:
        """A loop that was closed under its tasks runs them never again."""
        return self._loop.is_closed()

    async def sleep(self, seconds: float | None) -> None:
        """Sleep for at most `seconds` (None: until woken) without blocking the loop."""
        timer = None if seconds is None else self._loop.call_later(seconds, self._event.set)
        try:
            await self._event.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._event.clear()


def _ignore(scope: str) -> None:
    """Nobody else has to know."""


class WaitingLine:
    """The waiters of one process for one store.

    `watch` and `unwatch` are told when the first waiter of a scope comes and the last one goes,
    for stores that must ask other processes to wake this one.
    """

    def __init__(
        self,
        watch: Callable[[str], None] = _ignore,
        unwatch: Callable[[str], None] = _ignore,
    ) -> None:
        self._watch = watch
        self._unwatch = unwatch
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Nobody of the parent waits in a child."""
        self._lock = Lock()
        self._lines: dict[str, dict[str, list[Waiter]]] = {}
        self._deserted: list[str] = []
        self.busy = False

    def stand(self, waiter: Waiter, buckets: Iterable[Bucket]) -> None:
        """Stand in the lines of `buckets` and no others; whoever becomes first in a line that is left is woken."""
        wanted = tuple(buckets)
        with self._lock:
            left = [bucket for bucket in waiter.standing if bucket not in wanted]
            joined = [bucket for bucket in wanted if bucket not in waiter.standing]
            waiter.standing = wanted
            came = [scope for scope, key in joined if self._enter(scope, key, waiter)]
            gone = [scope for scope, key in left if self._leave(scope, key, waiter)]
            gone, self._deserted = gone + self._deserted, []
            self.busy = bool(self._lines)
        for scope in came:
            self._watch(scope)
        for scope in gone:
            self._unwatch(scope)

    def ahead(self, waiter: Waiter, buckets: Iterable[Bucket]) -> list[Bucket]:
        """The buckets for which somebody has waited longer than `waiter`."""
        with self._lock:
            return [
                (scope, key)
                for scope, key in buckets
                if (first := self._first(scope, key)) is not None and first.ticket < waiter.ticket
            ]

    def notify(self, scopes: Iterable[str]) -> None:
        """Something was given back in these scopes: wake the first of each of their lines."""
        with self._lock:
            for scope in scopes:
                for key in list(self._lines.get(scope, ())):
                    self._wake_first(scope, key)

    def notify_all(self) -> None:
        """Anything may have changed: wake the first of every line."""
        with self._lock:
            scopes = list(self._lines)
        self.notify(scopes)

    def moved(self, now: int) -> None:  # noqa: ARG002 - as `Paced` has it
        """The clock was moved by hand: everybody looks whether its time has come."""
        with self._lock:
            for lines in self._lines.values():
                for line in lines.values():
                    for waiter in line:
                        waiter.wake()

    def watched(self) -> list[str]:
        """The scopes in which somebody waits."""
        with self._lock:
            return list(self._lines)

    def _wake_first(self, scope: str, key: str) -> None:
        first = self._first(scope, key)
        if first is not None:
            first.wake()

    def _first(self, scope: str, key: str) -> Waiter | None:
        """The first of a line; those who are gone without having left are taken out of all their lines."""
        while line := self._lines.get(scope, {}).get(key):
            waiter = line[0]
            if not waiter.gone():
                return waiter
            standing, waiter.standing = waiter.standing, ()
            self._deserted += [left for left, name in standing if self._leave(left, name, waiter)]
            self.busy = bool(self._lines)
        return None

    def _enter(self, scope: str, key: str, waiter: Waiter) -> bool:
        first = scope not in self._lines
        line = self._lines.setdefault(scope, {}).setdefault(key, [])
        insort(line, waiter, key=lambda other: other.ticket)
        return first

    def _leave(self, scope: str, key: str, waiter: Waiter) -> bool:
        lines = self._lines[scope]
        line = lines[key]
        was_first = line[0] is waiter
        line.remove(waiter)
        if line:
            if was_first:
                self._wake_first(scope, key)
            return False
        del lines[key]
        if lines:
            return False
        del self._lines[scope]
        return True

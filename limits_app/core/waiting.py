"""Who waits: first come, first served for each bucket, without polling.

A waiter stands in the lines of the buckets that refused it. Only the first of a line asks the store,
and sleeps until the moment that the store named; the others sleep until somebody before them leaves.
Whoever gives something back, in this process or another, wakes the first of the lines it may help.
Lines do not keep waiters alive: one that was interrupted before it could leave is gone all the same.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from operator import itemgetter
from threading import Event, Lock
from typing import Final, Protocol
from weakref import ref

from limits_app.core.errors import StoreUnavailable
from limits_app.core.plan import Bucket
from limits_app.core.runtime import on_fork

__all__ = ["TaskWaiter", "ThreadWaiter", "Waiter", "WaitingLine"]

logger = logging.getLogger("limits_app")

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

    __slots__ = ("__weakref__", "_event", "standing", "ticket")

    def __init__(self) -> None:
        self.ticket = next(_TICKETS)
        self.standing: tuple[Bucket, ...] = ()
        self._event = Event()

    def wake(self) -> None:
        """End the sleep, or the next one."""
        self._event.set()

    def gone(self) -> bool:
        """A thread takes its turn for as long as it waits."""
        return False

    def sleep(self, seconds: float | None) -> None:
        """Sleep for at most `seconds` (None: until woken)."""
        self._event.wait(seconds)
        self._event.clear()


class TaskWaiter:
    """A task of a running event loop that waits."""

    __slots__ = ("__weakref__", "_event", "_loop", "standing", "ticket")

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


_Line = list[tuple[int, "ref[Waiter]"]]
"""Tickets, in their order, and whose they are."""

_TICKET: Final = itemgetter(0)


def _ignore(scope: str) -> None:
    """Nobody else has to know."""


class WaitingLine:
    """The waiters of one process for one store.

    `watch` and `unwatch` are told when the first waiter of a scope comes and the last one goes,
    for stores that must ask other processes to wake this one. To unwatch must not take long: tasks leave in their loop.
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
        self._lines: dict[str, dict[str, _Line]] = {}
        self._deserted: list[str] = []
        self._dead: deque[object] = deque()
        self.busy = False

    def stand(self, waiter: Waiter, buckets: Iterable[Bucket]) -> None:
        """Stand in the lines of `buckets` and no others; whoever becomes first in a line that is left is woken."""
        wanted = tuple(buckets)
        with self._alone():
            left = [bucket for bucket in waiter.standing if bucket not in wanted]
            joined = [bucket for bucket in wanted if bucket not in waiter.standing]
            # If it is interrupted in between, it may leave more lines than it stands in, but none is forgotten.
            waiter.standing = (*waiter.standing, *joined)
            came = [scope for scope, key in joined if self._enter(scope, key, waiter)]
            gone = [scope for scope, key in left if self._leave(scope, key, waiter.ticket)]
            waiter.standing = wanted
            gone, self._deserted = gone + self._deserted, []
            self.busy = bool(self._lines)
        for scope in dict.fromkeys([*came, *gone]):
            self._tell(scope)

    def ahead(self, waiter: Waiter, buckets: Iterable[Bucket]) -> list[Bucket]:
        """The buckets for which somebody has waited longer than `waiter`."""
        with self._alone():
            return [
                (scope, key)
                for scope, key in buckets
                if (first := self._first(scope, key)) is not None and first.ticket < waiter.ticket
            ]

    def notify(self, scopes: Iterable[str]) -> None:
        """Something was given back in these scopes: wake the first of each of their lines."""
        with self._alone():
            for scope in scopes:
                for key in list(self._lines.get(scope, ())):
                    self._wake_first(scope, key)

    def notify_all(self) -> None:
        """Anything may have changed: wake the first of every line."""
        with self._alone():
            scopes = list(self._lines)
        self.notify(scopes)

    def moved(self, now: int) -> None:  # noqa: ARG002 - as `Paced` has it
        """The clock was moved by hand: everybody looks whether its time has come."""
        with self._alone():
            for lines in self._lines.values():
                for line in lines.values():
                    for _, reference in line:
                        waiter = reference()
                        if waiter is not None:
                            waiter.wake()

    def watched(self) -> list[str]:
        """The scopes in which somebody waits."""
        with self._alone():
            return list(self._lines)

    def _tell(self, scope: str) -> None:
        """Tell whether somebody waits in a scope, until that is so still: others come and go, and tell, meanwhile."""
        told = None
        while (waited := self._is_waited(scope)) is not told:
            told = waited
            if waited:
                self._watch(scope)
            else:
                self._stop_watching(scope)

    def _is_waited(self, scope: str) -> bool:
        with self._alone():
            return scope in self._lines

    def _stop_watching(self, scope: str) -> None:
        try:
            self._unwatch(scope)
        except StoreUnavailable:  # who leaves has what was waited for; to be woken for nobody does no harm
            logger.warning("that nobody waits any more could not be told", exc_info=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one thread at a time go to the lines; who died meanwhile is taken out of them after that."""
        try:
            with self._lock:
                yield
        finally:
            self._bury()

    def _died(self, reference: object) -> None:
        """A waiter is gone that has not left: told by whatever thread was the last to know it, wherever it was then."""
        self._dead.append(reference)
        self._bury()

    def _bury(self) -> None:
        """Take the dead out of all lines, unless somebody is at the lines, who does so after that."""
        while self._dead and self._lock.acquire(blocking=False):
            try:
                self._dead.clear()
                for scope, lines in list(self._lines.items()):
                    for key, line in list(lines.items()):
                        dead = [ticket for ticket, reference in line if reference() is None]
                        self._deserted += [scope for ticket in dead if self._leave(scope, key, ticket)]
                self.busy = bool(self._lines)
            finally:
                self._lock.release()

    def _wake_first(self, scope: str, key: str) -> None:
        first = self._first(scope, key)
        if first is not None:
            first.wake()

    def _first(self, scope: str, key: str) -> Waiter | None:
        """The first of a line; those who are gone without having left are taken out of all their lines."""
        while line := self._lines.get(scope, {}).get(key):
            ticket, reference = line[0]
            waiter = reference()
            if waiter is not None and not waiter.gone():
                return waiter
            standing = [(scope, key)]
            if waiter is not None:
                standing, waiter.standing = list(waiter.standing), ()
            self._deserted += [left for left, name in standing if self._leave(left, name, ticket)]
            self.busy = bool(self._lines)
        return None

    def _enter(self, scope: str, key: str, waiter: Waiter) -> bool:
        first = scope not in self._lines
        line = self._lines.setdefault(scope, {}).setdefault(key, [])
        insort(line, (waiter.ticket, ref(waiter, self._died)), key=_TICKET)
        return first

    def _leave(self, scope: str, key: str, ticket: int) -> bool:
        """Take a ticket out of a line, if it is there; says whether it was the last one in the scope."""
        lines = self._lines.get(scope, {})
        line = lines.get(key, [])
        place = bisect_left(line, ticket, key=_TICKET)
        if place == len(line) or line[place][0] != ticket:
            return False
        del line[place]
        if line:
            if place == 0:
                self._wake_first(scope, key)
            return False
        del lines[key]
        if lines:
            return False
        del self._lines[scope]
        return True

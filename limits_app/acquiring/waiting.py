"""Waiting threads and tasks, and the line of a store in this process: a queue for each bucket, without polling.

A waiter queues for the buckets that refused it, behind those of its class that have come before, and of higher classes.
Only the first of a queue asks the store, and sleeps until the time that the store named; the others sleep until they
are woken. A release, a refund or a change wakes the first of each queue that it may help.

A signal handler may raise at any point of any method. Locks are therefore only held in `with` blocks around an
`engine.locks.RLock`, which CPython always releases, and each change may be repeated: `leave` after an interrupted
`enqueue` or `leave` removes everything. A waiter that was interrupted there as well is removed after its garbage
collection.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from threading import Lock
from typing import Final, Protocol
from weakref import ref

from limits_app.acquiring.runtime import on_fork
from limits_app.engine import Bucket, lasts
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.locks import RLock

logger = logging.getLogger("limits_app")

_next_number: Final = count(1).__next__


Turn = tuple[int, int]
"""The rank of the class of a request, 0 for the highest, and its number in the order of arrival."""


class Waiter(Protocol):
    """A thread or task that sleeps until it is woken."""

    turn: Turn
    """Unique in the process; the lowest turn of a queue is that of its first waiter."""

    def wake(self) -> None:
        """End the current sleep, or the next one; called from any thread."""

    def is_waiting(self) -> bool:
        """Whether it still takes its turn; if not, the waiting line ignores and removes it."""


class ThreadWaiter:
    """A waiting thread, for a request whose class has a rank."""

    def __init__(self, rank: int = 0) -> None:
        self.turn: Turn = rank, _next_number()
        self.active = True
        """Set to False by the end of the wait, however it ends."""
        self.slept_seconds = 0.0
        """Sleeps that no release ended; they passed also where a test has frozen the clocks."""
        # A lock that is released to wake the thread: `threading.Event` can stay locked when a handler raises in it.
        self._woken = Lock()
        self._woken.acquire()

    def wake(self) -> None:
        try:
            self._woken.release()
        except RuntimeError:
            return  # it has been woken already

    def is_waiting(self) -> bool:
        """Whether the wait goes on."""
        return self.active

    def sleep(self, seconds: float | None) -> None:
        """Sleep for at most `seconds` (None: until woken)."""
        if seconds is None:
            self._woken.acquire()
        elif not self._woken.acquire(timeout=seconds):
            self.slept_seconds += seconds


class TaskWaiter:
    """A waiting task of the running event loop, for a request whose class has a rank."""

    def __init__(self, rank: int = 0) -> None:
        import asyncio  # only programs that use it pay for its import

        self.turn: Turn = rank, _next_number()
        self.active = True
        """Set to False by the end of the wait, however it ends."""
        self.slept_seconds = 0.0
        """As that of `ThreadWaiter`."""
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    def wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._woken.set)
        except RuntimeError:
            return  # the loop was closed while the task waited

    def is_waiting(self) -> bool:
        """Whether the wait goes on; a closed loop does not run its tasks any more."""
        return self.active and not self._loop.is_closed()

    async def sleep(self, seconds: float | None) -> None:
        """Sleep for at most `seconds` (None: until woken) without blocking the loop."""
        timer = None if seconds is None else self._loop.call_later(seconds, self._time_out, seconds)
        try:
            await self._woken.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._woken.clear()

    def _time_out(self, seconds: float) -> None:
        self.slept_seconds += seconds
        self._woken.set()


class _Place:
    """The buckets for which a waiter queues; it does not keep the waiter alive."""

    def __init__(self, waiter: Waiter, died: Callable[[object], None]) -> None:
        self.reference = ref(waiter, died)
        self.buckets: tuple[Bucket, ...] = ()

    def waiter(self) -> Waiter | None:
        """The waiter, if it still waits."""
        waiter = self.reference()
        return waiter if waiter is not None and waiter.is_waiting() else None


class WaitingLine:
    """The waiters of one process for one store.

    `watch` is called when the first waiter of a scope arrives and `unwatch` when the last one leaves, for stores in
    which other processes wake this one. Both may be called again with the same scope. `unwatch` must be fast, since
    tasks leave the line in their event loop.
    """

    def __init__(
        self, watch: Callable[[str], None] | None = None, unwatch: Callable[[str], None] | None = None
    ) -> None:
        self._watch = watch
        self._unwatch = unwatch
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """A child process starts without the waiters of its parent."""
        # Reentrant: a signal handler or a finalizer that runs in a locked block may release permits.
        self._lock = RLock()
        self._places: dict[Turn, _Place] = {}
        self._queues: dict[str, dict[str, list[Turn]]] = {}
        """By scope and key of the limit: the turns of the waiters, in rising order."""
        self._watched: dict[str, bool] = {}
        """True: `watch` was called. False: a call is under way, or was interrupted. Missing: not watched."""
        self._unsettled: set[str] = set()
        """Scopes that may have to be watched or unwatched by the next waiter that arrives or leaves."""
        self._dead: deque[Turn] = deque()
        self.competitors: dict[Bucket, tuple[int, int]] = {}
        """Buckets for which waiters of other processes compete: since when, and for how long, in microseconds."""
        self.busy = False
        """Whether anything waits."""
        self.yielded_at = 0
        """When a request of this process last waited for others, or the first of a series could have done so."""

    def enqueue(self, waiter: Waiter, buckets: Iterable[Bucket]) -> None:
        """Queue for `buckets` and for no others, at the turn of the waiter.

        The next waiter is woken in each queue whose first one leaves.
        """
        queued = tuple(dict.fromkeys(buckets))
        scopes: set[str] = set()
        try:
            with self._lock:
                self._remove_dead()
                # The wait may have ended while another thread was about to call this.
                if not waiter.is_waiting():
                    queued = ()
                if queued and waiter.turn not in self._places:
                    self._places[waiter.turn] = _Place(waiter, partial(self._died, waiter.turn))
                self._move(waiter.turn, queued, scopes)
                scopes |= self._unsettled
                self._unsettled -= scopes
            if self._watch is not None or self._unwatch is not None:
                for scope in scopes:
                    self._announce(scope)
        except BaseException:
            self._unsettled.update(scopes)
            raise

    def leave(self, waiter: Waiter) -> None:
        """Leave all queues; calling it again does nothing."""
        self.enqueue(waiter, ())

    def ahead(self, waiter: Waiter, buckets: Iterable[Bucket]) -> list[Bucket]:
        """The buckets for which another waiter has an earlier turn."""
        buckets_ahead = []
        with self._lock:
            for scope, key in buckets:
                first = self._first(scope, key)
                if first is not None and first.turn < waiter.turn:
                    buckets_ahead.append((scope, key))
        return buckets_ahead

    def notify(self, scopes: Iterable[str]) -> None:
        """Wake the first waiter of each queue of these scopes, since something was released there."""
        with self._lock:
            for scope in scopes:
                for key in list(self._queues.get(scope, ())):
                    first = self._first(scope, key)
                    if first is not None:
                        first.wake()

    def notify_all(self) -> None:
        """Wake the first waiter of every queue, since anything may have changed."""
        self.notify(list(self._queues))

    def moved(self, now: int) -> None:  # noqa: ARG002 - the signature of `Paced`
        """A test has moved the clock: wake all waiters, which compare their times with it."""
        self._wake_all()

    def note_competitors(self, buckets: Iterable[Bucket], now: int, length_us: int) -> None:
        """Waiters of other processes compete for these buckets, presumably for some time from a local time on."""
        with self._lock:
            for bucket in buckets:
                start, length = self.competitors.get(bucket, (now, 0))
                if start + length < now + length_us or not lasts(start, length, now):
                    self.competitors[bucket] = now, length_us

    def has_competitors(self, buckets: Iterable[Bucket], now: int) -> bool:
        """Whether waiters of other processes compete for one of these buckets."""
        if not self.competitors:
            return False
        with self._lock:
            self.competitors = {bucket: noted for bucket, noted in self.competitors.items() if lasts(*noted, now)}
            return any(bucket in self.competitors for bucket in buckets)

    def scopes(self) -> list[str]:
        """The scopes that have waiters."""
        return list(self._queues)

    def _move(self, turn: Turn, queued: tuple[Bucket, ...], scopes: set[str]) -> None:
        """Join and leave queues; adds the scopes of both to `scopes`."""
        place = self._places.get(turn)
        if place is None:
            return
        before = place.buckets
        scopes.update([scope for scope, _ in before], [scope for scope, _ in queued])
        # Until all is done, the place lists old and new buckets, so that `leave` finds every queue.
        place.buckets = tuple(dict.fromkeys((*before, *queued)))
        for scope, key in queued:
            queue = self._queues.setdefault(scope, {}).setdefault(key, [])
            if turn not in queue:
                insort(queue, turn)
        for scope, key in before:
            if (scope, key) not in queued:
                self._remove_from(scope, key, turn)
        self.busy = bool(self._queues)
        place.buckets = queued
        if not queued:
            self._places.pop(turn, None)

    def _remove_from(self, scope: str, key: str, turn: Turn) -> None:
        """Remove a turn from a queue, if it is there, and wake the next waiter when it was the first."""
        keys = self._queues.get(scope, {})
        queue = keys.get(key, [])
        if turn in queue:
            # Woken before the removal: if this is interrupted, repeating it wakes the next waiter again.
            if queue[0] == turn:
                following = next(filter(None, map(self._waiter, queue[1:])), None)
                if following is not None:
                    following.wake()
            queue.remove(turn)
        if not queue:
            keys.pop(key, None)
        if not keys:
            self._queues.pop(scope, None)

    def _waiter(self, turn: Turn) -> Waiter | None:
        place = self._places.get(turn)
        return None if place is None else place.waiter()

    def _first(self, scope: str, key: str) -> Waiter | None:
        """The first waiter of a queue; removes those before it that do not wait any more."""
        while queue := self._queues.get(scope, {}).get(key):
            turn = queue[0]
            waiter = self._waiter(turn)
            if waiter is not None:
                return waiter
            self._move(turn, (), self._unsettled)
            self._remove_from(scope, key, turn)
        return None

    def _remove_dead(self) -> None:
        while self._dead:
            self._move(self._dead[0], (), self._unsettled)
            self._dead.popleft()

    def _died(self, turn: Turn, _reference: object) -> None:
        """A waiter was garbage collected before it could leave.

        This may run in any thread at any time, also while the lock is held, and so it takes no lock:
        all others are woken, and remove the dead waiter.
        """
        self._dead.append(turn)
        self._wake_all()

    def _wake_all(self) -> None:
        for place in list(self._places.values()):
            waiter = place.waiter()
            if waiter is not None:
                waiter.wake()

    def _announce(self, scope: str) -> None:
        """Have a scope watched if it has waiters, and else unwatched.

        Repeated until that is still right afterwards, since other waiters arrive and leave at the same time.
        """
        announced: bool | None = None
        while True:
            with self._lock:
                waited = scope in self._queues
                if announced is None:
                    done = self._watched.get(scope) is (True if waited else None)
                else:
                    done = announced is waited
                if done and waited:
                    self._watched[scope] = True
                elif done:
                    self._watched.pop(scope, None)
                else:
                    self._watched[scope] = False
            if done:
                return
            self._call(scope, waited=waited)
            announced = waited

    def _call(self, scope: str, *, waited: bool) -> None:
        """Call `watch` or `unwatch`."""
        call = self._watch if waited else self._unwatch
        try:
            if call is not None:
                call(scope)
        except BaseException as error:
            self._watched[scope] = False  # another waiter may have finished a call meanwhile
            if waited or not isinstance(error, StoreUnavailable):
                raise
            # The waiter has its result, and a wake-up without waiters does no harm.
            logger.warning("the store could not stop watching a scope without waiters", exc_info=True)

"""Blocking acquires: wait, in a thread or a task, until one of several acquisitions is admitted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from time import monotonic_ns
from typing import Final, SupportsFloat

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.backoff import jittered
from limits_app.acquiring.choice import Choice
from limits_app.acquiring.store import Store
from limits_app.acquiring.waiting import TaskWaiter, ThreadWaiter
from limits_app.engine import NEVER_US, SECOND_US, Bucket, Claim, Clock, shown
from limits_app.engine.errors import InvalidRequest, LimitExceeded, LimitTimeout

logger = logging.getLogger("limits_app")

_JITTER_US: Final = 500
_LONGEST_SLEEP_SECONDS: Final = 3600.0


Timeout = float | SupportsFloat | None
"""Seconds, None where there is no limit. `checked_timeout` rejects everything that is not a plain number."""


def checked_timeout(timeout: Timeout, rule: str = "timeout must be None or seconds") -> float | None:
    """Check a timeout; return it in seconds, None where it never ends. InvalidRequest unless None or at least 0."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidRequest(f"{rule}, 0 or more, not {shown(timeout)}")
    return None if timeout >= NEVER_US / SECOND_US else float(timeout)


def must_wait(acquisition: Acquisition) -> bool:
    """Whether a request may not be tried immediately, since others wait, in this process or presumably in another.

    A process that takes permits again and again never sees the waiters of others in a store that cannot wake them, so
    once in the longest poll interval one of its requests waits for a short one.
    """
    store, permits = acquisition.limit_set.store, acquisition.shape.permits
    line = store.line
    if line.busy or not permits or store.poll_us is None or store.poll_us[0] == store.poll_us[1]:
        return line.busy
    shortest_us, longest_us = store.poll_us
    buckets, now = [acquisition.plan.buckets[limit.position] for limit in permits], _local_us(store.clock)
    since_us = now - line.yielded_at
    if not 0 <= since_us < longest_us:
        line.yielded_at = now
        if since_us < 2 * longest_us:
            line.note_competitors(buckets, now, 2 * shortest_us)
    return line.has_competitors(buckets, now)


def wait_in_thread(choice: Choice, timeout: float | None) -> Acquisition:
    """Wait until one acquisition is admitted and return it, for at most `timeout` seconds.

    Raises LimitTimeout when the time is up, and LimitExceeded immediately where waiting cannot help.
    However it ends, the waiter has left all queues; the caller refunds the admitted amounts when it raises.
    """
    if _is_hopeless(choice):
        raise LimitExceeded.of(choice.rejected())
    waiter = ThreadWaiter(choice.rank)
    wait = _Wait(choice, waiter, timeout)
    try:
        try:
            while True:
                # Queued before the store is asked, so that every later release wakes this waiter.
                for store, buckets in wait.begin():
                    store.line.enqueue(waiter, buckets)
                free = wait.free()
                admitted = choice.acquire(free) if free else None
                if admitted is not None:
                    return admitted
                if wait.is_last:
                    raise LimitTimeout.of(choice.rejected())
                for store, buckets in wait.go_on():
                    store.line.enqueue(waiter, buckets)
                waiter.sleep(wait.pause_seconds())
        finally:
            wait.leave()
    except BaseException:
        wait.leave()  # again, since the first time may have been interrupted
        raise


async def wait_in_task(choice: Choice, timeout: float | None) -> Acquisition:
    """`wait_in_thread` for asyncio, without blocking the event loop.

    Nothing is awaited after the admission, so that a cancelled task never keeps a charge.
    """
    if _is_hopeless(choice):
        raise LimitExceeded.of(await choice.arejected())
    waiter = TaskWaiter(choice.rank)
    wait = _Wait(choice, waiter, timeout)
    try:
        try:
            while True:
                for store, buckets in wait.begin():
                    await _aenqueue(store, waiter, buckets)
                free = wait.free()
                admitted = await choice.aacquire(free) if free else None
                if admitted is not None:
                    return admitted
                if wait.is_last:
                    raise LimitTimeout.of(await choice.arejected())
                for store, buckets in wait.go_on():
                    await _aenqueue(store, waiter, buckets)
                await waiter.sleep(wait.pause_seconds())
        finally:
            wait.leave()
    except BaseException:
        wait.leave()  # again, since the first time may have been interrupted
        raise


async def _aenqueue(store: Store, waiter: TaskWaiter, buckets: Sequence[Bucket]) -> None:
    """Queue for these buckets of a store and for no others; the line may have to reach a remote store."""
    if store.remote:
        import asyncio  # only programs that use it pay for its import

        await asyncio.to_thread(store.line.enqueue, waiter, buckets)
    else:
        store.line.enqueue(waiter, buckets)


Queues = list[tuple[Store, list[Bucket]]]
"""For which buckets of each store a waiter queues."""


class _Wait:
    """A wait turn by turn: queue, try while no other waiter is ahead, and sleep until it is worth trying again."""

    is_last = False
    """Whether the time is up, so that this turn is the last one."""

    def __init__(self, choice: Choice, waiter: ThreadWaiter | TaskWaiter, timeout: float | None) -> None:
        self._choice = choice
        self._waiter = waiter
        self._timeout_us = None if timeout is None else round(timeout * SECOND_US)
        self._stores = choice.stores()
        self._clock = self._stores[0].clock
        self._start_us = _local_us(self._clock)
        self._polls = {acquisition: _Poll(acquisition) for acquisition in choice.acquisitions}
        self._available: Sequence[Acquisition] = ()
        self._early_us: dict[Acquisition, int] = {}
        self._queues: dict[Acquisition, Sequence[Bucket]] = {}
        self._pauses_us: list[int | None] = []

    def begin(self) -> Queues:
        """Begin a turn: return for what to queue before acquisitions are tried."""
        left_us = self._left_us()
        self.is_last = left_us is not None and left_us <= 0
        self._available, cooling_us = self._choice.available()
        self._pauses_us = [left_us, cooling_us]
        self._queues = {acquisition: acquisition.plan.buckets for acquisition in self._available}
        return self._queued()

    def free(self) -> list[Acquisition]:
        """Return the acquisitions that may be tried now: no other waiter is ahead, and it is not too early."""
        for acquisition in self._available:
            self._queues[acquisition] = acquisition.limit_set.store.line.ahead(self._waiter, acquisition.plan.buckets)
        first = [acquisition for acquisition in self._available if not self._queues[acquisition]]
        self._early_us = {
            acquisition: 0 if self.is_last else self._polls[acquisition].early_us() for acquisition in first
        }
        return [acquisition for acquisition, early_us in self._early_us.items() if not early_us]

    def go_on(self) -> Queues:
        """Return for what to queue after nothing was admitted."""
        for acquisition, early_us in self._early_us.items():
            self._queues[acquisition], pause_us = (
                (acquisition.plan.buckets, early_us) if early_us else self._polls[acquisition].next_try()
            )
            self._pauses_us.append(pause_us)
        return self._queued()

    def pause_seconds(self) -> float | None:
        """Return how long to sleep until the next turn; None: until woken."""
        return _seconds(self._pauses_us) if self._clock.moves_by_itself else None

    def leave(self) -> None:
        """End the wait: leave all queues; fast, since it also runs in event loops."""
        self._waiter.active = False
        for store in self._stores:
            store.line.leave(self._waiter)

    def _queued(self) -> Queues:
        queues = []
        for store in self._stores:
            buckets = [
                bucket
                for acquisition, some in self._queues.items()
                if acquisition.limit_set.store is store
                for bucket in some
            ]
            queues.append((store, buckets))
        return queues

    def _left_us(self) -> int | None:
        """Return the rest of the timeout, None without one.

        A clock of the store that is set makes no timeout longer or shorter, and clocks that a test has frozen end it
        too.
        """
        if self._timeout_us is None:
            return None
        passed_us = _local_us(self._clock) - self._start_us
        return self._timeout_us - max(passed_us, round(self._waiter.slept_seconds * SECOND_US))


def _is_hopeless(choice: Choice) -> bool:
    """Whether waiting cannot help: all are blocked, and no date is known at which that may change."""
    return all(
        acquisition.is_blocked and acquisition.limit_set.changes_at is None for acquisition in choice.acquisitions
    )


def _seconds(pauses_us: Iterable[int | None]) -> float | None:
    """The shortest of the pauses in seconds; None where all are None."""
    shortest = min([pause_us for pause_us in pauses_us if pause_us is not None], default=None)
    return None if shortest is None else min(max(shortest, 0) / SECOND_US, _LONGEST_SLEEP_SECONDS)


class _Poll:
    """When a waiter tries an acquisition again without being woken.

    A store with `poll_us` is polled for permits. Where its two intervals differ, they start at the shortest one and
    double with every refusal that finds the same holders. Other holders than before mean that processes compete.
    Then no waiter of this process tries before its interval has passed, not even after a release in this process:
    otherwise the process that has just released a permit would nearly always be the first that tries again.
    """

    def __init__(self, acquisition: Acquisition) -> None:
        self._store = acquisition.limit_set.store
        self._claim: Claim = acquisition
        self._permits = acquisition.shape.permits
        self._buckets = [self._claim.plan.buckets[limit.position] for limit in self._permits]
        self._fences: list[int] = []
        self._interval_us = 0
        self._due_at: int | None = None

    def early_us(self) -> int:
        """Microseconds until the acquisition may be tried."""
        store = self._store
        if not self._permits or store.poll_us is None:
            return 0
        now = _local_us(store.clock)
        if not store.line.has_competitors(self._buckets, now):
            return 0
        if self._due_at is None:
            self._due_at = now + _spread(store.poll_us[0])
        return max(self._due_at - now, 0)

    def next_try(self) -> tuple[Sequence[Bucket], int]:
        """The buckets that refused, and after how many microseconds to try again at the latest."""
        store, claim = self._store, self._claim
        buckets, wait_us = claim.refusal()
        pause_us = round(jittered(wait_us, above=min(_JITTER_US, wait_us / 10)))
        pause_us -= max(store.clock() - claim.decided_at, 0)  # below 0, the clock was set back since
        if self._permits and store.poll_us is not None:
            pause_us = min(pause_us, self._interval(*store.poll_us))
        return buckets, pause_us

    def _interval(self, shortest_us: int, longest_us: int) -> int:
        now = _local_us(self._store.clock)
        fences = [self._claim.states[limit.position][2] for limit in self._permits]
        if fences == self._fences:
            self._interval_us = min(2 * self._interval_us, longest_us)
        else:
            if self._fences and shortest_us < longest_us:
                self._store.line.note_competitors(self._buckets, now, 2 * longest_us)
            self._fences, self._interval_us = fences, shortest_us
        pause_us = _spread(self._interval_us)
        self._due_at = now + pause_us
        return pause_us


def _local_us(clock: Clock) -> int:
    """The time by a clock of this machine, for event loops must not ask a server for its time."""
    return monotonic_ns() // 1000 if clock.moves_by_itself else clock()


def _spread(interval_us: int) -> int:
    """An interval between half and one and a half times as long, so that processes do not poll in step."""
    return round(jittered(interval_us, below=interval_us / 2, above=interval_us / 2))

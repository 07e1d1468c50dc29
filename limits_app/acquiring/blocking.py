"""Blocking acquires: wait, in a thread or a task, until one of several acquisitions is admitted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from random import random
from time import monotonic_ns
from typing import Final, SupportsFloat

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.alternatives import Alternatives, Procedure, enqueue, run, run_in_task, sleep
from limits_app.acquiring.extension import cancel_all
from limits_app.acquiring.store import Store
from limits_app.acquiring.waiting import TaskWaiter, ThreadWaiter, Waiter
from limits_app.engine.algorithms.rule import NEVER_US
from limits_app.engine.amounts import shown
from limits_app.engine.clock import Clock
from limits_app.engine.errors import InvalidRequest, LimitExceeded, LimitTimeout
from limits_app.engine.limits import Blocked
from limits_app.engine.plan import Bucket

logger = logging.getLogger("limits_app")

_SECOND: Final = 1_000_000
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
    return None if timeout >= NEVER_US / _SECOND else float(timeout)


def must_wait(acquisition: Acquisition) -> bool:
    """Whether a request may not be tried immediately, since others wait, in this process or presumably in another.

    A process that takes permits again and again never sees the waiters of others in a store that cannot wake them, so
    once in the longest poll interval one of its requests waits for a short one.
    """
    store, claim = acquisition.limit_set.store, acquisition.claim
    permits = claim.shape.permits
    line = store.line
    if line.busy or not permits or store.poll_us is None or store.poll_us[0] == store.poll_us[1]:
        return line.busy
    shortest_us, longest_us = store.poll_us
    buckets, now = [claim.plan.buckets[limit.place] for limit in permits], _local_us(store.clock)
    since_us = now - line.yielded_at
    if not 0 <= since_us < longest_us:
        line.yielded_at = now
        if since_us < 2 * longest_us:
            line.note_competitors(buckets, now, 2 * shortest_us)
    return line.has_competitors(buckets, now)


def wait_in_thread(alternatives: Alternatives, timeout: float | None) -> Acquisition:
    """Wait until one acquisition is admitted and return it, for at most `timeout` seconds.

    Raises LimitTimeout when the time is up, and LimitExceeded immediately where waiting cannot help.
    When it raises, or a signal handler does, the waiter has left all queues and nothing stays charged.
    """
    waiter, stores = ThreadWaiter(), alternatives.stores()
    try:
        admitted = run(_wait(alternatives, waiter, timeout))
        _leave(stores, waiter)
    except BaseException:
        waiter.active = False
        try:
            _leave(stores, waiter)
        finally:
            cancel_all(alternatives.acquisitions)
        raise
    return admitted


async def wait_in_task(alternatives: Alternatives, timeout: float | None) -> Acquisition:
    """`wait_in_thread` for asyncio, without blocking the event loop.

    Nothing is awaited after the admission, so that a cancelled task never keeps a charge.
    """
    waiter, stores = TaskWaiter(), alternatives.stores()
    try:
        admitted = await run_in_task(_wait(alternatives, waiter, timeout))
        _leave(stores, waiter)
    except BaseException:
        waiter.active = False
        try:
            _leave(stores, waiter)
        finally:
            # A remote store refunds by itself what a cancelled task was charged.
            cancel_all([one for one in alternatives.acquisitions if not one.limit_set.store.remote])
        raise
    return admitted


def _leave(stores: Iterable[Store], waiter: Waiter) -> None:
    """Leave all queues; fast, since it also runs in event loops."""
    for store in stores:
        store.line.leave(waiter)


def _wait(
    alternatives: Alternatives, waiter: ThreadWaiter | TaskWaiter, timeout: float | None
) -> Procedure[Acquisition]:
    """The procedure of a wait: queue, try while no other waiter is ahead, and sleep until it is worth trying again."""
    if all(_is_hopeless(one) for one in alternatives.acquisitions):
        raise LimitExceeded.of((yield from alternatives.refused()))
    stores = alternatives.stores()
    clock = stores[0].clock
    time_left_us, polls = _deadline(clock, waiter, timeout), {one: _Poll(one) for one in alternatives.acquisitions}
    while True:
        left_us = time_left_us()
        is_last = left_us is not None and left_us <= 0
        available, cooling_us = alternatives.available()
        # Queued before the store is asked, so that every later release wakes this waiter.
        yield from _enqueue(stores, waiter, [(one, one.claim.plan.buckets) for one in available])
        queues: dict[Acquisition, Sequence[Bucket]] = {
            one: one.limit_set.store.line.ahead(waiter, one.claim.plan.buckets) for one in available
        }
        first = {one: 0 if is_last else polls[one].early_us() for one in available if not queues[one]}
        free = [one for one, early_us in first.items() if not early_us]
        admitted = (yield from alternatives.acquire(free)) if free else None
        if admitted is not None:
            return admitted
        if is_last:
            raise LimitTimeout.of((yield from alternatives.refused()))
        pauses_us = [left_us, cooling_us]
        for one, early_us in first.items():
            queues[one], pause_us = (one.claim.plan.buckets, early_us) if early_us else polls[one].next_try()
            pauses_us.append(pause_us)
        yield from _enqueue(stores, waiter, queues.items())
        yield sleep(waiter, _seconds(pauses_us) if clock.moves_by_itself else None)


def _enqueue(
    stores: Iterable[Store], waiter: Waiter, wanted: Iterable[tuple[Acquisition, Iterable[Bucket]]]
) -> Procedure[None]:
    """Queue for the buckets of each acquisition, and for no others."""
    for store in stores:
        mine = [bucket for one, buckets in wanted if one.limit_set.store is store for bucket in buckets]
        yield enqueue(store, waiter, mine)


def _is_hopeless(acquisition: Acquisition) -> bool:
    """Whether waiting cannot help: it is blocked, and no date is known at which that may change."""
    if acquisition.limit_set.changes_at is not None:
        return False
    return any(isinstance(limit.rule.limit, Blocked) for limit in acquisition.claim.shape.limits)


def _seconds(pauses_us: Iterable[int | None]) -> float | None:
    """The shortest of the pauses in seconds; None where all are None."""
    shortest = min([pause_us for pause_us in pauses_us if pause_us is not None], default=None)
    return None if shortest is None else min(max(shortest, 0) / _SECOND, _LONGEST_SLEEP_SECONDS)


def _deadline(clock: Clock, waiter: ThreadWaiter | TaskWaiter, timeout: float | None) -> Callable[[], int | None]:
    """Start a timeout; return a function for the microseconds that are left, None without a timeout.

    A clock of the store that is set makes no timeout longer or shorter, and clocks that a test has frozen end it too.
    """
    start_us = _local_us(clock)

    def left_us() -> int | None:
        if timeout is None:
            return None
        return round(timeout * _SECOND) - max(_local_us(clock) - start_us, round(waiter.slept_seconds * _SECOND))

    return left_us


class _Poll:
    """When a waiter tries an acquisition again without being woken.

    A store with `poll_us` is polled for permits. Where its two intervals differ, they start at the shortest one and
    double with every refusal that finds the same holders. Other holders than before mean that processes compete.
    Then no waiter of this process tries before its interval has passed, not even after a release in this process:
    otherwise the process that has just released a permit would nearly always be the first that tries again.
    """

    def __init__(self, acquisition: Acquisition) -> None:
        self._store = acquisition.limit_set.store
        self._claim = acquisition.claim
        self._permits = acquisition.claim.shape.permits
        self._buckets = [self._claim.plan.buckets[limit.place] for limit in self._permits]
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
        pause_us = wait_us + round(random() * min(_JITTER_US, wait_us / 10))
        pause_us -= max(store.clock() - claim.decided_at, 0)  # below 0, the clock was set back since
        if self._permits and store.poll_us is not None:
            pause_us = min(pause_us, self._interval(*store.poll_us))
        return buckets, pause_us

    def _interval(self, shortest_us: int, longest_us: int) -> int:
        now = _local_us(self._store.clock)
        fences = [self._claim.states[limit.place][2] for limit in self._permits]
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
    return round(interval_us * (0.5 + random()))

"""Blocking acquires: wait, in a thread or a task, until one of several acquisitions is admitted."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from random import random
from time import monotonic_ns
from typing import Final

from limits_app.core.acquisition import Acquisition
from limits_app.core.algorithms import State
from limits_app.core.algorithms.rule import NEVER_US
from limits_app.core.amounts import shown
from limits_app.core.clock import Clock
from limits_app.core.errors import InvalidRequest, LimitExceeded, LimitTimeout
from limits_app.core.limits import Blocked
from limits_app.core.plan import Bucket
from limits_app.core.steps import Alternatives, Enqueue, Sleep, Steps, run, run_in_task
from limits_app.core.store import Store
from limits_app.core.waiting import TaskWaiter, ThreadWaiter, Waiter

__all__ = ["checked_timeout", "wait_in_task", "wait_in_thread"]

logger = logging.getLogger("limits_app")

_SECOND: Final = 1_000_000
_JITTER_US: Final = 500
_LONGEST_SLEEP_SECONDS: Final = 3600.0


def checked_timeout(timeout: float | None, rule: str = "timeout must be None or seconds") -> float | None:
    """The timeout in seconds, or None where it never ends; InvalidRequest unless it is None or a number, 0 or more."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidRequest(f"{rule}, 0 or more, not {shown(timeout)}")
    return None if timeout >= NEVER_US / _SECOND else float(timeout)


def wait_in_thread(alternatives: Alternatives, timeout: float | None) -> Acquisition:
    """Wait until one acquisition is admitted and return it, for at most `timeout` seconds.

    Raises LimitTimeout when the time is up, and LimitExceeded immediately where waiting cannot help.
    When it raises, or a signal handler does, the waiter has left all queues and nothing stays charged.
    """
    waiter, stores = ThreadWaiter(), alternatives.stores()
    try:
        admitted = run(_wait(alternatives, waiter, timeout), waiter.sleep)
        _leave(stores, waiter)
    except BaseException:
        waiter.active = False
        try:
            _leave(stores, waiter)
        finally:
            _cancel(alternatives.acquisitions)
        raise
    return admitted


async def wait_in_task(alternatives: Alternatives, timeout: float | None) -> Acquisition:
    """`wait_in_thread` for asyncio, without blocking the event loop.

    Nothing is awaited after the admission, so that a cancelled task never keeps what was charged for it.
    """
    waiter, stores = TaskWaiter(), alternatives.stores()
    try:
        admitted = await run_in_task(_wait(alternatives, waiter, timeout), waiter.sleep)
        _leave(stores, waiter)
    except BaseException:
        waiter.active = False
        try:
            _leave(stores, waiter)
        finally:
            # A remote store refunds by itself what a cancelled task was charged.
            _cancel([one for one in alternatives.acquisitions if not one.limit_set.store.remote])
        raise
    return admitted


def _leave(stores: Iterable[Store], waiter: Waiter) -> None:
    """Leave all queues; fast, since it also runs in event loops."""
    for store in stores:
        store.line.leave(waiter)


def _cancel(acquisitions: Iterable[Acquisition]) -> None:
    """Refund what was admitted; an error of the store does not hide the exception that ended the wait."""
    for one in acquisitions:
        try:
            one.cancel()
        except Exception:
            logger.warning("an acquisition could not be cancelled after an interrupted wait", exc_info=True)


def _wait(alternatives: Alternatives, waiter: Waiter, timeout: float | None) -> Steps[Acquisition]:
    """The procedure of a wait: queue, try while no other waiter is ahead, and sleep until it is worth trying again."""
    if all(_is_hopeless(one) for one in alternatives.acquisitions):
        raise LimitExceeded.of((yield from alternatives.refused()))
    stores = alternatives.stores()
    clock = stores[0].clock
    deadline, polls = _Deadline(clock, timeout), _Polls()
    while True:
        available, cooling_us = alternatives.available()
        # Queued before the store is asked, so that every later release wakes this waiter.
        yield from _enqueue(stores, waiter, [(one, one.claim.plan.buckets) for one in available])
        queues = {one: one.limit_set.store.line.ahead(waiter, one.claim.plan.buckets) for one in available}
        free = [one for one in available if not queues[one]]
        admitted = (yield from alternatives.acquire(free)) if free else None
        if admitted is not None:
            return admitted
        pauses_us = [cooling_us]
        for one in free:
            queues[one], pause_us = polls.next_try(one)
            pauses_us.append(pause_us)
        yield from _enqueue(stores, waiter, queues.items())
        left_us = deadline.left_us()
        if left_us is not None and left_us <= 0:
            raise LimitTimeout.of((yield from alternatives.refused()))
        yield Sleep(_seconds([*pauses_us, left_us]) if clock.moves_by_itself else None)


def _enqueue(
    stores: Iterable[Store], waiter: Waiter, wanted: Iterable[tuple[Acquisition, Iterable[Bucket]]]
) -> Steps[None]:
    """Queue for the buckets of each acquisition, and for no others."""
    for store in stores:
        mine = [bucket for one, buckets in wanted if one.limit_set.store is store for bucket in buckets]
        yield Enqueue(store, waiter, mine)


def _is_hopeless(acquisition: Acquisition) -> bool:
    """Whether waiting cannot help: it is blocked, and no date is known at which that may change."""
    if acquisition.limit_set.changes_at is not None:
        return False
    return any(isinstance(limit.rule.limit, Blocked) for limit in acquisition.claim.plan.limits)


def _seconds(pauses_us: Iterable[int | None]) -> float | None:
    """The shortest of the pauses in seconds; None where all are None."""
    shortest = min([pause_us for pause_us in pauses_us if pause_us is not None], default=None)
    return None if shortest is None else min(max(shortest, 0) / _SECOND, _LONGEST_SLEEP_SECONDS)


class _Deadline:
    """The end of a timeout by the clock of the store, or by the monotonic clock where that is earlier.

    So a clock that is set back makes no timeout longer.
    """

    def __init__(self, clock: Clock, timeout: float | None) -> None:
        self._clock = clock
        self._timeout_us = None if timeout is None else round(timeout * _SECOND)
        self._start_us = clock()
        self._monotonic_start_us = monotonic_ns() // 1000

    def left_us(self) -> int | None:
        """Microseconds until the end, None without a timeout."""
        if self._timeout_us is None:
            return None
        elapsed = self._clock() - self._start_us
        if self._clock.moves_by_itself:
            elapsed = max(elapsed, monotonic_ns() // 1000 - self._monotonic_start_us)
        return self._timeout_us - elapsed


class _Polls:
    """When a waiter tries refused acquisitions again.

    Permits of a store with `poll_us` are tried again after the shortest interval, which doubles up to the longest one
    with every refusal that finds the same holders. New holders mean that permits are free for short times.
    """

    def __init__(self) -> None:
        self._seen: dict[Acquisition, tuple[list[State], int]] = {}

    def next_try(self, refused: Acquisition) -> tuple[list[Bucket], int]:
        """The buckets that refused, and after how many microseconds to try again at the latest."""
        store = refused.limit_set.store
        buckets, wait_us = refused.claim.refusal()
        until = refused.claim.decided_at + wait_us + round(random() * min(_JITTER_US, wait_us / 10))
        if refused.claim.plan.permits and store.poll_us is not None:
            interval_us = self._interval_us(refused, *store.poll_us)
            until = min(until, refused.claim.decided_at + round(interval_us * (0.5 + random())))
        return buckets, until - store.clock()

    def _interval_us(self, refused: Acquisition, shortest_us: int, longest_us: int) -> int:
        holders = [refused.claim.states[limit.place] for limit in refused.claim.plan.permits]
        before, interval_us = self._seen.get(refused, ([], 0))
        interval_us = min(2 * interval_us, longest_us) if holders == before else shortest_us
        self._seen[refused] = holders, interval_us
        return interval_us

"""Taking turns: the one course of waiting, driven by threads and by tasks alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from random import random
from time import monotonic_ns
from typing import Final, TypeVar

from limits_app.core.acquisition import Acquisition
from limits_app.core.algorithms.rule import NEVER_US
from limits_app.core.amounts import shown
from limits_app.core.choosing import Choice, earliest
from limits_app.core.clock import Clock
from limits_app.core.errors import InvalidRequest, LimitExceeded, LimitTimeout
from limits_app.core.limits import Blocked
from limits_app.core.plan import Bucket
from limits_app.core.steps import Pause, Peek, Stand, Steps, take_all, take_all_in_task
from limits_app.core.store import Store, is_remote
from limits_app.core.waiting import TaskWaiter, ThreadWaiter, Waiter

__all__ = ["seconds_of", "wait_in_task", "wait_in_thread"]

logger = logging.getLogger("limits_app")

W = TypeVar("W", bound=Waiter)

_SECOND: Final = 1_000_000
_JITTER_US: Final = 500
_LONGEST_PAUSE: Final = 3600.0
_MONOTONIC: Final = Clock(lambda: monotonic_ns() // 1000)


def seconds_of(timeout: float | None, rule: str = "timeout must be None or seconds") -> float | None:
    """Check a timeout; InvalidRequest unless it is None or a number of seconds, 0 or more. None for what never ends."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidRequest(f"{rule}, 0 or more, not {shown(timeout)}")
    return None if timeout >= NEVER_US / _SECOND else float(timeout)


def wait_in_thread(choice: Choice, timeout: float | None) -> Acquisition:
    """Wait until one is admitted, and give it; LimitTimeout when the time is up, LimitExceeded where none ever is.

    Whatever ends the wait, nothing else stays held.
    """
    waiter = ThreadWaiter()
    places = _places(choice, waiter)
    try:
        try:
            return take_all(_admission(choice, places, timeout), waiter.sleep)
        finally:
            _leave(places)
    except BaseException:
        # Perhaps interrupted after it was admitted and before anybody knew.
        _give_back(choice.wanted)
        raise


async def wait_in_task(choice: Choice, timeout: float | None) -> Acquisition:
    """`wait_in_thread` for asyncio, without blocking the event loop.

    Nothing is awaited once it is admitted, so that nobody can be cancelled who has what nobody would give back.
    """
    waiter = TaskWaiter()
    places = _places(choice, waiter)
    try:
        try:
            return await take_all_in_task(_admission(choice, places, timeout), waiter.sleep)
        finally:
            _leave(places)
    except BaseException:
        # A store far away gives back by itself what a cancelled task was charged.
        _give_back([one for one in choice.wanted if not is_remote(one.limit_set.store)])
        raise


def _give_back(wanted: Iterable[Acquisition]) -> None:
    """Cancel whatever was admitted; what a store does not take back hides nothing else."""
    for one in wanted:
        try:
            one.cancel()
        except Exception:
            logger.warning("what was waited for could not be given back", exc_info=True)


def _places(choice: Choice, waiter: W) -> dict[Store, W]:
    """What stands for a waiter in the lines of each store: whoever wakes one of them wakes it."""
    return {store: copy(waiter) for store in choice.stores}


def _leave(places: dict[Store, W]) -> None:
    """Leave the lines of all stores, which takes no time anywhere: nobody has to be asked.

    What stood there is forgotten, so that it is also gone where this is interrupted.
    """
    while places:
        store, place = places.popitem()
        store.line.stand(place, ())


def _admission(choice: Choice, places: Mapping[Store, Waiter], timeout: float | None) -> Steps[Acquisition]:
    """The steps of whoever wants to wait; LimitExceeded at once where that is no use."""
    if all(map(_is_hopeless, choice.wanted)):
        raise LimitExceeded.of((yield from _refused(choice)))
    return (yield from _turns(choice, places, timeout))


def _turns(choice: Choice, places: Mapping[Store, Waiter], timeout: float | None) -> Steps[Acquisition]:
    """The steps of a waiter until it is admitted or its time is up."""
    clock = choice.stores[0].clock
    time_left = _timer(clock, timeout)
    while True:
        present, rest_us = choice.present()
        # In line before asking, so that nothing that is given back meanwhile goes unnoticed.
        yield from _stand(places, [(one, one.claim.plan.buckets) for one in present])
        blocking = [(one, _ahead(one, places)) for one in present]
        free = [one for one, others in blocking if not others]
        if free:
            admitted = yield from choice.asking(free)
            if admitted is not None:
                return admitted
        pauses = [] if rest_us is None else [rest_us]
        for place, (one, others) in enumerate(blocking):
            if not others:
                buckets, pause = _next_try(one)
                blocking[place] = one, buckets
                pauses.append(pause)
        yield from _stand(places, blocking)
        left = time_left()
        if left is not None:
            if left <= 0:
                raise LimitTimeout.of((yield from _refused(choice)))
            pauses.append(left)
        yield Pause(_seconds(pauses) if clock.moves_by_itself else None)


def _timer(clock: Clock, timeout: float | None) -> Callable[[], int | None]:
    """Says how many microseconds are left (None: any number); a clock that is set back makes that no longer."""
    clocks = (clock, _MONOTONIC) if clock.moves_by_itself else (clock,)
    span = None if timeout is None else round(timeout * _SECOND)
    starts = [one() for one in clocks]

    def left() -> int | None:
        elapsed = [one() - start for one, start in zip(clocks, starts, strict=True)]
        return None if span is None else span - max(elapsed)

    return left


def _stand(places: Mapping[Store, Waiter], wanted: Iterable[tuple[Acquisition, Iterable[Bucket]]]) -> Steps[None]:
    """Stand in the lines of what is wanted of each, and in no others."""
    for store, waiter in places.items():
        mine = [bucket for one, buckets in wanted if one.limit_set.store is store for bucket in buckets]
        yield Stand(store, waiter, tuple(dict.fromkeys(mine)))


def _ahead(one: Acquisition, places: Mapping[Store, Waiter]) -> list[Bucket]:
    """The buckets for which somebody else has waited longer."""
    store = one.limit_set.store
    return store.line.ahead(places[store], one.claim.plan.buckets)


def _next_try(refused: Acquisition) -> tuple[list[Bucket], int]:
    """The buckets that refused, and in how many microseconds they are to be asked again at the latest."""
    store = refused.limit_set.store
    buckets, wait = refused.claim.refusal()
    until = refused.claim.decided_at + wait + round(random() * min(_JITTER_US, wait / 10))
    if refused.claim.plan.permits and store.patience_us is not None:
        until = min(until, refused.claim.decided_at + store.patience_us)
    return buckets, until - store.clock()


def _seconds(pauses: Iterable[int]) -> float | None:
    """Seconds to sleep: for the shortest of the pauses in microseconds; None until woken."""
    shortest = min(pauses, default=None)
    return None if shortest is None else min(max(shortest, 0) / _SECOND, _LONGEST_PAUSE)


def _is_hopeless(one: Acquisition) -> bool:
    """Whether no waiting helps: it is blocked, and no date is known that may change that."""
    return one.limit_set.changes_at is None and any(
        isinstance(limit.rule.limit, Blocked) for limit in one.claim.plan.limits
    )


def _refused(choice: Choice) -> Steps[Acquisition]:
    """The one whose refusal would be over first; with a look at one where nobody was asked."""
    refused = [one for one in choice.wanted if one.claim.admitted is False]
    if not refused:
        refused = [choice.wanted[0]]
        yield Peek(refused[0].limit_set.store, refused[0])
    return earliest(refused)

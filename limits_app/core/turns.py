"""Taking turns: the one course of waiting, driven by threads and by tasks alike."""

from __future__ import annotations

import math
from collections.abc import Generator
from random import random
from typing import Final

from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import shown
from limits_app.core.claim import Claim
from limits_app.core.errors import InvalidRequest, LimitTimeout
from limits_app.core.store import Store
from limits_app.core.waiting import Waiter

__all__ = ["seconds_of", "turns"]

_SECOND: Final = 1_000_000
_JITTER_US: Final = 500
_LONGEST_PAUSE: Final = 3600.0


def seconds_of(timeout: float | None) -> float | None:
    """Check a timeout; InvalidRequest unless it is None or a number of seconds, 0 or more."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or math.isnan(timeout) or timeout < 0:
        raise InvalidRequest(f"timeout must be None or seconds, 0 or more, not {shown(timeout)}")
    return None if math.isinf(timeout) else float(timeout)


def turns(acquisition: Acquisition, store: Store, waiter: Waiter, timeout: float | None) -> Generator[float | None]:
    """Ask the store whenever it is the waiter's turn, until it admits; yields how long to sleep in between.

    Raises LimitTimeout when the time is up; whatever ends the wait, nothing stays held.
    """
    line, clock, plan = store.line, store.clock, acquisition.plan
    deadline = None if timeout is None else clock() + round(timeout * _SECOND)
    try:
        while True:
            # In line before asking, so that nothing that is given back meanwhile goes unnoticed.
            line.stand(waiter, plan.buckets)
            until = None
            blocking = line.ahead(waiter, plan.buckets)
            if not blocking:
                if store.acquire(acquisition):
                    return
                blocking, until = _next_try(acquisition, store)
            line.stand(waiter, blocking)
            now = clock()
            if deadline is not None and now >= deadline:
                raise _timed_out(acquisition, store)  # noqa: TRY301 - what was admitted is given back below
            yield _pause(store, now, until, deadline)
    except BaseException:
        # Interrupted after it was admitted and before anybody knew.
        acquisition.cancel()
        raise
    finally:
        line.stand(waiter, ())


def _next_try(claim: Claim, store: Store) -> tuple[list[tuple[str, str]], int | None]:
    """The buckets that refused, and when they are to be asked again at the latest."""
    buckets, wait = claim.violated()
    until = claim.decided_at + wait + round(random() * min(_JITTER_US, wait / 10))
    if claim.plan.permits and store.patience_us is not None:
        until = min(until, claim.decided_at + store.patience_us)
    return buckets, until


def _pause(store: Store, now: int, until: int | None, deadline: int | None) -> float | None:
    """Seconds to sleep; None until woken, which is also how a clock moved by hand ends a pause."""
    moments = [moment for moment in (until, deadline) if moment is not None]
    if not moments or not store.clock.moves_by_itself:
        return None
    return min(max(min(moments) - now, 0) / _SECOND, _LONGEST_PAUSE)


def _timed_out(acquisition: Acquisition, store: Store) -> LimitTimeout:
    if acquisition.admitted is None:
        store.peek(acquisition)
    return LimitTimeout(acquisition.outcome)

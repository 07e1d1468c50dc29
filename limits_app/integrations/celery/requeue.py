"""When a rejected task is tried again.

If all tasks came back at the time that a rejection names, a thousand waiting tasks would be tried for each one that is
admitted. So each rejected task takes a position in a queue that all processes share: a limit of the same rate in the
same store, which admits everything and reports a time. A position is only an estimate: the task still has to acquire
its limits. The queue moves a little faster than the limit, so that a task is always ready when capacity is free. A task
that comes too early is tried once more at the time that the rejection names, and then takes another position.
"""

from __future__ import annotations

import math
from typing import Final

from limits_app.core import backoff
from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.keys import Scope, line_scope
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm
from limits_app.core.plan import ScopedLimits
from limits_app.core.record import schema_of
from limits_app.core.store import Store

_KEY: Final = "line"
_QUEUE_SPEED: Final = 0.95
"""The time in which the queue moves by what the limit admits in 1."""
_SHORTEST_WINDOW_SECONDS: Final = 0.001
_LONGEST_QUEUE_SECONDS: Final = 3600.0
_FEWEST_WINDOWS: Final = 100
_LARGEST_BURST: Final = 10**12
_FIRST_POLL_SECONDS: Final = 0.25
_LONGEST_POLL_SECONDS: Final = 4.0


def seconds_to_wait(refused: Acquisition, tries: int) -> float:
    """Return after how many seconds a rejected request is tried again, before jitter; `tries` counts earlier attempts.

    Nothing predicts when another task returns a permit: those are polled, at growing intervals.
    """
    binding = refused.outcome.binding
    if binding is None or binding.retry_after is None:
        return backoff.delay(tries + 1, first=_FIRST_POLL_SECONDS, cap=_LONGEST_POLL_SECONDS)
    if tries % 2:  # the last wait was a position in the queue
        return binding.retry_after
    for planned in refused.claim.plan.limits:
        limit, scope = planned.rule.limit, planned.scope.scope
        is_binding = (planned.rule.key, scope.resource, scope.entity) == (binding.key, binding.resource, binding.entity)
        if is_binding and isinstance(limit, RateLimit | CallLimit):
            return max(binding.retry_after, _enqueue(refused.limit_set.store, scope, limit, binding.requested))
    return binding.retry_after


def jittered(seconds: float, longest: float) -> float:
    """Return the seconds with a random addition of about a tenth; at most `longest` in all."""
    return backoff.jittered(min(seconds, longest * 0.9), above=min(0.1 * seconds + 0.01, 1.0, 0.1 * longest))


def _enqueue(store: Store, scope: Scope, limit: RateLimit | CallLimit, amount: Amount) -> float:
    """Take a position at the end of the queue; return the seconds until it is reached."""
    window = max(limit.window_seconds * _QUEUE_SPEED, _SHORTEST_WINDOW_SECONDS)
    length = limit.capacity * max(_FEWEST_WINDOWS, math.ceil(_LONGEST_QUEUE_SECONDS / window))
    rate = RateLimit(_KEY, limit.capacity, window, algorithm=RateLimitAlgorithm.GCRA, burst=min(length, _LARGEST_BURST))
    scoped = ScopedLimits(line_scope(scope, limit.key), schema_of((rate,), store.lease_us))
    taken = LimitSet.composed((scoped,), store).try_acquire({_KEY: amount})
    taken.release()
    # Where the queue is full, its end is as good as any other time.
    return max(status.reset_after for status in (*taken.outcome.passed, *taken.outcome.violations))

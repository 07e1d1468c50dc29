"""The line: when a refused task is worth another try.

If all came back at the moment that the refusal names, a thousand waiting tasks would be tried for each one that is
admitted. So each takes a place in a line that all processes share: a limit of the same rate in the same store, which
lets everybody in and says when. A place is no permission: whoever comes is asked like everybody else. The line moves a
little faster than the limit, so that some are always there. Who is refused then is in front, and comes back once at the
moment that the refusal names, so that somebody is there just when there is room again; then it takes another place.
"""

from __future__ import annotations

import math
from random import random
from typing import Final

from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.keys import Scope, line_scope
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm
from limits_app.core.plan import PlannedLimit, ScopedLimits
from limits_app.core.record import schema_of
from limits_app.core.store import Store

__all__ = ["jittered", "seconds_to_wait"]

_KEY: Final = "line"
_LEAD: Final = 0.95
"""How long the line takes for what the limit admits in 1."""
_SHORTEST_WINDOW: Final = 0.001
_LONGEST_SECONDS: Final = 3600.0
_LEAST_WINDOWS: Final = 100
_MOST: Final = 10**12

_FIRST_LOOK: Final = 0.25
_LAST_LOOK: Final = 4.0


def seconds_to_wait(refused: Acquisition, tries: int) -> float:
    """In how many seconds a refused request is worth another try, before jitter; `tries` is how many it has had.

    A permit comes back when somebody gives it back, which nobody can foretell: for that one looks again and again,
    less often each time.
    """
    binding = refused.outcome.binding
    if binding is None or binding.retry_after is None:
        return min(_FIRST_LOOK * 2.0 ** min(tries, 10), _LAST_LOOK)
    if tries % 2:  # it comes from the line
        return binding.retry_after
    for planned in refused.claim.plan.limits:
        limit = planned.rule.limit
        if isinstance(limit, RateLimit | CallLimit) and _is_of(planned, binding.key, binding.resource, binding.entity):
            place = _place(refused.limit_set.store, planned.scope.scope, limit, binding.requested)
            return max(binding.retry_after, place)
    return binding.retry_after


def jittered(seconds: float, most: float) -> float:
    """So many seconds and a little more, `most` at the most."""
    return min(seconds, most * 0.9) + random() * min(0.1 * seconds + 0.01, 1.0, 0.1 * most)


def _is_of(planned: PlannedLimit, key: str, resource: str | None, entity: str | None) -> bool:
    scope = planned.scope.scope
    return (planned.rule.key, scope.resource, scope.entity) == (key, resource, entity)


def _place(store: Store, scope: Scope, limit: RateLimit | CallLimit, amount: Amount) -> float:
    """Take a place at the end of the line: seconds until it is its turn."""
    window = max(limit.window_seconds * _LEAD, _SHORTEST_WINDOW)
    length = limit.capacity * max(_LEAST_WINDOWS, math.ceil(_LONGEST_SECONDS / window))
    moving = RateLimit(_KEY, limit.capacity, window, algorithm=RateLimitAlgorithm.GCRA, burst=min(length, _MOST))
    waiting = ScopedLimits(line_scope(scope, limit.key), schema_of((moving,), store.lease_us))
    taken = LimitSet.composed((waiting,), store).try_acquire({_KEY: amount})
    taken.release()
    # Where the line is too long to stand in, its end is as good as any other time.
    return max(status.reset_after for status in (*taken.outcome.passed, *taken.outcome.violations))

"""What classes may override of the framework's throttles, and read from them, besides rates and keys."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from rest_framework import throttling
from rest_framework.request import Request

from limits_app import services
from limits_app.core.amounts import Amount
from limits_app.core.errors import NeverAdmissible, StoreUnavailable
from limits_app.core.limits import CallLimit
from limits_app.core.outcome import Outcome
from limits_app.integrations.amounts import so_much_of_each
from limits_app.integrations.charges import ONE_OF_EACH
from limits_app.integrations.drf.throttle import LimitThrottle, decides_with_others
from limits_app.resolver import CALL
from limits_app.services import Share
from limits_app.services.asking import Asked

if TYPE_CHECKING:
    from rest_framework.views import APIView

__all__ = ["HookedThrottle"]

_THROTTLE_SUCCESS: Final = throttling.SimpleRateThrottle.throttle_success
_OF_THE_LAST: Final = ("history", "now", "key")


class HookedThrottle(LimitThrottle, throttling.SimpleRateThrottle):
    """Calls `throttle_success` and `throttle_failure`, and has the `history`, `now` and `key` of the last decision.

    A class with an `allow_request` that counts by itself, in `cache`, does so as it would with the framework's.
    """

    num_requests: int | None = None
    duration: int | None = None

    _asked: tuple[Request, APIView] | None = None

    @decides_with_others
    def allow_request(self, request: Request, view: APIView) -> bool:
        """Decide, and ask the hooks, which may decide otherwise."""
        if self._asked is not None:
            self._violations = ()
            for name in _OF_THE_LAST:
                vars(self).pop(name, None)
        self._asked = request, view
        share = self.get_share(request, view)
        if share is None:
            return True
        if type(self).throttle_success is not _THROTTLE_SUCCESS and self.rate is not None:
            return self._allow_as_told(request, view, share)
        return self._is_admitted(request, view, share) or self.throttle_failure()

    @cached_property  # which can be written, whatever mypy says
    def history(self) -> list[float]:  # type: ignore[override]
        """As many times as there are requests that count, newest first; all but the last one are said to be now.

        It is kept in the store of the limits, which is asked for it.
        """
        if self._asked is None:
            raise AttributeError("there is no history before `allow_request` of limits_app was asked")
        share = self.get_share(*self._asked)
        if share is None or self.num_requests is None or self.duration is None:
            return []
        counted, frees = _counted(share, self.num_requests)
        return [self.now] * (counted - 1) + [self.now - self.duration + frees] * (counted > 0)

    @cached_property
    def now(self) -> float:  # type: ignore[override]
        """When it was asked."""
        return float(self.timer())

    @cached_property
    def key(self) -> str | None:  # type: ignore[override]
        """What the framework would keep the history under."""
        return None if self._asked is None else self.get_cache_key(*self._asked)

    def wait(self) -> float | None:
        """Seconds until it is worth trying again; None when that is never, or was not asked for."""
        if not self._violations:  # somebody else refuses
            decided = self.num_requests is not None and (self._asked is not None or "history" in vars(self))
            return throttling.SimpleRateThrottle.wait(self) if decided else None
        if all(status.capacity == 0 and status.level == CALL for status in self._violations):
            return self.duration  # a rate of 0
        return super().wait()

    def _allow_as_told(self, request: Request, view: APIView, share: Share) -> bool:
        """Charge as much as `throttle_success` adds to `history`, which may be nothing."""
        outcome = _peek(share, share.requested)
        if outcome is not None and outcome.allowed:
            before = len(self.history)
            if not self.throttle_success():
                return False
            added = len(self.history) - before
            if added <= 0:
                return True
            # More than what is left is taken as what is left, as the framework lets a history grow too long.
            times = min(added, int(_left(outcome, added)))
            if times > 1:
                cost = self.get_cost(request, view) * times
                share = share._replace(requested=partial(so_much_of_each, cost))
        return self._is_admitted(request, view, share) or self.throttle_failure()


def _counted(share: Share, capacity: int) -> tuple[int, float]:
    """How many requests count, and in how many seconds the oldest one does not any more."""
    outcome = _peek(share)
    left = capacity if outcome is None else _left(outcome, capacity)
    if left >= capacity:
        return 0, 0
    more = _peek(share, partial(so_much_of_each, left + 1))
    return int(capacity - left), 0 if more is None else more.retry_after or 0


def _left(outcome: Outcome, default: Amount) -> Amount:
    """How many calls are left."""
    told = (status.remaining for status in (*outcome.violations, *outcome.passed) if status.key == CallLimit.key)
    return min(told, default=default)


def _peek(share: Share, requested: Asked = None) -> Outcome | None:
    """What would be decided; None while the store is down."""
    try:
        return services.check(
            share.resource,
            entity=share.entity,
            requested=requested or ONE_OF_EACH,
            default_limits=share.default_limits,
        )
    except NeverAdmissible as error:
        return error.outcome
    except StoreUnavailable:
        return None

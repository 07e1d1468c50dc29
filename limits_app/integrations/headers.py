"""Headers that report the remaining amounts of limits, on responses and on refusals.

`draft` is the format of the IETF (draft-ietf-httpapi-ratelimit-headers-10), which takes any number of limits;
`legacy` has room for one, and reports the one that is closest to its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil
from operator import attrgetter
from time import time
from typing import Final, NamedTuple

from django.http.response import HttpResponseBase

from limits_app import conf
from limits_app.conf import Headers
from limits_app.core.acquisition import Acquisition
from limits_app.core.limits import AnyLimit, Blocked, CallLimit, QuotaLimit, RateLimit, ResourceLimit
from limits_app.core.outcome import reset_seconds, whole_remaining

__all__ = ["name_of", "remove_headers", "set_headers"]

_ADDED: Final = "limits_headers"
"""The attribute of a response with the names of the headers that were added to it; a cache keeps it too."""
_FORMAT: Final = conf.HEADERS.name
_BUCKET: Final = attrgetter("resource", "entity", "member", "shared")
"""What identifies the bucket of a limit beside its key, in a scope and in the status of a limit."""
_PERIODS: Final = {"hour": 3_600, "day": 86_400, "week": 604_800}


class _Quota(NamedTuple):
    """What clients learn about one limit; `reset_seconds` is when it is unused again, None for permits."""

    limit: AnyLimit
    remaining: int
    reset_seconds: int | None
    rejected: bool

    def urgency(self) -> tuple[bool, float, int]:
        """How close it is to its end."""
        return self.rejected, -self.remaining / max(self.limit.ceiling, 1), self.reset_seconds or 0


def set_headers(response: HttpResponseBase, acquisitions: Sequence[Acquisition]) -> None:
    """Add headers with the remaining amounts of the limits that were decided for a response."""
    form = conf.current()[_FORMAT] if acquisitions else Headers.NONE
    quotas = {} if form is Headers.NONE else _quotas(acquisitions)
    if not quotas:
        return
    headers = {} if form is Headers.LEGACY else _draft(quotas)
    if form is not Headers.DRAFT:
        headers |= _legacy(max(quotas.values(), key=_Quota.urgency))
    for name, value in headers.items():
        response.headers[name] = value
    setattr(response, _ADDED, tuple(headers))


def remove_headers(response: HttpResponseBase) -> None:
    """Remove the headers that were added for another request, from a response that a cache kept."""
    for name in getattr(response, _ADDED, ()):
        del response.headers[name]


def name_of(resource: str | None, key: str, *, several: bool) -> str:
    """The name of a limit: its key, after its resource where there are several; a total has no resource."""
    return f"{resource}:{key}" if several and resource is not None else key


def _quotas(acquisitions: Sequence[Acquisition]) -> Mapping[str, _Quota]:
    """Return the limits in their order; of several scopes with the same limit, the one that is closest to its end."""
    counted = {one.scope.resource for each in acquisitions for one in each.claim.plan.scopes if not one.degraded}
    several = len(counted) > 1
    found: dict[str, _Quota] = {}
    for acquisition in acquisitions:
        claim = acquisition.claim
        now = claim.decided_at
        rejecting = () if claim.admitted else {(one.key, *_BUCKET(one)) for one in acquisition.outcome.violations}
        for planned in claim.plan.limits:
            rule, scope, state = planned.rule, planned.scope.scope, claim.states[planned.place]
            if planned.scope.degraded:
                continue
            reset = None if isinstance(rule.limit, Blocked) else reset_seconds(rule, state, now)
            rejected = bool(rejecting) and (rule.key, *_BUCKET(scope)) in rejecting
            quota = _Quota(rule.limit, whole_remaining(rule, state, now), reset, rejected)
            name = name_of(scope.resource, rule.key, several=several)
            if name not in found or quota.urgency() >= found[name].urgency():
                found[name] = quota
    return found


def _draft(quotas: Mapping[str, _Quota]) -> dict[str, str]:
    policies, left = [], []
    for name, quota in quotas.items():
        policy, most = _policy(name, quota.limit)
        policies.append(policy)
        text = f'"{name}";r={min(quota.remaining, most)}'  # a burst is no part of the quota
        left.append(text if quota.reset_seconds is None else f"{text};t={quota.reset_seconds}")
    return {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(left)}


@lru_cache(maxsize=4096)
def _policy(name: str, limit: AnyLimit) -> tuple[str, int]:
    """Return the item of a limit, and its `q`, which is whole.

    A capacity below 1 is sent as 1 in a longer window. A window that is not in whole seconds is left out.
    """
    if isinstance(limit, Blocked):
        return f'"{name}";q=0', 0
    most = max(int(limit.capacity), 1)
    if isinstance(limit, ResourceLimit):
        return f'"{name}";q={most};qu="concurrent-requests"', most
    seconds = _window_seconds(limit)
    if seconds is not None and limit.capacity < 1:
        seconds /= limit.capacity
    window = f";w={int(seconds)}" if seconds is not None and float(seconds).is_integer() else ""
    return f'"{name}";q={most}{window}', most


def _window_seconds(limit: RateLimit | CallLimit | QuotaLimit) -> float | None:
    """Return the length of a window as clocks usually have it; None for months."""
    if not isinstance(limit, QuotaLimit):
        return limit.window_seconds
    return _PERIODS.get(limit.period) if limit.period else limit.session_seconds


def _legacy(quota: _Quota) -> dict[str, str]:
    """Return the headers with the time of the reset in seconds since 1970, as most sites send them."""
    headers = {"X-RateLimit-Limit": str(int(quota.limit.ceiling)), "X-RateLimit-Remaining": str(quota.remaining)}
    if quota.reset_seconds is not None:
        headers["X-RateLimit-Reset"] = str(ceil(time()) + quota.reset_seconds)
    return headers

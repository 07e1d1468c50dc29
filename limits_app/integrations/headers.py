"""Headers that tell clients what they have left, on responses and on refusals.

`draft` is that of the IETF (draft-ietf-httpapi-ratelimit-headers-10), which takes any number of limits;
`legacy` has room for one, and tells of the one that is closest to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import ceil
from time import time
from typing import Final, NamedTuple

from django.http.response import HttpResponseBase

from limits_app import conf
from limits_app.conf import Headers
from limits_app.core.acquisition import Acquisition
from limits_app.core.limits import AnyLimit, Blocked, CallLimit, QuotaLimit, RateLimit, ResourceLimit
from limits_app.core.outcome import remaining, reset_seconds
from limits_app.core.plan import Claim

__all__ = ["remove_headers", "set_headers"]

_POLICY: Final = "RateLimit-Policy"
_LEFT: Final = "RateLimit"
_NAMES: Final = (_POLICY, _LEFT, "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
_DRAFT: Final = Headers.DRAFT
_NONE: Final = Headers.NONE
_HEADERS: Final = conf.HEADERS.name
_PERIODS: Final = {"hour": 3_600, "day": 86_400, "week": 604_800}


class _Quota(NamedTuple):
    """One limit as clients are told; `reset_seconds` is when nothing of it is used any more, None for permits."""

    name: str
    limit: AnyLimit
    remaining: int
    reset_seconds: int | None
    refused: bool

    def urgency(self) -> tuple[bool, float, int]:
        """How close it is to its end."""
        return self.refused, -self.remaining / max(self.limit.ceiling, 1), self.reset_seconds or 0


def set_headers(response: HttpResponseBase, acquisitions: Sequence[Acquisition]) -> None:
    """Add headers with the remaining amounts of the limits that were decided for a response."""
    form = conf.current()[_HEADERS]
    if acquisitions and form is not _NONE:
        claims = [acquisition.claim for acquisition in acquisitions]
        for name, value in _together(claims, form).items():
            response.headers[name] = value


def remove_headers(response: HttpResponseBase) -> None:
    """Take away what was said of somebody else."""
    for name in _NAMES:
        del response.headers[name]


def _together(claims: Sequence[Claim], form: Headers) -> dict[str, str]:
    quotas = _quotas(claims)
    if not quotas:
        return {}
    found = {} if form is Headers.LEGACY else _draft(quotas)
    return found if form is _DRAFT else found | _legacy(max(quotas, key=_Quota.urgency))


def _quotas(claims: Iterable[Claim]) -> list[_Quota]:
    """The limits of claims in their order; of several scopes that have the same, the one that is closest to its end."""
    read: list[tuple[str | None, _Quota]] = []
    for claim in claims:
        _read(claim, read)
    if len(read) == 1:
        return [read[0][1]]
    many = len({resource for resource, _ in read}) > 1
    found: dict[str, _Quota] = {}
    for resource, quota in read:
        name = f"{resource}:{quota.name}" if many else quota.name
        other = found.get(name)
        if other is None or quota.urgency() >= other.urgency():
            found[name] = quota._replace(name=name)
    return list(found.values())


def _read(claim: Claim, read: list[tuple[str | None, _Quota]]) -> None:
    """Add the limits of a claim and their resources; states of a part stand in the order of its layout."""
    now = claim.decided_at
    for limit, amount, state in claim.limits():
        rule = limit.rule
        if limit.scope.degraded:
            continue
        left = int(remaining(rule, state, now))
        reset = None if isinstance(rule.limit, Blocked) else reset_seconds(rule, state, now)
        refused = not claim.admitted and rule.charged(state, now, amount) is None
        read.append((limit.scope.scope.resource, _Quota(rule.key, rule.limit, left, reset, refused)))


def _draft(quotas: Iterable[_Quota]) -> dict[str, str]:
    return {
        _POLICY: ", ".join([_policy(name, limit) for name, limit, *_ in quotas]),
        _LEFT: ", ".join([_left(quota) for quota in quotas]),
    }


@lru_cache(maxsize=4096)
def _policy(name: str, limit: AnyLimit) -> str:
    """What holds; a window that is not in whole seconds cannot be said."""
    if isinstance(limit, ResourceLimit):
        return f'"{name}";q={limit.capacity};qu="concurrent-requests"'
    if isinstance(limit, Blocked):
        return f'"{name}";q=0'
    policy, seconds = f'"{name}";q={_quota(limit)}', _window_seconds(limit)
    if seconds is not None and limit.capacity < 1:
        seconds /= limit.capacity
    return f"{policy};w={int(seconds)}" if seconds is not None and float(seconds).is_integer() else policy


def _quota(limit: AnyLimit) -> int:
    """`q`, which is whole; of less than one in a window it is one, in a window that is longer by as much."""
    return 0 if isinstance(limit, Blocked) else max(int(limit.capacity), 1)


def _window_seconds(limit: RateLimit | CallLimit | QuotaLimit) -> float | None:
    """How long a window is, as clocks usually have it; None for months."""
    if not isinstance(limit, QuotaLimit):
        return limit.window_seconds
    return _PERIODS.get(limit.period) if limit.period else limit.session_seconds


def _left(quota: _Quota) -> str:
    text = f'"{quota.name}";r={min(quota.remaining, _quota(quota.limit))}'  # a burst is no part of the quota
    return text if quota.reset_seconds is None else f"{text};t={quota.reset_seconds}"


def _legacy(quota: _Quota) -> dict[str, str]:
    """The time is that of the clock on the wall, as most who send such headers have it."""
    told = {"X-RateLimit-Limit": str(int(quota.limit.ceiling)), "X-RateLimit-Remaining": str(quota.remaining)}
    if quota.reset_seconds is not None:
        told["X-RateLimit-Reset"] = str(ceil(time()) + quota.reset_seconds)
    return told

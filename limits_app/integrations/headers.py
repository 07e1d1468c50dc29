"""Headers of responses: the remaining amounts of limits, and `Retry-After`.

`draft` is the format of the IETF (draft-ietf-httpapi-ratelimit-headers-10), which takes any number of limits;
`legacy` has room for one, and reports the one that is closest to its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, filterfalse
from math import ceil
from operator import attrgetter
from time import time
from typing import Final

from django.http.response import HttpResponseBase

from limits_app import conf
from limits_app.conf import HeaderStyle
from limits_app.engine.outcome import LimitStatus, Outcome
from limits_app.integrations.request import RequestLimits
from limits_app.services.integration import BLOCK_LEVEL, Amount

_ADDED: Final = "limits_headers"
"""The attribute of a response with the `_Added` by the names of its headers; a cache keeps it too."""
_FORMAT: Final = conf.HEADERS.name
_DRAFT: Final = ("RateLimit-Policy", "RateLimit")
_DRAFT_NAMES: Final = frozenset(map(str.lower, _DRAFT))
_WITHOUT_RESET: Final = frozenset({"blocked", "resource"})
"""The types of limits that time does not bring back."""
_LIMIT: Final = "X-RateLimit-Limit"
_REMAINING: Final = "X-RateLimit-Remaining"
_RESET: Final = "X-RateLimit-Reset"
_WHOLE: Final = re.compile(r"[0-9]{1,15}")
_SECONDS_OF_A_DECADE: Final = 315_360_000
_DEGRADED: Final = attrgetter("degraded")
_STATUSES: Final = attrgetter("violations", "passed")
_RESOURCE, _POSITION, _NAMES = attrgetter("resource"), attrgetter("position"), attrgetter("resource", "key")
_LEAST_RETRY_SECONDS: Final = 1
"""The least `Retry-After`, and that for a permit: nothing predicts when one is released."""


_Added = tuple[str | None, str | None]
"""The value of a header, and the one that the view set, which it replaces or continues; None for no header."""


def retry_after_seconds(delay: float | None, *, if_unknown: int = _LEAST_RETRY_SECONDS) -> int:
    """Return the value of `Retry-After` for a delay: whole seconds, at least 1, rounded up: no retry is early."""
    return if_unknown if delay is None else max(ceil(delay), _LEAST_RETRY_SECONDS)


def set_headers(response: HttpResponseBase, limits: RequestLimits, outcomes: Sequence[Outcome]) -> None:
    """Add headers with the remaining amounts of the limits in some outcomes.

    Headers that the view has set itself, as one that forwards the response of an upstream, stay: fields of the draft
    are lists and get more items, and of two sets of legacy headers the stricter one is sent.
    """
    form = limits.settings[_FORMAT]
    statuses = _shown(outcomes)
    if form is HeaderStyle.NONE or not statuses:
        return
    if hasattr(response, _ADDED):  # by an inner integration
        remove_headers(response)
    added: dict[str, _Added] = {}
    if form is not HeaderStyle.LEGACY:
        resources = () if len(outcomes) == len(statuses) == 1 else set(map(_RESOURCE, _all_statuses(outcomes)))
        policies, left = [], []
        for name, positions in _named(tuple(map(_NAMES, statuses)), len(resources) > 1):
            status = (
                statuses[positions[0]]
                if len(positions) == 1
                else _closest([statuses[position] for position in positions], outcomes)
            )
            policy, most = _policy(name, status.type, status.limit, status.window_seconds)
            policies.append(policy)
            reset = "" if status.type in _WITHOUT_RESET else f";t={ceil(status.reset_after)}"
            left.append(f'"{name}";r={min(int(status.remaining), most)}{reset}')  # a burst is not part of the quota
        # Few views have set any of them, and to look for each takes longer.
        continues = not _DRAFT_NAMES.isdisjoint(map(str.lower, response.headers))
        for name, own in zip(_DRAFT, map(", ".join, (policies, left)), strict=True):
            before = response.headers.get(name) if continues else None
            value = response.headers[name] = f"{before}, {own}" if before else own
            added[name] = value, before
    if form is not HeaderStyle.DRAFT:
        _add_legacy(response, added, _closest(statuses, outcomes))
    setattr(response, _ADDED, added)


def _shown(outcomes: Iterable[Outcome]) -> list[LimitStatus]:
    """Return the limits of some outcomes, in the order of their requests.

    A block for a time is not a limit that clients know: nothing is left of the limits of its rule until it ends.
    """
    statuses: list[LimitStatus] = []
    for outcome in filterfalse(_DEGRADED, outcomes):
        of_limits, block = sorted(outcome.violations + outcome.passed, key=_POSITION), None
        for status in outcome.violations:
            if status.level == BLOCK_LEVEL:
                block = status
        if block is not None and len(of_limits) > 1:
            of_limits = [
                replace(status, remaining=0, reset_after=max(status.reset_after, block.reset_after))
                for status in of_limits
                if status is not block
            ]
        statuses += of_limits
    return statuses


def remove_headers(response: HttpResponseBase) -> None:
    """Remove the headers that were added, as those for another request from a response that a cache kept."""
    added: Mapping[str, _Added] = getattr(response, _ADDED, {})
    for name, (value, before) in added.items():
        if response.headers.get(name) == value:  # else code of the site has set it since
            _set_header(response, name, before)


def _set_header(response: HttpResponseBase, name: str, value: str | None) -> None:
    if value is not None:
        response.headers[name] = value
    elif name in response.headers:
        del response.headers[name]


def name_of(resource: str | None, key: str) -> str:
    """The name of a limit where there are several resources: its key after its resource; a total has no resource."""
    return key if resource is None else f"{resource}:{key}"


def _all_statuses(outcomes: Iterable[Outcome]) -> Iterator[LimitStatus]:
    return chain.from_iterable(chain.from_iterable(map(_STATUSES, outcomes)))


@lru_cache(maxsize=4096)
def _named(names: Sequence[tuple[str | None, str]], names_resource: bool) -> Iterable[tuple[str, Sequence[int]]]:
    """Return the names of limits, by their resources and keys, each with the positions of its limits, the last first.

    Several scopes may have a limit with the same name.
    """
    positions: dict[str, list[int]] = {}
    for position, (resource, key) in enumerate(names):
        positions.setdefault(name_of(resource, key) if names_resource else key, []).insert(0, position)
    return tuple(positions.items())


@lru_cache(maxsize=4096)
def _policy(name: str, kind: str, limit: Amount, seconds: float | None) -> tuple[str, int]:
    """Return the item of a limit, and its `q`, which is whole.

    A capacity below 1 is sent as 1 in a longer window. A window that is not in whole seconds is left out.
    """
    if kind == "blocked":
        return f'"{name}";q=0', 0
    most = max(int(limit), 1)
    if kind == "resource":
        return f'"{name}";q={most};qu="concurrent-requests"', most
    if seconds is not None and limit < 1:
        seconds /= limit
    window = f";w={int(seconds)}" if seconds is not None and float(seconds).is_integer() else ""
    return f'"{name}";q={most}{window}', most


def _closest(statuses: Iterable[LimitStatus], outcomes: Sequence[Outcome]) -> LimitStatus:
    """Return the limit that is closest to its end; one that rejects comes first."""
    rejecting = [status for outcome in outcomes for status in outcome.violations]

    def urgency(status: LimitStatus) -> tuple[bool, float, int]:
        return status in rejecting, -int(status.remaining) / max(status.capacity, 1), _reset_seconds(status) or 0

    return max(statuses, key=urgency)


def _reset_seconds(status: LimitStatus) -> int | None:
    """Return when a limit is unused again, in whole seconds; None where time does not bring it back."""
    return None if status.type in _WITHOUT_RESET else ceil(status.reset_after)


def _add_legacy(response: HttpResponseBase, added: dict[str, _Added], status: LimitStatus) -> None:
    """Set the headers with the time of the reset in seconds since 1970, as most sites send them.

    X-RateLimit-Limit is what one request can have at most: the capacity, or the burst where a limit has one. A limit
    below 1 is sent as 1, as in the draft. None removes the header of another limit.
    """
    reset_seconds = _reset_seconds(status)
    legacy = {
        _LIMIT: str(0 if status.type == "blocked" else max(int(status.capacity), 1)),
        _REMAINING: str(int(status.remaining)),
        _RESET: None if reset_seconds is None else str(ceil(time()) + reset_seconds),
    }
    for name, number in legacy.items() if _is_stricter(legacy, response.headers) else ():
        added[name] = number, response.headers.get(name)
        _set_header(response, name, number)


def _is_stricter(own: Mapping[str, str | None], of_view: Mapping[str, str]) -> bool:
    """Whether legacy headers leave a client less than those of the view; False where these cannot be compared."""
    if not any(name in of_view for name in own):
        return True
    left, left_by_view = _number(own[_REMAINING]), _number(of_view.get(_REMAINING))
    if left is None or left_by_view is None:
        return False
    return (left, -_reset_at(own[_RESET])) < (left_by_view, -_reset_at(of_view.get(_RESET)))


def _reset_at(text: str | None) -> int:
    """Return the time of a reset in seconds since 1970; some sites send the seconds until then."""
    seconds = _number(text) or 0
    return seconds if seconds > _SECONDS_OF_A_DECADE else ceil(time()) + seconds


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _WHOLE.fullmatch(text) else None

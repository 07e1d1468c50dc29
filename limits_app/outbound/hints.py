"""The limits of an upstream, as its responses report them.

These headers are read: `Retry-After` (seconds or a date), `RateLimit-Policy` and `RateLimit` of
draft-ietf-httpapi-ratelimit-headers (also of draft 7), and the older `RateLimit-*` and `X-RateLimit-*`. Invalid values
are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from itertools import islice
from time import time
from typing import Final

from limits_app.engine import DAY
from limits_app.outbound.errors import check_counts, check_periods
from limits_app.outbound.messages import Response

_QUOTED: Final = r'"(?:[^"\\]|\\.)*+(?:"|\\?$)'
_ITEM: Final = re.compile(rf'(?:[^",]|{_QUOTED})++', re.DOTALL)
_PART: Final = re.compile(rf'(?:[^";]|{_QUOTED})++', re.DOTALL)
"""Text up to a comma, or a semicolon, outside of quotes; a missing closing quote is assumed at the end."""
_NUMBER: Final = re.compile(r"\d{1,12}(\.\d{1,6})?")
_WINDOW: Final = re.compile(r";\s*w=(\d{1,12})")
_MOST_QUOTAS: Final = 8
_MOST_ITEMS: Final = 64
"""How many items of a field are read, since a field may have any length."""
_EPOCH: Final = 1_000_000_000
"""A reset of more seconds than this is a timestamp, not a duration."""
_MOST_SECONDS: Final = 366.0 * DAY

_Parameters = Mapping[str, Mapping[str, str]]
"""The parameters of a field by the name of the limit."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit of an upstream: `capacity` calls per `window_seconds`, of which `remaining` are left (None: unknown)."""

    name: str
    capacity: int
    window_seconds: float
    remaining: int | None = None

    def __post_init__(self) -> None:
        check_counts(capacity=self.capacity)
        check_periods(window_seconds=self.window_seconds)
        if self.remaining is not None and self.remaining < 0:
            raise ValueError(f"remaining must be 0 or more, not {self.remaining}")


@dataclass(frozen=True, slots=True)
class Hints:
    """The limits that one response reports.

    `empty_seconds` is for how long a limit without a known quota has nothing left; None when it has.
    """

    refused: bool = False
    retry_after: float | None = None
    quotas: tuple[Quota, ...] = ()
    empty_seconds: float | None = None


def hints_of(response: Response, *, unix_seconds: float | None = None) -> Hints:
    """Read a response that arrived at `unix_seconds` (None: now), a Unix timestamp to which dates are compared."""
    unix_seconds = time() if unix_seconds is None else unix_seconds
    left, policies = dict(_items(response.header("RateLimit"))), dict(_items(response.header("RateLimit-Policy")))
    quotas = list(_draft(policies, left)) or list(_legacy(response, unix_seconds))
    retry_after = _retry_after(response.header("Retry-After"), unix_seconds)
    if response.refused and retry_after is None:
        retry_after = _empty_seconds(left)
    unexplained = _empty_seconds({name: fields for name, fields in left.items() if name not in policies})
    return Hints(response.refused, retry_after, tuple(quotas[:_MOST_QUOTAS]), unexplained)


def _retry_after(value: str | None, unix_seconds: float) -> float | None:
    seconds = _seconds(value)
    if value is None or seconds is not None:
        return seconds
    try:
        moment = parsedate_to_datetime(value)
        if moment.tzinfo is None:  # the asctime format has no zone and means UTC
            moment = moment.replace(tzinfo=UTC)
        return min(max(moment.timestamp() - unix_seconds, 0.0), _MOST_SECONDS)
    except (ValueError, OverflowError):
        return None


def _empty_seconds(left: _Parameters) -> float | None:
    """Return the seconds until every empty limit has something left again."""
    times = [_seconds(fields.get("t")) for fields in left.values() if _number(fields.get("r")) == 0]
    return max([seconds for seconds in times if seconds is not None], default=None)


def _draft(policies: _Parameters, left: _Parameters) -> Iterator[Quota]:
    for name, policy in policies.items():
        # Until draft 7 the name of a policy was its capacity.
        capacity, window = _number(policy.get("q", name)), _seconds(policy.get("w"))
        # Quotas in other units than requests need a limit set, which knows the amounts.
        if capacity and window and policy.get("qu", "requests") == "requests":
            yield Quota(name, capacity, window, _number(left.get(name, {}).get("r")))


def _legacy(response: Response, unix_seconds: float) -> Iterator[Quota]:
    """Read fields of one limit; without a window, the time until the reset is taken as the window."""
    items = dict(_pair(item) for item in (response.header("RateLimit") or "").split(",") if "=" in item)
    for prefix in ("RateLimit-", "X-RateLimit-"):
        for name in ("limit", "remaining", "reset"):
            value = response.header(prefix + name)
            if value is not None:
                items.setdefault(name, value.partition(",")[0].strip())
                window = _WINDOW.search(value)
                if window is not None:
                    items.setdefault("window", window[1])
    capacity, reset = _number(items.get("limit")), _seconds(items.get("reset"), since=unix_seconds)
    window_seconds = _seconds(items.get("window")) or reset
    if capacity and window_seconds:
        yield Quota("legacy", capacity, window_seconds, _number(items.get("remaining")))


def _items(field: str | None) -> Iterator[tuple[str, dict[str, str]]]:
    for item in islice(_ITEM.finditer(field or ""), _MOST_ITEMS):
        name, *parameters = _PART.findall(item[0]) or [""]
        name = name.strip().strip('"')
        if name and len(name) <= 64:
            yield name, dict(_pair(parameter) for parameter in parameters)


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.strip().lower(), value.strip().strip('"')


def _number(text: str | None) -> int | None:
    return int(float(text)) if text is not None and _NUMBER.fullmatch(text) else None


def _seconds(text: str | None, *, since: float = 0.0) -> float | None:
    if text is None or not _NUMBER.fullmatch(text.strip()):
        return None
    seconds = float(text)
    if since and seconds > _EPOCH:
        seconds = max(seconds - since, 0.0)
    return min(seconds, _MOST_SECONDS)

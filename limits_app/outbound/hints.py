"""What an upstream tells about its limits, read from the headers of its answers.

Read are `Retry-After` (seconds or a date), the fields of draft-ietf-httpapi-ratelimit-headers (`RateLimit-Policy` and
`RateLimit`, also as of draft 7), and the older `RateLimit-*` and `X-RateLimit-*`. What cannot be read is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

from limits_app.outbound.messages import Response

__all__ = ["Hints", "Quota", "hints_of"]

_NUMBER: Final = re.compile(r"\d{1,12}(\.\d{1,6})?")
_WINDOW: Final = re.compile(r";\s*w=(\d{1,12})")
_MOST_QUOTAS: Final = 8
_MOST_ITEMS: Final = 64
"""How many items of a field are read; what an upstream says may be any length."""
_EPOCH: Final = 1_000_000_000
"""A reset of more seconds than this is a moment, and not a duration."""
_MOST_SECONDS: Final = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class Quota:
    """One limit of an upstream: `capacity` calls per `window_seconds`, of which `remaining` are left (None: unsaid)."""

    name: str
    capacity: int
    window_seconds: float
    remaining: int | None = None


@dataclass(frozen=True, slots=True)
class Hints:
    """What one answer tells."""

    refused: bool = False
    retry_after: float | None = None
    quotas: tuple[Quota, ...] = ()


def hints_of(response: Response, *, unix_seconds: float) -> Hints:
    """Read an answer that came at `unix_seconds`, the time of day that dates are measured against."""
    retry_after = _retry_after(response.header("Retry-After"), unix_seconds)
    quotas = list(_draft(response)) or list(_legacy(response, unix_seconds))
    return Hints(response.refused, retry_after, tuple(quotas[:_MOST_QUOTAS]))


def _retry_after(value: str | None, unix_seconds: float) -> float | None:
    seconds = _seconds(value)
    if value is None or seconds is not None:
        return seconds
    try:
        return min(max(parsedate_to_datetime(value).timestamp() - unix_seconds, 0.0), _MOST_SECONDS)
    except (ValueError, OverflowError):
        return None


def _draft(response: Response) -> Iterator[Quota]:
    left = dict(_items(response.header("RateLimit")))
    for name, told in _items(response.header("RateLimit-Policy")):
        # Until draft 7 the name of a policy was its capacity.
        capacity, window = _number(told.get("q", name)), _seconds(told.get("w"))
        # Quotas of other things than requests are for those who know their amounts: limit sets.
        if capacity and window and told.get("qu", "requests") == "requests":
            yield Quota(name, capacity, window, _number(left.get(name, {}).get("r")))


def _legacy(response: Response, unix_seconds: float) -> Iterator[Quota]:
    """Fields that name one limit; where they do not tell its window, the time until it ends is taken for that."""
    found = dict(_pair(item) for item in (response.header("RateLimit") or "").split(",") if "=" in item)
    for prefix in ("RateLimit-", "X-RateLimit-"):
        for name in ("limit", "remaining", "reset"):
            value = response.header(prefix + name)
            if value is not None:
                found.setdefault(name, value.partition(",")[0].strip())
                window = _WINDOW.search(value)
                if window is not None:
                    found.setdefault("window", window[1])
    capacity, reset = _number(found.get("limit")), _seconds(found.get("reset"), since=unix_seconds)
    window_seconds = _seconds(found.get("window")) or reset
    if capacity and window_seconds:
        yield Quota("legacy", capacity, window_seconds, _number(found.get("remaining")))


def _items(field: str | None) -> Iterator[tuple[str, dict[str, str]]]:
    for item in (field or "").split(",", _MOST_ITEMS)[:_MOST_ITEMS]:
        name, *parameters = item.split(";")
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

"""Limits in words, as pages, messages and commands name them for people."""

from __future__ import annotations

from typing import Any, Final

from django.utils.translation import gettext

from limits_app.core.limits import CallLimit, Limit, QuotaLimit, ResourceLimit
from limits_app.core.notation import seconds_text
from limits_app.core.outcome import TOTAL_PREFIX

_WINDOWS: Final = {1: "second", 60: "minute", 3_600: "hour", 86_400: "day", 604_800: "week"}


def limit_name(key: str) -> str:
    """The name of a limit for people: “requests” for a limit of calls, else its key, which may be that of a total."""
    if key.startswith(TOTAL_PREFIX):
        return gettext("%(limit)s, over all resources") % {"limit": limit_name(key.removeprefix(TOTAL_PREFIX))}
    return gettext("requests") if key == CallLimit.key else key


def limit_key(name: str) -> str:
    """The key of a limit that people have named: the opposite of `limit_name`."""
    return CallLimit.key if name == gettext("requests") else name


def limit_keys(name: str | None) -> tuple[str, ...] | None:
    """The keys that people can mean by a name: “requests” can also be a key itself; None if there is no name."""
    return (limit_key(name), name) if name else None


def limit_in_words(limit: Limit) -> str:
    """A limit as people say it, such as “100 requests per minute”; one that is only reported is marked."""
    return gettext("%(limit)s, only reported") % {"limit": _in_words(limit)} if limit.soft else _in_words(limit)


def _in_words(limit: Limit) -> str:
    unit = gettext("request") if limit.key == CallLimit.key and limit.capacity == 1 else limit_name(limit.key)
    said: dict[str, Any] = {"amount": f"{limit.capacity:,}", "unit": unit}
    match limit:
        case ResourceLimit():
            return gettext("%(amount)s %(unit)s at the same time") % said
        case QuotaLimit():
            said["per"] = period_in_words(limit.period, limit.session_seconds)
        case _:
            said["per"] = period_in_words(None, limit.window_seconds)
    return gettext("%(amount)s %(unit)s per %(per)s") % said


def period_in_words(period: str | None, seconds: float | None) -> str:
    """A calendar period or a number of seconds, such as “month”, “minute” or “90s”; empty without both."""
    if period or not seconds:
        return gettext(period) if period else ""
    if seconds in _WINDOWS:
        return gettext(_WINDOWS[int(seconds)])
    return seconds_text(seconds)

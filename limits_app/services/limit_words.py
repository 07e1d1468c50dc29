"""Limits in words, as pages, messages and commands name them for people, and the limits of one entity."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor
from typing import Any, Final

from django.utils.formats import number_format
from django.utils.translation import gettext

from limits_app.engine.errors import LimitsError
from limits_app.engine.limits import Blocked, CallLimit, Limit, QuotaLimit, ResourceLimit
from limits_app.engine.notation import seconds_text
from limits_app.engine.outcome import TOTAL_PREFIX, Stats
from limits_app.models import Resource
from limits_app.services.status import status_of_each

_MOST: Final = 100
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


@dataclass(frozen=True, slots=True)
class OwnLimit:
    """A limit of an entity on a resource.

    `unit` is “requests”, or the key of the limit in words; `period` is “minute”, “90s” or “month”, and empty for
    concurrent use. `percent` is the used share, at most 100. A resource that `is_blocked` has no numbers.
    """

    resource: str
    unit: str = ""
    period: str = ""
    used: float = 0
    capacity: float = 0
    percent: int = 0
    is_blocked: bool = False

    @property
    def text(self) -> str:
        """For example “80 of 100 requests per minute used”."""
        if self.is_blocked:
            return gettext("Access blocked")
        values = {"used": _shown(self.used), "most": _shown(self.capacity), "unit": self.unit, "period": self.period}
        if self.period:
            return gettext("%(used)s of %(most)s %(unit)s per %(period)s used") % values
        return gettext("%(used)s of %(most)s %(unit)s in use") % values


def own_limits(entity: str | None, resources: Iterable[str] = ()) -> list[OwnLimit]:
    """Return the limits of an entity on some resources, by default on the first 100; those without limits are left out.

    Totals are listed once, with “all resources” in place of a resource.

    Raises StoreUnavailable while the store is down.
    """
    names = [*resources] or Resource.objects.order_by("name").values_list("name", flat=True)[:_MOST]
    found: dict[tuple[str, str], OwnLimit] = {}
    for status in status_of_each([(name, entity) for name in names]):
        for key, stats in sorted(status.limits.items()):
            of_total = key.startswith(TOTAL_PREFIX)
            place = (gettext("all resources") if of_total else status.resource, key.removeprefix(TOTAL_PREFIX))
            found.setdefault(place, _own(*place, stats))
    return list(found.values())


def own_limits_or_none(entity: str | None, resources: Iterable[str] = ()) -> list[OwnLimit] | None:
    """`own_limits`, or None where they cannot be read now, for pages that must not fail."""
    try:
        return own_limits(entity, resources)
    except LimitsError:
        return None


def _own(resource: str, key: str, stats: Stats) -> OwnLimit:
    if key == Blocked.key:
        return OwnLimit(resource, is_blocked=True)
    used, capacity = float(stats["used"]), float(stats["capacity"])
    unit = limit_name(key).replace("_", " ")
    period = period_in_words(stats.get("period"), stats.get("window_seconds"))
    if key == CallLimit.key:  # there are whole requests only
        used, capacity = ceil(used), floor(capacity)
    return OwnLimit(resource, unit, period, used, capacity, min(round(stats["utilization"] * 100), 100))


def _shown(number: float) -> str:
    text = f"{number:.1f}".removesuffix(".0")
    return number_format(text, use_l10n=True, force_grouping=True)

"""Limits in words, as pages, messages and commands name them for people, and the limits of one entity."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from math import ceil, floor
from typing import Any, Final

from django.utils import timezone
from django.utils.dates import WEEKDAYS
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.engine import (
    CALLS,
    KEYS_OF_REQUESTS,
    NAMES,
    UNLIMITED,
    QuotaPeriod,
    is_currency,
    parse_limits,
    seconds_text,
)
from limits_app.engine.errors import InvalidLimit, LimitsError
from limits_app.engine.limits import Blocked, CallLimit, LimitDefinition, QuotaLimit, RateLimit, ResourceLimit
from limits_app.engine.outcome import TOTAL_PREFIX, Stats
from limits_app.models import Entity, Resource
from limits_app.services.display import amount
from limits_app.services.rule_labels import resource_labels
from limits_app.services.status import status_of_each

_MOST: Final = 100


def limit_name(key: str) -> str:
    """The name of a limit for people: “requests” where it counts requests, else its key, which may be of a total."""
    if key.startswith(TOTAL_PREFIX):
        return gettext("%(limit)s, over all resources") % {"limit": limit_name(key.removeprefix(TOTAL_PREFIX))}
    return gettext("requests") if key in KEYS_OF_REQUESTS else key


def limit_key(name: str) -> str:
    """The key of a limit that people have named: the opposite of `limit_name`."""
    return CallLimit.key if name == gettext("requests") else name


def limit_keys(name: str | None) -> tuple[str, ...] | None:
    """The keys that people mean by a name: “requests” are counted under several; None if there is no name."""
    if not name:
        return None
    return tuple(sorted(KEYS_OF_REQUESTS)) if name in {"requests", gettext("requests")} else (name,)


def limit_in_words(limit: LimitDefinition) -> str:
    """A limit as people say it, such as “100 requests per minute”; one that is only reported is marked."""
    unit = _unit(limit.key, limit.capacity)
    match limit:
        case ResourceLimit():
            words = gettext("%(amount)s at the same time") % {"amount": _capacity(limit.capacity, unit)}
        case QuotaLimit():
            words = _capacity(limit.capacity, unit, _quota_period(limit))
        case _:
            words = _capacity(limit.capacity, unit, _period(None, limit.window_seconds))
    if limit.soft:
        return gettext("%(limit)s, only reported") % {"limit": words}
    return ", ".join([words, *map(_share_in_words, limit.keep)])


def limits_in_words(text: str) -> str:
    """The limits that a text in the notation has, in words; an invalid text as it is."""
    try:
        return ", ".join(limit_in_words(noted.limit) for noted in parse_limits(text))
    except InvalidLimit:
        return text


def burst_in_words(limit: LimitDefinition) -> str:
    """How much a limit allows within one of its periods where that is more than its amount; else empty."""
    if not isinstance(limit, RateLimit | CallLimit):
        return ""
    most = limit.algorithm.most_per_window(limit.capacity, limit.burst)
    if most <= limit.capacity:
        return ""
    period = _period(None, limit.window_seconds)
    values = {
        "most": amount(most),
        "period": gettext("one %(period)s") % {"period": period} if limit.window_seconds in NAMES else period,
    }
    return gettext("on average, up to %(most)s within %(period)s") % values


def period_in_words(limit: LimitDefinition) -> str:
    """When a limit starts again, such as “per minute” or “per 90 seconds”; “at a time” for one that never does."""
    match limit:
        case ResourceLimit():
            return gettext("at a time")
        case QuotaLimit():
            period = _quota_period(limit)
        case _:
            period = _period(None, limit.window_seconds)
    return gettext("per %(period)s") % {"period": period}


def _share_in_words(share: tuple[str, float]) -> str:
    """What requests of a priority leave free, such as “low-priority requests leave 60 % free”."""
    priority, percent = share
    words = {"priority": priority, "percent": amount(percent)}
    return gettext("%(priority)s-priority requests leave %(percent)s %% free") % words


def _capacity(capacity: float, unit: str, period: str = "") -> str:
    """For example “1,000 requests per minute”, or “5 connections” without a period."""
    words = f"{amount(capacity, _digits_of(unit))} {unit}"
    return gettext("%(amount)s per %(period)s") % {"amount": words, "period": period} if period else words


def _unit(key: str, capacity: float) -> str:
    if is_currency(key):
        return key.upper()
    if key not in {CallLimit.key, CALLS}:
        return limit_name(key).replace("_", " ")
    return gettext("request") if capacity == 1 else gettext("requests")


def _digits_of(unit: str) -> int:
    """How many decimals amounts of a unit have."""
    return 6 if unit.isupper() and is_currency(unit.lower()) else 3


def _quota_period(quota: QuotaLimit) -> str:
    """For example “month”, “month from day 15, 06:00” or “billing month of the client”; or the length of a session."""
    if quota.period is None or not quota.starts:
        return _period(quota.period, quota.session_seconds)
    period = gettext(quota.period)
    if quota.starts_with_client:
        return gettext("billing %(period)s of the client") % {"period": period}
    return gettext("%(period)s from %(start)s") % {"period": period, "start": _start_in_words(quota)}


def _start_in_words(quota: QuotaLimit) -> str:
    """For example “day 15”, “Sunday, 06:00” or “06:00”."""
    start, words = quota.start, []
    if quota.period == QuotaPeriod.MONTH:
        words.append(gettext("day %(number)s") % {"number": start.days + 1})
    elif quota.period == QuotaPeriod.WEEK:
        words.append(str(WEEKDAYS[start.days]))
    if start.minutes or not words:
        words.append("{:02}:{:02}".format(*divmod(start.minutes, 60)))
    return ", ".join(words)


def _period(period: str | None, seconds: float | None) -> str:
    """A calendar period or a number of seconds, such as “month”, “minute” or “90 seconds”; empty without both."""
    if period or not seconds:
        return gettext(period) if period else ""
    return gettext(NAMES[seconds]) if seconds in NAMES else _length(seconds)


def _length(seconds: float) -> str:
    """A number of seconds in the largest unit that divides it, such as “90 seconds”."""
    number, unit = _LENGTH.fullmatch(seconds_text(seconds)).groups()  # type: ignore[union-attr]  # always matches
    return str(_UNITS[unit]) % {"count": number} if unit in _UNITS else f"{number}{unit}"


_LENGTH: Final = re.compile(r"(\d+)(\D+)")
_UNITS: Final[Mapping[str, Any]] = {
    "s": _("%(count)s seconds"),
    "min": _("%(count)s minutes"),
    "h": _("%(count)s hours"),
    "d": _("%(count)s days"),
}


@dataclass(frozen=True, slots=True)
class OwnLimit:
    """A limit of an entity on a resource.

    `name` is the resource as users know it: the path of a URL rule for one that was made for it.
    `unit` is “requests”, or the key of the limit in words; `period` is “minute”, “90 seconds” or “month”, and empty for
    concurrent use. `percent` is the used share, at most 100. `resets_at` is when nothing is used any more if no further
    request is allowed; None where nothing is used. A resource that `is_blocked` has no numbers.
    """

    resource: str
    unit: str = ""
    period: str = ""
    used: float = 0
    capacity: float = 0
    percent: int = 0
    is_blocked: bool = False
    resets_at: datetime | None = None
    name: str = ""

    def as_dict(self) -> dict[str, object]:
        """The limit as plain data, for JSON."""
        return {**asdict(self), "text": self.text}

    @property
    def text(self) -> str:
        """For example “80 of 100 requests per minute used”."""
        if self.is_blocked:
            return gettext("Access blocked")
        digits = 2 if _digits_of(self.unit) > 3 else 1
        values = {"used": amount(self.used, digits), "limit": _capacity(self.capacity, self.unit, self.period)}
        text = gettext("%(used)s of %(limit)s used") if self.period else gettext("%(used)s of %(limit)s in use")
        return text % values


def own_limits(entity: str | None, resources: Iterable[str] = (), *, plan: str | None = None) -> list[OwnLimit]:
    """Return the limits of an entity on some resources, by default on the first 100; those without limits are left out.

    Blocked resources come first, then the limits that are used most. Totals are listed once, with “all resources” in
    place of a resource. `plan` is the plan of the request, for an entity without one.

    Raises StoreUnavailable while the store is down.
    """
    rows = Resource.objects.order_by("name").values_list("name", "made_for_rule")
    made = dict(rows.filter(name__in=[*resources]) if resources else rows[:_MOST])
    names = {**dict.fromkeys(made, ""), **resource_labels(name for name, is_made in made.items() if is_made)}
    own: dict[tuple[str, str], OwnLimit] = {}
    now = timezone.now()
    for status in status_of_each([(name, entity) for name in [*resources] or made], plan=plan):
        for key, stats in sorted(status.limits.items()):
            if stats["type"] == UNLIMITED:
                continue
            of_total = key.startswith(TOTAL_PREFIX)
            subject = (gettext("all resources") if of_total else status.resource, key.removeprefix(TOTAL_PREFIX))
            name = "" if of_total else names.get(status.resource, "")
            own.setdefault(subject, replace(_own(*subject, stats, now), name=name or subject[0]))
    return sorted(own.values(), key=lambda limit: (not limit.is_blocked, -limit.percent))


def own_limits_or_none(
    entity: str | None, resources: Iterable[str] = (), *, plan: str | None = None
) -> list[OwnLimit] | None:
    """`own_limits`, or None where they cannot be read now, for pages that must not fail."""
    try:
        return own_limits(entity, resources, plan=plan)
    except LimitsError:
        return None


def own_plan(entity: str | None, plan: str | None = None) -> str:
    """The name of the plan of an entity, else that of its request; empty without one."""
    row = Entity.objects.filter(identifier=entity, plan__isnull=False) if entity else Entity.objects.none()
    return row.values_list("plan__name", flat=True).first() or plan or ""


def _own(resource: str, key: str, stats: Stats, now: datetime) -> OwnLimit:
    if key == Blocked.key:
        return OwnLimit(resource, is_blocked=True)
    used, capacity = float(stats["used"]), float(stats["capacity"])
    share = stats["utilization"]
    if key == CallLimit.key:  # there are whole requests only
        used, capacity = ceil(used), floor(capacity)
        share = max(share, used / capacity if capacity else 1) if "burst" not in stats else share
    period = _period(stats.get("period"), stats.get("window_seconds"))
    seconds = stats.get("reset_after", 0)
    return OwnLimit(
        resource,
        _unit(key, capacity),
        period,
        used,
        capacity,
        min(round(share * 100), 100),
        resets_at=(now + timedelta(seconds=seconds + 0.5)).replace(microsecond=0) if seconds else None,
    )

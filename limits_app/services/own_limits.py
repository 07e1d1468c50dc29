"""The limits of one entity, in words for the people who use the site."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor
from typing import Final

from django.utils.formats import number_format
from django.utils.translation import gettext as _

from limits_app.core.errors import LimitsError
from limits_app.core.limits import Blocked, CallLimit
from limits_app.core.outcome import TOTAL_PREFIX, Stats
from limits_app.models import Resource
from limits_app.services.limit_words import limit_name, period_in_words
from limits_app.services.status import status

_MOST: Final = 100


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
            return _("Access blocked")
        values = {"used": _shown(self.used), "most": _shown(self.capacity), "unit": self.unit, "period": self.period}
        if self.period:
            return _("%(used)s of %(most)s %(unit)s per %(period)s used") % values
        return _("%(used)s of %(most)s %(unit)s in use") % values


def own_limits(entity: str | None, resources: Iterable[str] = ()) -> list[OwnLimit]:
    """Return the limits of an entity on some resources, by default on the first 100; those without limits are left out.

    Totals are listed once, with “all resources” in place of a resource.

    Raises StoreUnavailable while the store is down.
    """
    names = [*resources] or Resource.objects.order_by("name").values_list("name", flat=True)[:_MOST]
    found: dict[tuple[str, str], OwnLimit] = {}
    for name in names:
        for key, stats in sorted(status(name, entity=entity).limits.items()):
            of_total = key.startswith(TOTAL_PREFIX)
            place = (_("all resources") if of_total else name, key.removeprefix(TOTAL_PREFIX))
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

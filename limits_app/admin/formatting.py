"""Amounts, shares, dates and limits as the pages show them, in the language of the user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, floor
from typing import Any, Final

from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import CallLimit, LimitDefinition
from limits_app.models import Limit, PolicyScope
from limits_app.policies import CODE, ENTITY_FLAGS, PolicyStatus
from limits_app.services import LimitState, PlannedBoost
from limits_app.services.display import amount
from limits_app.services.limit_words import limit_in_words

_NEAR: Final = 0.8

_MANY: Final = 10
"""From how many units on thousandths are too much to read while they change."""


LEVELS: Final[Mapping[str, Any]] = {
    ENTITY_FLAGS: _("this client itself"),
    CODE: _("everyone in code"),
    PolicyScope.ENTITY_ON_RESOURCE: _("this client on this resource"),
    PolicyScope.ENTITY: _("this client on each resource"),
    PolicyScope.PLAN_ON_RESOURCE: _("its plan on this resource"),
    PolicyScope.PLAN: _("its plan on each resource"),
    PolicyScope.PATTERN_ON_RESOURCE: _("its pattern on this resource"),
    PolicyScope.PATTERN: _("its pattern on each resource"),
    PolicyScope.RESOURCE: _("everyone on this resource"),
    PolicyScope.SYSTEM: _("everyone on each resource"),
    PolicyScope.ENTITY_TOTAL: _("this client over all resources"),
    PolicyScope.PLAN_TOTAL: _("its plan over all resources"),
    PolicyScope.PATTERN_TOTAL: _("its pattern over all resources"),
    PolicyScope.SYSTEM_TOTAL: _("everyone over all resources"),
}
"""For whom the policy of a level is set, as one client sees it on one resource."""

_OF_CLIENTS: Final[Mapping[str, Any]] = {
    ENTITY_FLAGS: _("%(client)s itself"),
    PolicyScope.ENTITY_ON_RESOURCE: _("%(client)s on this resource"),
    PolicyScope.ENTITY: _("%(client)s on each resource"),
    PolicyScope.ENTITY_TOTAL: _("%(client)s over all resources"),
}


def level_of(level: str, client: str | None) -> str:
    """For whom the policy of a level is set, where it may be one of several clients."""
    return _OF_CLIENTS[level] % {"client": client} if client and level in _OF_CLIENTS else str(LEVELS[level])


STANDINGS: Final[Mapping[PolicyStatus, Any]] = {
    PolicyStatus.COUNTS: _("active"),
    PolicyStatus.EXTENDED: _("applies too"),
    PolicyStatus.REPLACED: _("overridden"),
    PolicyStatus.NOT_NOW: _("not in force now"),
    PolicyStatus.NOT_ROLLED_OUT: _("not rolled out that far"),
    PolicyStatus.SHADOW: _("shadow mode"),
    PolicyStatus.OFF: _("off"),
}


@dataclass(frozen=True, slots=True)
class Bar:
    """How full a limit is; `level` is ok, near or full, `width` is in percent, and `in_slices` a phrase."""

    label: str
    used: str
    capacity: str
    remaining: str
    width: int
    level: str
    in_slices: str


def bar(label: str, used: float, capacity: float, remaining: float | None = None, *, in_slices: float = 0) -> Bar:
    """Return a bar for the used part of a capacity; the bar is capped at 100 %."""
    left = max(capacity - used, 0) if remaining is None else remaining
    if label == CallLimit.key:  # of calls there are whole ones
        used, left = ceil(round(used, 3)), floor(round(left, 3))
    share = used / capacity if capacity else 1.0
    level = "full" if share >= 1 else "near" if share >= _NEAR else "ok"
    digits = 1 if capacity >= _MANY else 3
    texts = [amount(round(number, digits)) for number in (used, capacity, left)]
    slices = gettext("%(amount)s in slices of this process") % {"amount": amount(in_slices)} if in_slices else ""
    return Bar(label, texts[0], texts[1], texts[2], round(min(max(share, 0), 1) * 100), level, slices)


def bar_of(limit: LimitState) -> Bar:
    """Draw the known state of a limit."""
    return bar(limit.key, limit.used or 0, limit.capacity, limit.available, in_slices=limit.in_slices)


def written_limits(limits: Iterable[Limit]) -> SafeString:
    """Rows of limits in words, one below the other; an invalid one as it is stored."""
    return format_html_join("", "<div>{}</div>", ((_in_words(limit),) for limit in limits))


def _in_words(limit: Limit) -> str:
    try:
        words = limit_in_words(limit.definition())
    except InvalidLimit:
        return limit.notation()
    return gettext("%(key)s (shared)") % {"key": words} if limit.shared else words


def boost_in_words(boost: PlannedBoost) -> str:
    """What a boost changes, such as “60 → 90 requests per minute”."""
    return ", ".join(_raised(old.limit, new.limit) for old, new in zip(boost.before, boost.after, strict=True))


def _raised(old: LimitDefinition, new: LimitDefinition) -> str:
    if old == new:
        return gettext("%(limit)s stays as it is (rounded down)") % {"limit": limit_in_words(old)}
    return change_in_words(limit_in_words(old), limit_in_words(new))


def change_in_words(before: str, after: str) -> str:
    """How a limit in words changed, such as “10 → 3 requests per minute”."""
    number, _space, unit = before.partition(" ")
    return f"{number if after.partition(' ')[2] == unit else before} → {after}"

"""Amounts, shares, dates and limits as the pages show them, in the language of the user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import ceil, floor
from typing import Any, Final

from django.utils.formats import date_format, number_format
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import is_naive, localtime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import CallLimit
from limits_app.models import TOTALS, Limit, Policy, PolicyScope
from limits_app.policies import CODE, ENTITY_FLAGS, PolicyStatus
from limits_app.services import LimitState
from limits_app.services.clients import with_name
from limits_app.services.limit_words import amount, limit_in_words

_NEAR: Final = 0.8

_MANY: Final = 10
"""From how many units on thousandths are too much to read while they change."""


LEVELS: Final[Mapping[str, Any]] = {
    ENTITY_FLAGS: _("entity itself"),
    CODE: _("code"),
    **{scope.value: scope.label for scope in PolicyScope},
}
"""The levels of policies."""

STANDINGS: Final[Mapping[PolicyStatus, Any]] = {
    PolicyStatus.COUNTS: _("active"),
    PolicyStatus.EXTENDED: _("extended"),
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


def percent(share: float | None) -> str:
    """A share in percent; a small one is not said to be none."""
    if share is None:
        return "-"
    if 0 < share < 0.001:
        return "< 0.1 %"
    return f"{number_format(round(share * 100, 1), use_l10n=True)} %"


def moment(at: datetime | None, form: str = "DATETIME_FORMAT") -> str:
    """A moment by the site's clock, which is named; empty without one."""
    if at is None:
        return ""
    local = at if is_naive(at) else _local(at)
    zone = local.tzname()
    return date_format(local, form) + (f" ({zone})" if zone else "")


def short_moment(at: datetime) -> str:
    """A moment as it fits into a sentence or a list."""
    return moment(at, "SHORT_DATETIME_FORMAT")


def _local(at: datetime) -> datetime:
    try:
        return localtime(at)
    except OverflowError:  # at the ends of the calendar, this date does not exist in the local zone
        return at


def written_limits(limits: Iterable[Limit]) -> SafeString:
    """Rows of limits in words, one below the other; an invalid one as it is stored."""
    return format_html_join("", "<div>{}</div>", ((_in_words(limit),) for limit in limits))


def _in_words(limit: Limit) -> str:
    try:
        words = limit_in_words(limit.definition())
    except InvalidLimit:
        return limit.notation()
    return gettext("%(key)s (shared)") % {"key": words} if limit.shared else words


_WHERE: Final[Mapping[str, Any]] = {
    "on_resource": _("%(whom)s on %(resource)s"),
    "total": _("%(whom)s, over all resources together"),
    "": _("%(whom)s, on each resource"),
}


def policy_in_words(policy: Policy, names: Mapping[str, str]) -> str:
    """Whom a policy is about, and on what."""
    entity = None if policy.entity is None else policy.entity.identifier
    scope = entity, policy.plan, policy.resource
    return scope_in_words(*scope, is_total=policy.scope in TOTALS, names=names)


def scope_in_words(entity: str | None, plan: Any, resource: Any, *, is_total: bool, names: Mapping[str, str]) -> str:
    """Whom a policy for these is about, and on what; `plan` and `resource` are rows or names."""
    whom = gettext("Everyone")
    if entity is not None:
        whom = with_name(entity, names)
    elif plan is not None:
        whom = gettext("Plan %(plan)s") % {"plan": plan}
    where = "on_resource" if resource is not None else "total" if is_total else ""
    return str(_WHERE[where]) % {"whom": whom, "resource": resource}

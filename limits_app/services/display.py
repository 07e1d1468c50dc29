"""Numbers, dates and durations as people read them: the one format of pages, messages and commands.

Dates are ISO 8601 without its T, which reads the same in every language, and sorts. Files for programs have the same
with it, and plain numbers.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

from django.utils.formats import number_format
from django.utils.timezone import is_naive, localtime
from django.utils.translation import gettext

from limits_app.engine import DAY, HOUR, MINUTE


def amount(number: float, digits: int = 3) -> str:
    """An amount with at most so many decimals, grouped as the language of the user does."""
    text = f"{number:.{digits}f}".rstrip("0").rstrip(".")
    return number_format(text, use_l10n=True, force_grouping=True)


def money(number: Decimal, currency: str) -> str:
    """An amount of money with two decimals, and with more where it is less than one of them."""
    digits = 2 if not number or abs(number) >= Decimal("0.01") else 6
    return f"{number_format(f'{number:.{digits}f}', use_l10n=True, force_grouping=True)} {currency.upper()}"


def percent(share: float | None) -> str:
    """A share in percent; a small one is not said to be none."""
    if share is None:
        return "-"
    if 0 < share < 0.001:
        return "< 0.1 %"
    return f"{amount(round(share * 100, 1))} %"


def moment(at: datetime | None) -> str:
    """A moment by the site's clock, such as “2026-01-31 13:00 (CET)”; empty without one."""
    if at is None:
        return ""
    local = at if is_naive(at) else _local(at)
    zone = local.tzname()
    return f"{local:%Y-%m-%d %H:%M}".zfill(16) + (f" ({zone})" if zone else "")


def day(at: date | datetime | None) -> str:
    """A day as it is counted, which is one of UTC, such as “2026-01-31”; empty without one."""
    if isinstance(at, datetime) and not is_naive(at):
        at = at.astimezone(UTC)
    return "" if at is None else f"{at:%Y-%m-%d}".zfill(10)


def clock(at: datetime) -> str:
    """A time of day by the site's clock, such as “13:00”."""
    return f"{at if is_naive(at) else _local(at):%H:%M}"


def in_largest_unit(seconds: float) -> tuple[float, str]:
    """A duration in the largest of the units `d`, `h` and `min` of which it has at least two, or else in `s`."""
    for unit, symbol in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if seconds >= 2 * unit:
            return seconds / unit, symbol
    return seconds, "s"


def duration(seconds: float) -> str:
    """How long that is, in its largest unit of which there are two: “90 s”, “15 min”, “5 h” or “12 days”."""
    number, unit = in_largest_unit(seconds)
    if unit != "s":
        texts = {"d": gettext("%(count)s days"), "h": gettext("%(count)s h"), "min": gettext("%(count)s min")}
        return texts[unit] % {"count": amount(round(number))}
    digits = 1 if seconds < 1 else 0
    return gettext("%(count)s s") % {"count": amount(round(seconds, digits))}


def _local(at: datetime) -> datetime:
    try:
        return localtime(at)
    except OverflowError:  # at the ends of the calendar, this date does not exist in the local zone
        return at

"""The columns of each kind of limit, as constraints and validation errors, and their conversion to definitions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

from django.db import IntegrityError, models
from django.db.models import Q
from django.db.models.functions import Cast
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.core.amounts import MAX_AMOUNT, MILLI
from limits_app.core.clock import DEFAULT_ZONE
from limits_app.core.limit_checks import MAX_WINDOW_MILLI
from limits_app.core.limits import CallLimit, QuotaLimit, QuotaPeriod, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.limits import Limit as Definition
from limits_app.core.notation import Noted


class LimitKind(models.TextChoices):
    """What a limit counts."""

    RATE = "rate", _("units")
    CALL = "call", _("requests")
    QUOTA = "quota", _("quota")
    RESOURCE = "resource", _("concurrent use")


_RATE: Final = ("window_seconds", "algorithm", "burst")
_QUOTA: Final = ("period", "time_zone", "session_seconds")
_PERMIT: Final = ("max_hold_seconds",)
_FORBIDDEN: Final[Mapping[LimitKind, tuple[str, ...]]] = {
    LimitKind.RATE: (*_QUOTA, *_PERMIT),
    LimitKind.CALL: (*_QUOTA, *_PERMIT),
    LimitKind.QUOTA: (*_RATE, *_PERMIT),
    LimitKind.RESOURCE: (*_RATE, *_QUOTA, "soft"),
}
_WITHOUT_BURST: Final = [algorithm.value for algorithm in RateLimitAlgorithm if not algorithm.takes_burst]
_WITH_DECIMALS: Final = [algorithm.value for algorithm in RateLimitAlgorithm if algorithm.takes_decimals]


def wrong_fields(kind: LimitKind, algorithm: str, key: str, given: Collection[str]) -> dict[str, str]:
    """Return an error for each field that does not fit the kind or the algorithm."""
    wrong = {
        field: gettext("Not allowed for the kind “%(kind)s”: leave it empty, or choose the kind %(fitting)s.")
        % {"kind": kind.label, "fitting": _fitting(field)}
        for field in _FORBIDDEN[kind]
        if field in given
    }
    if "soft" in wrong:
        wrong["soft"] = gettext("Concurrent use cannot be reported only: untick it.")
    if kind in (LimitKind.RATE, LimitKind.CALL) and "window_seconds" not in given:
        wrong["window_seconds"] = gettext("Enter the length of the window in seconds: 60 is a minute, 3600 an hour.")
    if kind is LimitKind.QUOTA:
        wrong |= _wrong_times(given)
    if algorithm in _WITHOUT_BURST and "burst" in given:
        wrong["burst"] = gettext("Not allowed for this algorithm: leave it empty, or choose another algorithm.")
    if (kind is LimitKind.CALL) != (key == CallLimit.key):
        wrong["key"] = gettext(
            "The unit “call_count” is reserved for the kind “requests”: choose another unit or kind."
        )
    return wrong


def _fitting(field: str) -> str:
    """The kinds of limits that have a field."""
    return gettext(" or ").join(f"“{kind.label}”" for kind in LimitKind if field not in _FORBIDDEN[kind])


def _wrong_times(given: Collection[str]) -> dict[str, str]:
    """The errors of the period or session of a quota."""
    if "period" not in given and "session_seconds" not in given:
        return {"period": gettext("Choose a calendar period, or enter the seconds from the first use.")}
    if "session_seconds" not in given:
        return {}
    return {
        field: gettext("Not allowed with seconds from the first use: leave one of them empty.")
        for field in ("period", "time_zone")
        if field in given
    }


def _within(field: str, least: Decimal, most: int) -> Q:
    return Q(**{f"{field}__isnull": False, f"{field}__gte": least, f"{field}__lte": most})


def _none(*fields: str) -> Q:
    return Q(**{f"{field}__isnull": True for field in fields})


def _whole(field: str) -> Q:
    return Q(**{field: Cast(field, models.BigIntegerField())})


_SMALLEST: Final = Decimal("0.001")
_LONGEST: Final = MAX_WINDOW_MILLI // MILLI
_NO_RATE: Final = Q(algorithm="") & _none("window_seconds", "burst")
_NO_QUOTA: Final = Q(period="", time_zone="") & _none("session_seconds")
_NO_PERMIT: Final = _none("max_hold_seconds")
_BURST: Final = _within("burst", _SMALLEST, MAX_AMOUNT) & ~Q(algorithm__in=_WITHOUT_BURST)
_KEY_FITS: Final = Q(kind=LimitKind.CALL, key=CallLimit.key) | (
    ~Q(kind=LimitKind.CALL) & ~Q(key__in=["", CallLimit.key])
)
_IS_RATE: Final = (
    Q(kind__in=[LimitKind.RATE, LimitKind.CALL], algorithm__in=[one.value for one in RateLimitAlgorithm])
    & _within("window_seconds", _SMALLEST, _LONGEST)
    & (_none("burst") | _BURST)
    & _NO_QUOTA
    & _NO_PERMIT
)
_CALENDAR: Final = Q(period__in=[one.value for one in QuotaPeriod]) & ~Q(time_zone="") & _none("session_seconds")
_SESSION: Final = Q(period="", time_zone="") & _within("session_seconds", _SMALLEST, _LONGEST)
_IS_QUOTA: Final = Q(kind=LimitKind.QUOTA) & _NO_RATE & _NO_PERMIT & (_CALENDAR | _SESSION)
_IS_PERMIT: Final = (
    Q(kind=LimitKind.RESOURCE, soft=False)
    & _NO_RATE
    & _NO_QUOTA
    & (_NO_PERMIT | _within("max_hold_seconds", _SMALLEST, _LONGEST))
)

CONSTRAINTS: Final[list[models.BaseConstraint]] = [
    models.UniqueConstraint(
        fields=["policy", "key"],
        name="limits_app_limit_one_per_key",
        violation_error_message=_("The policy already has a limit with this key."),
    ),
    models.UniqueConstraint(
        fields=["member", "key"],
        name="limits_app_limit_one_per_key_of_member",
        violation_error_message=_("The member already has a limit with this key."),
    ),
    # Validation has an error for each part of these.
    models.CheckConstraint(
        name="limits_app_limit_owner",
        condition=Q(policy__isnull=False, member=None) | Q(policy=None, member__isnull=False, shared=False),
    ),
    models.CheckConstraint(
        name="limits_app_limit_amounts",
        condition=_within("capacity", _SMALLEST, MAX_AMOUNT)
        & (Q(algorithm__in=_WITH_DECIMALS) | (_whole("capacity") & (_none("burst") | _whole("burst")))),
    ),
    models.CheckConstraint(name="limits_app_limit_fields", condition=_KEY_FITS & (_IS_RATE | _IS_QUOTA | _IS_PERMIT)),
]

Number = Decimal | float | None

COLUMNS: Final = (
    "kind",
    "key",
    "capacity",
    "window_seconds",
    "algorithm",
    "burst",
    "max_hold_seconds",
    "period",
    "time_zone",
    "session_seconds",
    "soft",
)
"""The columns of a definition, in this order."""


def definition_of(kind: str, key: str, capacity: Number, *rest: Any) -> Definition:
    """Return columns, in the order of `COLUMNS`, as an immutable value; raises InvalidLimit if they are invalid."""
    window_seconds, algorithm, burst, max_hold_seconds, period, time_zone, session_seconds, soft = rest
    if kind == LimitKind.RESOURCE:
        return ResourceLimit(key, amount_of(capacity), amount_of(max_hold_seconds))
    soft = bool(soft)  # a number if read by a raw query
    if kind == LimitKind.QUOTA:
        calendar = (period or None, time_zone or DEFAULT_ZONE)
        return QuotaLimit(key, amount_of(capacity), *calendar, amount_of(session_seconds), soft)
    rate = (amount_of(capacity), amount_of(window_seconds), RateLimitAlgorithm(algorithm), amount_of(burst), soft)
    return CallLimit(*rate) if kind == LimitKind.CALL else RateLimit(key, *rate)


def noted_in(limit: Mapping[str, Any]) -> Noted:
    """Return the limit of a snapshot; raises InvalidLimit if it is invalid."""
    columns: list[Any] = [limit.get(column) for column in COLUMNS]
    return Noted(definition_of(*columns), bool(limit.get("shared")))


def check_definitions(limits: Iterable[Mapping[str, Any]]) -> None:
    """Raise IntegrityError if one of the limits of a snapshot is invalid.

    Database constraints do not cover keys and time zones.
    """
    for limit in limits:
        try:
            noted_in(limit)
        except ValueError as error:
            raise IntegrityError(str(error)) from error


def amount_of(value: Number) -> Any:
    """A column value for the core: whole numbers as int, others as float; other values unchanged.

    Raw queries return decimals in a form that depends on the database, for example as floats.
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() else round(value, 3)
    if not isinstance(value, Decimal) or not value.is_finite() or value.adjusted() > 15:
        return value
    return int(value) if value == value.to_integral_value() else float(value)

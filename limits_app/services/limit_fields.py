"""The fields of a limit, in which forms and the REST API have it: split from the text of a row, and joined to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.engine import (
    DEFAULT_ZONE,
    LONGEST_ZONE_NAME,
    Amount,
    Noted,
    QuotaPeriod,
    check_keep,
    check_shared,
    keep_text,
    parse_body,
    parse_keep,
    without_zone,
)
from limits_app.engine.errors import InvalidLimit, UnknownTimeZone
from limits_app.engine.limits import (
    CallLimit,
    LimitDefinition,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.models import Limit
from limits_app.models.fields import ExactTextField
from limits_app.models.limit_rules import amount_of


class LimitKind(models.TextChoices):
    """What a limit counts."""

    RATE = "rate", _("units")
    CALL = "call", _("requests")
    QUOTA = "quota", _("quota")
    RESOURCE = "resource", _("concurrency limit")


ALGORITHMS: Final = [(algorithm.value, _(algorithm.label)) for algorithm in RateLimitAlgorithm]
PERIODS: Final = [(period.value, _(period.value)) for period in QuotaPeriod]


def _number(label: Any, help_text: Any, *, required: bool = False) -> Any:
    """A field for an amount, or for seconds."""
    optional = not required
    return models.DecimalField(
        label, max_digits=19, decimal_places=6, null=optional, blank=optional, help_text=help_text
    )


class LimitFields(models.Model):
    """What the text of a limit has, as fields, in their order; it is abstract, and no table has them."""

    kind = models.CharField(
        _("kind"),
        max_length=16,
        choices=LimitKind.choices,
        default=LimitKind.RATE,
        help_text=_(
            "Rate: units, such as tokens, or requests per time window. Quota: units per calendar period. Concurrency "
            "limit: units in use at the same time."
        ),
    )
    capacity = _number(
        _("capacity"),
        _(
            "Largest amount per time window or period, or in use at the same time. To reject every request, use a "
            "“blocked” policy."
        ),
        required=True,
    )
    window_seconds = _number(
        _("per (seconds)"), _("60 is a minute, 3600 an hour, 86400 a day. Only for units and requests.")
    )
    algorithm = models.CharField(
        _("algorithm"),
        max_length=16,
        choices=ALGORITHMS,
        blank=True,
        help_text=_("Leave empty for a token bucket. Only for units and requests."),
    )
    burst = _number(
        _("burst size"),
        _("Largest amount that can be used at once. Leave empty for the capacity. Only for buckets and GCRA."),
    )
    max_hold_seconds = _number(
        _("freed after (seconds)"),
        _(
            "Release a permit automatically after this many seconds. Leave empty to never release it automatically. "
            "Only for concurrency limits."
        ),
    )
    period = models.CharField(
        _("calendar period"),
        max_length=8,
        choices=PERIODS,
        blank=True,
        help_text=_("Weeks start on Monday. Only for quotas."),
    )
    time_zone = ExactTextField(
        _("time zone"),
        max_length=LONGEST_ZONE_NAME,
        blank=True,
        help_text=_("Time zone of the calendar period, such as “Europe/Berlin”. Leave empty for UTC."),
    )
    starts = ExactTextField(
        _("periods begin"),
        max_length=16,
        blank=True,
        help_text=_(
            "The day of the month, such as “15”, the weekday, such as “sun”, the time, such as “6h”, or both, such as "
            "“15+6h”. “client” is the billing date of each client. Leave empty for midnight of the first day. Only for "
            "days, weeks and months."
        ),
    )
    session_seconds = _number(
        _("from first use (seconds)"),
        _("Length of a quota period that begins with the first use, such as 18000, instead of a calendar period."),
    )
    soft = models.BooleanField(
        _("report only"),
        default=False,
        help_text=_("Report usage above the limit without rejecting requests. Not for concurrency limits."),
    )
    keep = ExactTextField(
        _("kept free"),
        max_length=200,
        blank=True,
        help_text=_(
            "What requests of lower priorities leave free for higher ones, such as “low:60%, normal:20%”. Not for "
            "limits that only report."
        ),
    )

    class Meta:
        abstract = True


FIELDS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "key": Limit._meta.get_field("key"),
        **{field.name: field for field in LimitFields._meta.local_fields},
        "shared": Limit._meta.get_field("shared"),
    }
)
"""The fields of a limit: the first and the last are columns, and the others are in its text."""

_RATE: Final = ("window_seconds", "algorithm", "burst")
_QUOTA: Final = ("period", "time_zone", "starts", "session_seconds")
_PERMIT: Final = ("max_hold_seconds",)
_FORBIDDEN: Final[Mapping[LimitKind, tuple[str, ...]]] = {
    LimitKind.RATE: (*_QUOTA, *_PERMIT),
    LimitKind.CALL: (*_QUOTA, *_PERMIT),
    LimitKind.QUOTA: (*_RATE, *_PERMIT),
    LimitKind.RESOURCE: (*_RATE, *_QUOTA, "soft"),
}


def of_kind(kind: str) -> Q:
    """The filter for rows of limits of a kind."""
    calls, permits = Q(key=CallLimit.key), ~Q(text__contains="/")
    quotas = Q(text__contains="@") | Q(text__contains="session")
    quotas |= Q(text__icontains="week") | Q(text__icontains="month")  # without a zone, as written past the app
    match kind:
        case LimitKind.CALL:
            return calls
        case LimitKind.RESOURCE:
            return permits
        case LimitKind.QUOTA:
            return quotas
        case _:
            return ~(calls | permits | quotas)


def split(row: Limit) -> dict[str, Any]:
    """Return the values of the fields of a row; an invalid row has nothing but its columns."""
    fields = {name: field.get_default() for name, field in FIELDS.items()}
    fields |= {"key": row.key, "shared": row.shared}
    try:
        return fields | _split(row.definition())
    except UnknownTimeZone:
        text, zone = without_zone(row.text)
        return fields | _split(parse_body(row.key, text)) | {"time_zone": zone}
    except InvalidLimit:
        return fields


def _split(limit: LimitDefinition) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "capacity": _decimal(limit.capacity),
        "soft": limit.soft,
        "keep": keep_text(limit.keep),
    }
    match limit:
        case ResourceLimit():
            return fields | {"kind": LimitKind.RESOURCE, "max_hold_seconds": _decimal(limit.max_hold_seconds)}
        case QuotaLimit(period=str(period), time_zone=zone, starts=starts):
            return fields | {"kind": LimitKind.QUOTA, "period": period, "time_zone": zone, "starts": starts}
        case QuotaLimit():
            return fields | {"kind": LimitKind.QUOTA, "session_seconds": _decimal(limit.session_seconds)}
    return fields | {
        "kind": LimitKind.CALL if isinstance(limit, CallLimit) else LimitKind.RATE,
        "window_seconds": _decimal(limit.window_seconds),
        "algorithm": limit.algorithm.value,
        "burst": _decimal(limit.burst),
    }


def join(values: Mapping[str, Any]) -> Noted | None:
    """Return the limit of the values of the fields; raises ValidationError with an error for each wrong field.

    `values` leaves out the fields that are known to be wrong; then the others are checked, and None is returned.
    """
    fields = _cleaned(values)
    if len(fields) < len(FIELDS):
        return None
    try:
        limit = _joined(fields)
        check_keep(limit)
        check_shared(limit, shared=fields["shared"])
        return Noted(limit, fields["shared"])
    except InvalidLimit as error:
        key = fields["key"]
        if not key:
            raise ValidationError({"key": gettext("Enter what is counted, such as “tokens”.")}) from error
        message = str(error).removeprefix(f"limit {key!r}: ")
        raise ValidationError({next((word for word in message.split() if word in FIELDS), "key"): message}) from error


def _cleaned(values: Mapping[str, Any]) -> dict[str, Any]:
    """Check the fields by themselves, and whether they fit the kind."""
    fields: dict[str, Any] = {}
    errors: dict[str, Any] = {}
    for name, value in values.items():
        try:
            fields[name] = FIELDS[name].clean(value, None)
        except ValidationError as error:
            errors[name] = error.error_list
    if "kind" in fields:
        errors |= _wrong_fields(fields)
    if errors:
        raise ValidationError(errors)
    return fields


def _joined(fields: Mapping[str, Any]) -> LimitDefinition:
    key, capacity, soft = fields["key"], amount_of(fields["capacity"]), fields["soft"]
    keep = parse_keep(fields["keep"]) if fields["keep"] else ()
    match fields["kind"]:
        case LimitKind.RESOURCE:
            return ResourceLimit(key, capacity, amount_of(fields["max_hold_seconds"]), keep=keep)
        case LimitKind.QUOTA:
            calendar = (fields["period"] or None, fields["time_zone"] or DEFAULT_ZONE)
            seconds, starts = amount_of(fields["session_seconds"]), fields["starts"]
            return QuotaLimit(key, capacity, *calendar, seconds, soft, starts, keep=keep)
    algorithm = RateLimitAlgorithm(fields["algorithm"] or RateLimitAlgorithm.TOKEN_BUCKET)
    rate = (capacity, amount_of(fields["window_seconds"]), algorithm, amount_of(fields["burst"]), soft)
    return CallLimit(*rate, keep=keep) if fields["kind"] == LimitKind.CALL else RateLimit(key, *rate, keep=keep)


def _wrong_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return an error for each field that does not fit the kind or the algorithm; fills in the key of requests."""
    kind = LimitKind(fields["kind"])
    if kind is LimitKind.CALL and fields.get("key") == "":
        fields["key"] = CallLimit.key
    filled = {name for name, value in fields.items() if value not in (None, "") and value is not False}
    present = filled | (FIELDS.keys() - fields.keys())
    wrong = {
        name: gettext("Not allowed for the kind “%(kind)s”: leave it empty, or choose the kind %(fitting)s.")
        % {"kind": kind.label, "fitting": _fitting(name)}
        for name in _FORBIDDEN[kind]
        if name in filled
    }
    if "soft" in wrong:
        wrong["soft"] = gettext("“Report only” is not available for concurrency limits.")
    if kind in (LimitKind.RATE, LimitKind.CALL) and "window_seconds" not in present:
        wrong["window_seconds"] = gettext("Enter the length of the window in seconds: 60 is a minute, 3600 an hour.")
    if kind is LimitKind.QUOTA:
        wrong |= _wrong_times(present)
    algorithm = fields.get("algorithm")
    if algorithm and not RateLimitAlgorithm(algorithm).takes_burst and "burst" in filled:
        wrong["burst"] = gettext("Not allowed for this algorithm: leave it empty, or choose another algorithm.")
    if "key" in fields and (kind is LimitKind.CALL) != (fields["key"] == CallLimit.key):
        wrong["key"] = gettext(
            "The unit “call_count” is reserved for the kind “requests”: choose another unit or kind."
        )
    return wrong


def _fitting(field: str) -> str:
    """The kinds of limits that have a field."""
    return gettext(" or ").join(f"“{kind.label}”" for kind in LimitKind if field not in _FORBIDDEN[kind])


def _wrong_times(present: Collection[str]) -> dict[str, Any]:
    """The errors of the period or session of a quota."""
    if "period" not in present and "session_seconds" not in present:
        return {"period": gettext("Choose a calendar period, or enter the seconds from the first use.")}
    if "session_seconds" not in present:
        return {}
    return {
        field: gettext("Not allowed with seconds from the first use: leave one of them empty.")
        for field in ("period", "time_zone", "starts")
        if field in present
    }


def _decimal(amount: Amount | None) -> Decimal | None:
    return None if amount is None else Decimal(str(amount))

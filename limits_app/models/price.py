"""Prices of the units of resources: each change of a price is a new row, so that earlier use keeps the price it had."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import IntegrityError, models, router
from django.db.models import Q
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import conf
from limits_app.engine import (
    EPOCH,
    MICROSECOND,
    PRICE_DECIMALS,
    PRICE_DIGITS,
    PricedFor,
    StoredPrice,
    UnitPrice,
    check_key,
    check_price,
    check_resource,
    currency_like,
    is_currency,
    shown,
)
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import CallLimit, ResourceLimit
from limits_app.models.base import Configuration, Written, check_validators
from limits_app.models.fields import ONE_HOUR, ExactDecimalField, ExactTextField, aware, decimal_text, in_site_time
from limits_app.models.limit import Limit
from limits_app.models.limit_rules import stored_definition
from limits_app.models.patterns import check_pattern
from limits_app.models.snapshots import Snapshot, batches
from limits_app.models.validators import validate_text

MAX_CURRENCY_LENGTH: Final = 16
_LEAD: Final = timedelta(minutes=1)
"""How long before its hour a price is written at the latest, so that no request of this hour is charged without it."""


class Per(models.IntegerChoices):
    """For how many units a price is."""

    ONE = 1, _("unit")
    THOUSAND = 1_000, _("1,000 units")
    MILLION = 1_000_000, _("1,000,000 units")


def validate_priced(value: str) -> None:
    """Reject text that is neither the name of a resource or a pool, nor a pattern for such names."""
    validate_text(value)
    check_pattern(value)
    try:
        check_resource(f"{value[:-1]}x"[:64] if value.endswith("*") else value)
    except InvalidLimit as error:
        raise ValidationError(str(error)) from error


def validate_unit(value: str) -> None:
    """Reject invalid keys, and currencies, of which an amount is charged as it is."""
    try:
        check_key(value)
    except InvalidLimit as error:
        raise ValidationError(str(error)) from error
    if is_currency(value) or currency_like(value) is not None:
        raise ValidationError(
            _("%(unit)s is a currency, which has no price: choose the unit that is paid for, such as “input_tokens”."),
            params={"unit": shown(value)},
        )


def validate_currency(value: str) -> None:
    """Reject currencies that the site does not have."""
    currencies = conf.get(conf.CURRENCIES)
    if value not in currencies:
        raise ValidationError(
            _("%(value)s is not a currency of this site: choose one of %(known)s, or add it to LIMITS['CURRENCIES']."),
            params={"value": shown(value), "known": ", ".join(currencies)},
        )


def next_full_hour(now: datetime | None = None) -> datetime:
    """The first full hour that begins in a minute or later, from which a new price may be valid."""
    earliest = aware(timezone.now() if now is None else now).astimezone(UTC) + _LEAD
    hour = earliest.replace(minute=0, second=0, microsecond=0)
    return in_site_time(hour if hour == earliest else hour + ONE_HOUR)


def validate_full_hour(value: datetime) -> None:
    """Reject times other than full hours of UTC, in which usage is counted."""
    moment = aware(value).astimezone(UTC)
    if moment != moment.replace(minute=0, second=0, microsecond=0):
        raise ValidationError(
            _("A price is valid from a full hour of UTC, such as 2026-01-31 13:00: usage is counted by the hour.")
        )


def validate_new_hour(value: datetime) -> None:
    """Reject times of the past and of the next minute, and other times than full hours."""
    validate_full_hour(value)
    if aware(value) < aware(next_full_hour()):
        raise ValidationError(
            _(
                "A price cannot be valid from a time in the past, because that would change what was already charged: "
                "choose %(hour)s (UTC) or later."
            ),
            params={"hour": f"{aware(next_full_hour()).astimezone(UTC):%Y-%m-%d %H:%M}"},
        )


class Price(Configuration):
    """What some units of a resource cost from an hour on, until a later row for the same unit and currency.

    Rows whose time has begun cannot be changed or deleted. Code that saves rows itself may add prices of the past, such
    as those of another system; forms, the REST API, limits files and commands may not.
    """

    named_by = "id"
    always_validated = ("resource", "member", "unit", "currency")

    resource = ExactTextField(
        _("resource or pattern"),
        max_length=64,
        validators=[validate_priced],
        help_text=_(
            "The name of a resource, such as “openai/gpt-4o”, or a pattern for several, such as “openai/*”. With a "
            "member, the name of its pool. The most specific price applies: that of the member, then that of the "
            "resource, then that of the longest pattern."
        ),
    )
    member = ExactTextField(
        _("member of the pool"),
        max_length=100,
        blank=True,
        default="",
        validators=[validate_text],
        help_text=_("For a price of a single member of a pool, such as a region. Leave empty for all."),
    )
    unit = ExactTextField(
        _("unit"),
        max_length=64,
        validators=[validate_unit],
        help_text=_(
            "The key of the amount that is paid for, such as “input_tokens”; “call_count” for requests. The unit "
            "becomes a key of the resource, also without a limit."
        ),
    )
    amount = ExactDecimalField(
        _("price"), max_digits=PRICE_DIGITS, decimal_places=PRICE_DECIMALS, validators=[MinValueValidator(0)]
    )
    per = models.PositiveIntegerField(_("per"), choices=Per.choices, default=Per.MILLION)
    currency = ExactTextField(_("currency"), max_length=MAX_CURRENCY_LENGTH, validators=[validate_currency])
    valid_from = models.DateTimeField(
        _("valid from"),
        blank=True,
        validators=[validate_full_hour],
        help_text=_(
            "A full hour that is not in the past; leave empty for the next one. What was used before keeps the price "
            "of its time."
        ),
    )

    class Meta(Configuration.Meta):
        verbose_name = _("price")
        verbose_name_plural = _("prices")
        ordering = ["resource", "member", "unit", "currency", "-valid_from"]
        constraints = [
            models.UniqueConstraint(
                fields=["resource", "member", "unit", "currency", "valid_from"],
                name="limits_app_price_one_per_hour",
                violation_error_message=_("This unit already has a price from this hour on: change that one instead."),
            ),
            models.CheckConstraint(
                name="limits_app_price_fields",
                condition=~Q(resource="") & ~Q(unit="") & ~Q(currency="") & Q(amount__gte=0, per__in=Per.values),
                violation_error_message=_("A price needs a resource, a unit, a currency and an amount of 0 or more."),
            ),
        ]

    def __str__(self) -> str:
        hour = "" if self.valid_from is None else f" from {self.valid_from:%Y-%m-%d %H:%M}"
        return f"{self.unit} of {self.priced} in {self.currency}{hour}"

    @property
    def priced(self) -> str:
        """What the price is for, as text."""
        return f"{self.resource}, {self.member}" if self.member else self.resource

    @property
    def in_words(self) -> str:
        """What is paid for how much, such as “0.15 USD per 1,000,000 input_tokens”."""
        unit = self.unit
        if unit == CallLimit.key:
            unit = gettext("requests") if self.per > 1 else gettext("request")
        values = {"amount": decimal_text(self.amount), "currency": self.currency.upper(), "unit": unit}
        if self.per == 1:
            return gettext("%(amount)s %(currency)s per %(unit)s") % values
        return gettext("%(amount)s %(currency)s per %(number)s %(unit)s") % {**values, "number": f"{self.per:,}"}

    @property
    def has_begun(self) -> bool:
        """Whether it applies now, or did before a later one."""
        return aware(self.valid_from) <= aware(timezone.now())

    def as_stored(self) -> StoredPrice:
        """The price as a value."""
        price = UnitPrice.of(self.unit, self.currency, self.amount, self.per)
        return StoredPrice(PricedFor(self.resource, self.member), price, hour_us(self.valid_from))

    def clean_alone(self) -> None:
        """Fill in the next full hour, and reject patterns with a member."""
        if self.valid_from is None:
            self.valid_from = next_full_hour()
        if self.member and self.resource.endswith("*"):
            raise ValidationError(
                {"resource": _("A price of a member needs the name of its pool, not a pattern: write the whole name.")}
            )

    def clean(self) -> None:
        """Reject changes of a price that has begun, new ones of the past, and prices of permits."""
        super().clean()
        if problem := problem_of_permits(self, permits_of([self.unit], router.db_for_write(Price))):
            raise ValidationError({"unit": problem})
        stored = Price.objects.using(router.db_for_write(Price)).filter(pk=self.pk).first() if self.pk else None
        if stored is not None and stored.has_begun:
            raise ValidationError(begun_message(str(stored)))
        if isinstance(self.valid_from, datetime):
            try:
                validate_new_hour(self.valid_from)
            except ValidationError as error:
                raise ValidationError({"valid_from": error.messages}) from error

    def delete(self, using: str | None = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        """Delete the row; ValidationError for one that has begun."""
        if self.has_begun:
            raise ValidationError(begun_message(str(self)))
        return super().delete(using, keep_parents)

    @classmethod
    def check_written(cls, written: Written, using: str) -> None:
        """Reject changes of rows whose time had begun, other times than full hours, and too many digits."""
        super().check_written(written, using)
        for before, now in written.values():
            if before == now:
                continue
            if before and _has_begun(before):
                raise IntegrityError(begun_message(_label(before)))
            check_validators(cls._meta.get_field("valid_from"), parse_datetime(now["valid_from"]))
            try:
                check_price(Decimal(str(now["amount"])), now["per"])
            except InvalidLimit as error:
                raise IntegrityError(f"amount: {error}") from error

    @classmethod
    def complete_written(cls, before: Mapping[Any, Snapshot], using: str) -> None:
        """Reject deletions of rows whose time had begun, on every write."""
        begun = {key: state for key, state in before.items() if state and _has_begun(state)}
        stored = {*cls.objects.using(using).filter(pk__in=begun).values_list("pk", flat=True)} if begun else set()
        for key, state in begun.items():
            if key not in stored:
                raise IntegrityError(begun_message(_label(state)))


def permits_of(units: Collection[str], using: str) -> dict[str, set[str]]:
    """The resources on which the key of a unit is that of a concurrency limit, by unit; empty text for all."""
    resources: dict[str, set[str]] = {}
    for batch in batches(units):
        rows = Limit._base_manager.using(using).filter(key__in=batch, member=None).order_by()
        for key, text, resource in rows.values_list("key", "text", "policy__resource__name").distinct():
            try:
                if isinstance(stored_definition(key, text)[0], ResourceLimit):
                    resources.setdefault(key, set()).add(resource or "")
            except InvalidLimit:
                continue
    return resources


def problem_of_permits(price: Price, permits: Mapping[str, Collection[str]]) -> str:
    """The problem with the unit of a price that counts permits, given those of `permits_of`; empty for nothing."""
    name, is_pattern = price.resource.removesuffix("*"), price.resource.endswith("*")
    for resource in permits.get(price.unit, ()):
        if resource in {"", price.resource} or (is_pattern and resource.startswith(name)):
            return gettext(
                "%(unit)s is the key of a concurrency limit, whose permits have no price: choose another unit."
            ) % {"unit": price.unit}
    return ""


def begun_message(label: str) -> str:
    """The problem with a change of a price that has begun."""
    return gettext(
        "The price of %(label)s has begun, so it cannot be changed or deleted: add a new price that is valid from a "
        "later hour."
    ) % {"label": label}


def hour_us(moment: datetime) -> int:
    """A time of the database in microseconds since 1970."""
    return (aware(moment) - EPOCH) // MICROSECOND


def _has_begun(state: Snapshot) -> bool:
    valid_from = parse_datetime(state["valid_from"])
    return valid_from is not None and aware(valid_from) <= aware(timezone.now())


def _label(state: Snapshot) -> str:
    return f"{state['unit']} of {state['resource']} from {state['valid_from']}"
